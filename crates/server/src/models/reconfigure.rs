//! Applies a new configuration while models are loaded.

use std::sync::Arc;

use super::registry::{Models, RegistryState};
use super::slot::{Inspection, Phase, Slot};
use crate::config::{Config, ModelConfig};

/// Which models a configuration added, removed and changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// Opened again at their next use.
    pub changed: Vec<String>,
    /// Applied without opening them again.
    pub adjusted: Vec<String>,
}

impl Changes {
    /// A line for each model.
    pub fn describe(&self) -> Vec<String> {
        let Self {
            added,
            removed,
            changed,
            adjusted,
        } = self;
        let each = |names: &[String], what: &str| -> Vec<String> {
            let lines = names.iter().map(|name| format!("models.{name} ({what})"));
            lines.collect()
        };
        [
            each(added, "added"),
            each(removed, "removed"),
            each(changed, "reopened at its next use"),
            each(adjusted, "adjusted"),
        ]
        .concat()
    }
}

impl Models {
    /// Replaces models and memory budget. Requests in flight keep the models they began with.
    pub fn reconfigure(&self, config: &Config) -> Changes {
        let mut state = self.inner.lock();
        state.memory = config.memory;
        let changes = state.reconfigure(&config.models);
        drop(state);
        self.inner.wake.notify_one();
        changes
    }
}

impl RegistryState {
    fn reconfigure(&mut self, models: &[ModelConfig]) -> Changes {
        let mut changes = Changes::default();
        let mut before = std::mem::take(&mut self.slots);
        for model in models {
            let index = before.iter().position(|slot| slot.has_name(&model.name));
            let slot = match index {
                Some(index) => {
                    let mut slot = before.remove(index);
                    update(&mut slot, model, &mut changes);
                    slot
                }
                None => {
                    changes.added.push(model.name.clone());
                    self.next += 1;
                    Slot::new(self.next, Arc::new(model.clone()))
                }
            };
            self.slots.push(slot);
        }
        for mut slot in before {
            if !slot.retired {
                changes.removed.push(slot.model.name.clone());
            }
            slot.retired = true;
            slot.drain();
            self.slots.push(slot);
        }
        self.remove_retired();
        changes
    }
}

fn update(slot: &mut Slot, model: &ModelConfig, changes: &mut Changes) {
    if *slot.model == *model {
        return;
    }
    let needs_reopen = needs_reopen(&slot.model, model);
    slot.model = Arc::new(model.clone());
    slot.configure_adapters();
    if !needs_reopen {
        changes.adjusted.push(model.name.clone());
        return;
    }
    changes.changed.push(model.name.clone());
    slot.version += 1;
    slot.inspection = Inspection::Pending;
    slot.drain();
    if let Phase::Failed { .. } = slot.phase {
        slot.phase = Phase::Unloaded;
    }
}

/// Whether a loaded model must be opened again for the new configuration.
fn needs_reopen(old: &ModelConfig, new: &ModelConfig) -> bool {
    let ModelConfig {
        aliases,
        preload,
        idle_unload,
        step_timeout,
        adapters,
        ..
    } = new.clone();
    let adjusted = ModelConfig {
        aliases,
        preload,
        idle_unload,
        step_timeout,
        adapters,
        ..old.clone()
    };
    // A session has room for adapters or not.
    old.takes_adapters() != new.takes_adapters() || adjusted != *new
}
