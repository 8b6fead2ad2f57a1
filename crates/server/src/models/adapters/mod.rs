//! Adapters of the served models: which requests can choose, and which are loaded.
//!
//! A [slot](super::slot) knows the adapters of its model: those of the configuration, and those
//! that an operator loaded. A loaded model has a [`pool`](AdapterPool) of those that its engine
//! holds.

mod choose;
mod operate;
mod pool;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::config::{AdapterConfig, ModelConfig};
use crate::error::{ApiError, ErrorKind};

pub use choose::ChosenModel;
pub use operate::{NewAdapter, not_found as adapter_not_found};
pub use pool::{AdapterLoader, AdapterPool, AdapterUse};

use super::slot::Slot;

/// An adapter that requests can choose.
#[derive(Debug)]
pub struct Adapter {
    /// Unique among all adapters, even of one name.
    key: u64,
    /// llama.cpp's number for it, unique within its model.
    pub number: usize,
    pub name: String,
    pub config: AdapterConfig,
    /// Whether it is in the configuration.
    configured: bool,
    /// Set when requests can no longer choose it.
    removed: AtomicBool,
}

impl Adapter {
    fn new(number: usize, name: &str, config: AdapterConfig, configured: bool) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            key: NEXT.fetch_add(1, Ordering::Relaxed),
            number,
            name: name.to_owned(),
            config,
            configured,
            removed: AtomicBool::new(false),
        })
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }
}

/// An adapter, for clients and metrics.
#[derive(Debug, Clone)]
pub struct AdapterStatus {
    pub name: String,
    /// llama.cpp's number for it.
    pub number: usize,
    pub pinned: bool,
    pub loaded: bool,
    /// Requests that use it now.
    pub in_use: usize,
    /// Requests wait for it to be loaded.
    pub awaited: bool,
    /// Its scale in requests that choose no adapter.
    pub default_scale: f32,
}

/// Why an adapter cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AdapterError {
    #[error("it was unloaded")]
    Removed,
    /// For operators: it may name paths.
    #[error("{0}")]
    Failed(String),
    #[error("pinned adapters leave no room for it; raise `max_adapters` or `adapter_memory`")]
    NoRoom,
}

impl AdapterError {
    /// For a request that chose the adapter.
    fn for_request(&self, name: &str) -> ApiError {
        match self {
            Self::Removed => adapter_gone(name),
            Self::Failed(why) => {
                tracing::error!(adapter = name, "cannot be loaded: {why}");
                let message =
                    format!("Adapter `{name}` cannot be loaded; the server's log has the cause.");
                ApiError::new(ErrorKind::Internal, message).code("adapter_load_failed")
            }
            Self::NoRoom => {
                let message = format!("Adapter `{name}` cannot be loaded: {self}.");
                ApiError::new(ErrorKind::Internal, message).code("adapter_no_room")
            }
        }
    }
}

/// The error of a request whose adapter is unloaded before it has ended.
pub fn adapter_gone(name: &str) -> ApiError {
    let message = format!("Adapter `{name}` was unloaded.");
    ApiError::new(ErrorKind::NotFound, message).code("adapter_unloaded")
}

impl Slot {
    /// Takes over the configuration's adapters. Adapters that an operator loaded stay, unless their
    /// name is taken.
    pub fn configure_adapters(&mut self) {
        let ModelConfig { adapters, .. } = &*Arc::clone(&self.model);
        let before = std::mem::take(&mut self.adapters);
        for (name, config) in adapters {
            let same = before
                .iter()
                .find(|old| old.configured && old.name == *name && old.config == *config);
            let adapter = match same {
                Some(same) => Arc::clone(same),
                None => {
                    let number = self.next_adapter;
                    self.next_adapter += 1;
                    Adapter::new(number, name, config.clone(), true)
                }
            };
            self.adapters.push(adapter);
        }
        for old in before {
            let is_kept = self.adapters.iter().any(|kept| kept.key == old.key);
            let is_replaced = self.adapters.iter().any(|new| new.name == old.name);
            match (is_kept, old.configured || is_replaced) {
                (true, _) => {}
                (false, true) => old.remove(),
                (false, false) => self.adapters.push(old),
            }
        }
        self.adapters.sort_by_key(|adapter| adapter.number);
        self.forget_defaults();
    }

    /// Those that are loaded with the model.
    pub fn pinned_adapters(&self) -> Vec<Arc<Adapter>> {
        let pinned = self.adapters.iter().filter(|own| own.config.pinned);
        pinned.cloned().collect()
    }

    /// Drops the default scales of adapters that are gone.
    fn forget_defaults(&mut self) {
        let numbers: Vec<_> = self.adapters.iter().map(|known| known.number).collect();
        self.default_adapters
            .retain(|(number, _)| numbers.contains(number));
    }

    pub fn adapter_statuses(&self) -> Vec<AdapterStatus> {
        let pool = self.loaded().map(|loaded| &loaded.adapters);
        let status = |adapter: &Arc<Adapter>| {
            let activity = pool.map(|pool| pool.activity(adapter)).unwrap_or_default();
            let mut default = self.default_adapters.iter();
            let default = default.find(|(number, _)| *number == adapter.number);
            AdapterStatus {
                name: adapter.name.clone(),
                number: adapter.number,
                pinned: adapter.config.pinned,
                loaded: activity.loaded,
                in_use: activity.users,
                awaited: activity.awaited,
                default_scale: default.map_or(0.0, |(_, scale)| *scale),
            }
        };
        self.adapters.iter().map(status).collect()
    }
}
