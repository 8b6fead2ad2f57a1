//! An opener that counts its calls, waits on request, and fails on request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::config::{Config, ModelConfig};
use crate::models::{Models, OpenFailure, Opened, Opener, Planned};
use crate::testing::Scripted;

#[derive(Default)]
pub struct FakeOpener {
    /// How often each model was opened.
    pub opened: Mutex<HashMap<String, usize>>,
    pub plans: AtomicUsize,
    /// The next opening waits until its sender is dropped.
    pub gate: Mutex<Option<mpsc::Receiver<()>>>,
    /// How many openings fail before one succeeds.
    pub failures: AtomicUsize,
}

impl FakeOpener {
    /// Makes the next opening wait until the sender is dropped.
    pub fn block_next(&self) -> mpsc::Sender<()> {
        let (release, gate) = mpsc::channel();
        *self.gate.lock().expect("no panic") = Some(gate);
        release
    }

    pub fn opened(&self, model: &str) -> usize {
        let opened = self.opened.lock().expect("no panic");
        opened.get(model).copied().unwrap_or(0)
    }
}

/// A model's size is its source.
fn size(model: &ModelConfig) -> u64 {
    model.source.parse().expect("a size")
}

impl Opener for FakeOpener {
    fn plan(&self, model: &ModelConfig) -> Result<Planned, OpenFailure> {
        self.plans.fetch_add(1, Ordering::Relaxed);
        let planned = Scripted::new("").plan(model)?;
        Ok(Planned {
            resident_bytes: size(model),
            ..planned
        })
    }

    fn open(&self, model: &ModelConfig) -> Result<Opened, OpenFailure> {
        let mut opened = self.opened.lock().expect("no panic");
        *opened.entry(model.name.clone()).or_default() += 1;
        drop(opened);
        let gate = self.gate.lock().expect("no panic").take();
        if let Some(gate) = gate {
            let _ = gate.recv();
        }
        let failing = |left: usize| left.checked_sub(1);
        let failing = self
            .failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, failing);
        if failing.is_ok() {
            return Err(OpenFailure::new("/secret/model.gguf does not exist"));
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
        .map(|(name, size)| ModelConfig::new(*name, size.to_string()));
    Config {
        models: models.collect(),
        memory,
        ..Config::default()
    }
}

pub fn serve(config: &Config, opener: FakeOpener) -> (Models, Arc<FakeOpener>) {
    let opener = Arc::new(opener);
    let models = Models::new(config, Arc::clone(&opener) as Arc<dyn Opener>);
    (models, opener)
}

/// The states of all models, by name.
pub fn states(models: &Models) -> Vec<(String, &'static str)> {
    let status = models.status().into_iter();
    status
        .map(|status| (status.name, status.state.name()))
        .collect()
}

/// Waits until the model has this state.
pub async fn becomes(models: &Models, model: &str, state: &'static str) {
    let expected = (model.to_owned(), state);
    for _ in 0..60_000 {
        if states(models).contains(&expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{:?}, not {expected:?}", states(models));
}
