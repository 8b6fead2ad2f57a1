//! Leases of models.

use std::ops::Deref;
use std::sync::Arc;

use loquat_session::AppliedAdapter;

use super::Loaded;
use super::adapters::{Adapter, AdapterError, AdapterLoader, AdapterPool, AdapterUse};
use super::registry::Inner;
use super::slot::SlotId;

/// A model in use, with the adapters of a request. Neither is unloaded while a lease is held.
#[derive(Clone)]
pub struct Lease {
    // Dropped before the count: once no lease is counted, the unloader has the only reference, and
    // the engine ends on its thread.
    loaded: Arc<Loaded>,
    adapters: Arc<[AdapterUse]>,
    /// The name of the adapter that the request chose.
    adapter_name: Option<Arc<str>>,
    count: LeaseCount,
}

impl Lease {
    /// A lease that the slot has already counted.
    pub(super) fn counted(inner: &Arc<Inner>, slot: SlotId, loaded: Arc<Loaded>) -> Self {
        let count = LeaseCount {
            inner: Arc::clone(inner),
            slot,
        };
        Self {
            loaded,
            adapters: Arc::default(),
            adapter_name: None,
            count,
        }
    }

    /// The name for answers: of the adapter that the request chose, or of the model.
    pub fn name(&self) -> &str {
        self.adapter_name.as_deref().unwrap_or(&self.loaded.id)
    }

    /// The same lease for a request that chose an adapter by this name.
    pub(super) fn named(self, name: &str) -> Self {
        Self {
            adapter_name: Some(name.into()),
            ..self
        }
    }

    /// Whether the request chose an adapter by the model's name.
    pub fn names_adapter(&self) -> bool {
        self.adapter_name.is_some()
    }

    /// The adapters for the engine.
    pub fn applied(&self) -> Vec<AppliedAdapter> {
        self.adapters.iter().map(AdapterUse::applied).collect()
    }

    /// The same lease with these adapters instead of its own, loaded if necessary.
    pub(super) async fn with_adapters(
        mut self,
        wanted: Vec<(Arc<Adapter>, f32)>,
    ) -> Result<Self, (String, AdapterError)> {
        // Its own are released first: they may have to make room.
        self.adapters = Arc::default();
        let wanted: Vec<_> = wanted
            .into_iter()
            .filter(|(_, scale)| *scale != 0.0)
            .collect();
        if !wanted.is_empty() {
            let pool = Arc::clone(self.pool());
            self.adapters = pool.acquire(self.loader(), wanted).await?.into();
        }
        Ok(self)
    }

    fn loader(&self) -> AdapterLoader {
        AdapterLoader {
            model: self.loaded.model.clone(),
            opener: Arc::clone(&self.count.inner.opener),
        }
    }

    /// The adapters that the engine holds.
    pub(super) fn pool(&self) -> &Arc<AdapterPool> {
        &self.loaded.adapters
    }

    pub(super) fn slot(&self) -> SlotId {
        self.count.slot
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

/// Counts a lease of a slot.
struct LeaseCount {
    inner: Arc<Inner>,
    slot: SlotId,
}

impl Clone for LeaseCount {
    fn clone(&self) -> Self {
        self.inner.count_lease(self.slot);
        Self {
            inner: Arc::clone(&self.inner),
            slot: self.slot,
        }
    }
}

impl Drop for LeaseCount {
    fn drop(&mut self) {
        self.inner.release(self.slot);
    }
}
