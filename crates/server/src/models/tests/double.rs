//! An opener whose every call is counted, and waits until it is let go.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::config::{Config, Model};
use crate::models::{Models, OpenFailure, Opened, Opener, Planned};
use crate::testing::Scripted;

#[derive(Default)]
pub struct Double {
    /// How often each was opened.
    pub opened: Mutex<HashMap<String, usize>>,
    pub plans: AtomicUsize,
    /// How long opening takes.
    pub delay: Duration,
    /// How many openings fail before one succeeds.
    pub failures: AtomicUsize,
}

impl Double {
    pub fn opened(&self, model: &str) -> usize {
        let opened = self.opened.lock().expect("no panic");
        opened.get(model).copied().unwrap_or(0)
    }
}

/// The models' sizes are their sources.
fn size(model: &Model) -> u64 {
    model.source.parse().expect("a size")
}

impl Opener for Double {
    fn plan(&self, model: &Model) -> Result<Planned, OpenFailure> {
        self.plans.fetch_add(1, Ordering::Relaxed);
        let planned = Scripted::new("").plan(model)?;
        Ok(Planned {
            resident_bytes: size(model),
            ..planned
        })
    }

    fn open(&self, model: &Model) -> Result<Opened, OpenFailure> {
        let mut opened = self.opened.lock().expect("no panic");
        *opened.entry(model.name.clone()).or_default() += 1;
        drop(opened);
        std::thread::sleep(self.delay);
        let failing = |left: usize| left.checked_sub(1);
        let failing = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, failing);
        if failing.is_ok() {
            return Err(OpenFailure::new("/secret/model.gguf is not there"));
        }
        let opened = Scripted::new("hello").open(model)?;
        Ok(Opened {
            resident_bytes: size(model),
            ..opened
        })
    }
}

/// Models of these names and sizes.
pub fn config(models: &[(&str, u64)], memory: Option<u64>) -> Config {
    let models = models
        .iter()
        .map(|(name, size)| Model::new(*name, size.to_string()));
    Config {
        models: models.collect(),
        memory,
        ..Config::default()
    }
}

pub fn serve(config: &Config, double: Double) -> (Models, Arc<Double>) {
    let double = Arc::new(double);
    let models = Models::new(config, Arc::clone(&double) as Arc<dyn Opener>);
    (models, double)
}

/// The states of all models, by name.
pub fn states(models: &Models) -> Vec<(String, &'static str)> {
    let status = models.status().into_iter();
    status
        .map(|status| (status.name, status.state.name()))
        .collect()
}

/// Waits for the model to get there.
pub async fn becomes(models: &Models, model: &str, state: &'static str) {
    let wanted = (model.to_owned(), state);
    for _ in 0..10_000 {
        if states(models).contains(&wanted) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{:?}, not {wanted:?}", states(models));
}
