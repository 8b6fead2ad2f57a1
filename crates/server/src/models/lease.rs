//! Models in use.

use std::ops::Deref;
use std::sync::Arc;

use super::Loaded;
use super::registry::Inner;
use super::slot::SlotId;

/// A model in use: while any lease is held it is not unloaded.
#[derive(Clone)]
pub struct Lease {
    // Dropped before the hold: when the last hold is released, the keeper has the only reference,
    // and the engine ends on its thread.
    loaded: Arc<Loaded>,
    _hold: Hold,
}

impl Lease {
    /// For a slot that has already counted this lease.
    pub(super) fn counted(inner: &Arc<Inner>, slot: SlotId, loaded: Arc<Loaded>) -> Self {
        let _hold = Hold {
            inner: Arc::clone(inner),
            slot,
        };
        Self { loaded, _hold }
    }
}

impl Deref for Lease {
    type Target = Loaded;

    fn deref(&self) -> &Loaded {
        &self.loaded
    }
}

/// One of the counted leases of a slot.
struct Hold {
    inner: Arc<Inner>,
    slot: SlotId,
}

impl Clone for Hold {
    fn clone(&self) -> Self {
        self.inner.hold(self.slot);
        Self {
            inner: Arc::clone(&self.inner),
            slot: self.slot,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inner.release(self.slot);
    }
}
