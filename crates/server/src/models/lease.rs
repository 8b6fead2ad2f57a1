//! Leases of models.

use std::ops::Deref;
use std::sync::Arc;

use super::Loaded;
use super::registry::Inner;
use super::slot::SlotId;

/// A model in use. It is not unloaded while a lease is held.
#[derive(Clone)]
pub struct Lease {
    // Dropped before the count: once no lease is counted, the unloader has the only reference, and
    // the engine ends on its thread.
    loaded: Arc<Loaded>,
    _count: LeaseCount,
}

impl Lease {
    /// A lease that the slot has already counted.
    pub(super) fn counted(inner: &Arc<Inner>, slot: SlotId, loaded: Arc<Loaded>) -> Self {
        let _count = LeaseCount {
            inner: Arc::clone(inner),
            slot,
        };
        Self { loaded, _count }
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
