//! Closes models that are idle or draining.

use std::sync::{Arc, Weak};

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::Loaded;
use super::registry::Inner;
use super::slot::{Phase, SlotId};

/// Runs until the registry is dropped. `wake` signals that a model became idle or is draining.
pub async fn run(models: Weak<Inner>, wake: Arc<Notify>) {
    loop {
        let Some(next) = models.upgrade().map(|inner| inner.sweep()) else {
            return;
        };
        match next {
            Some(deadline) => _ = timeout_at(deadline, wake.notified()).await,
            None => wake.notified().await,
        }
    }
}

impl Inner {
    /// Closes idle models, and returns when to sweep again.
    fn sweep(self: &Arc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.lock();
        let mut next = None;
        for slot in &mut state.slots {
            match slot.deadline() {
                Some(deadline) if deadline <= now => {
                    tracing::info!(model = slot.model.name, "unloading: idle");
                    slot.drain();
                }
                Some(deadline) => next = Some(next.map_or(deadline, |next| deadline.min(next))),
                None => {}
            }
            if let Phase::Draining(loaded) = &slot.phase
                && slot.is_idle()
            {
                let loaded = Arc::clone(loaded);
                let bytes = loaded.resident_bytes;
                let monitor = loaded.engine().step_monitor();
                slot.phase = Phase::Closing { bytes, monitor };
                tokio::spawn(Arc::clone(self).close(slot.id, loaded));
            }
        }
        next
    }

    async fn close(self: Arc<Self>, id: SlotId, loaded: Arc<Loaded>) {
        // Joins the engine's thread and frees its memory.
        let closed = tokio::task::spawn_blocking(move || drop(loaded)).await;
        if let Err(error) = closed {
            tracing::error!("closing a model failed: {error}");
        }
        let mut state = self.lock();
        if let Some(slot) = state.slot(id) {
            tracing::info!(model = slot.model.name, "unloaded");
            slot.phase = Phase::Unloaded;
            slot.keep_alive = None;
            slot.closings += 1;
        }
        state.slots.retain(|slot| slot.id != id || !slot.retired);
        drop(state);
        self.changed();
    }
}
