//! Another configuration while models are at work.

use std::sync::Arc;

use super::registry::{Models, State};
use super::slot::{Known, Phase, Slot};
use crate::config::{Config, Model};

/// Which models a configuration added, removed and changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// Opened anew at their next use.
    pub changed: Vec<String>,
    /// In force without that.
    pub adjusted: Vec<String>,
}

impl Changes {
    /// A line for each.
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
    /// Takes the configuration's models and memory in place of those before. Requests in flight
    /// end with the models they began with.
    pub fn reconfigure(&self, config: &Config) -> Changes {
        let mut state = self.inner.lock();
        state.memory = config.memory;
        let changes = state.reconfigure(&config.models);
        drop(state);
        self.inner.wake.notify_one();
        changes
    }
}

impl State {
    fn reconfigure(&mut self, models: &[Model]) -> Changes {
        let mut changes = Changes::default();
        let mut before = std::mem::take(&mut self.slots);
        for model in models {
            let place = before.iter().position(|slot| slot.is_called(&model.name));
            let slot = match place {
                Some(place) => {
                    let mut slot = before.remove(place);
                    adopt(&mut slot, model, &mut changes);
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
        self.forget_retired();
        changes
    }
}

fn adopt(slot: &mut Slot, model: &Model, changes: &mut Changes) {
    if *slot.model == *model {
        return;
    }
    let same_once_open = is_same_once_open(&slot.model, model);
    slot.model = Arc::new(model.clone());
    if same_once_open {
        changes.adjusted.push(model.name.clone());
        return;
    }
    changes.changed.push(model.name.clone());
    slot.version += 1;
    slot.known = Known::Nothing;
    slot.drain();
    if let Phase::Failed { .. } = slot.phase {
        slot.phase = Phase::Unloaded;
    }
}

/// Whether a model that is open under one configuration is open as the other wants it.
fn is_same_once_open(old: &Model, new: &Model) -> bool {
    let Model {
        aliases,
        preload,
        idle_unload,
        ..
    } = new.clone();
    let adjusted = Model {
        aliases,
        preload,
        idle_unload,
        ..old.clone()
    };
    adjusted == *new
}
