//! Restarts models whose step hangs.
//!
//! The engine's thread is stuck in the backend and cannot be stopped. It is abandoned: its requests
//! fail, and the model is opened again, unless it was being unloaded. The thread keeps its memory until
//! the step returns.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Models;
use super::registry::Inner;

/// Runs until the registry is dropped.
pub async fn run(models: Weak<Inner>) {
    loop {
        let Some(pause) = models.upgrade().map(|inner| inner.restart_hung()) else {
            return;
        };
        tokio::time::sleep(pause).await;
    }
}

impl Inner {
    /// Abandons models whose step exceeds its timeout, and opens those again that were in use. Returns when to look
    /// again: a timeout is exceeded by a quarter at most, and never by more than a second.
    fn restart_hung(self: &Arc<Self>) -> Duration {
        let mut shortest = Duration::MAX;
        let mut abandoned = Vec::new();
        let mut state = self.lock();
        for slot in &mut state.slots {
            let limit = slot.model.step_timeout;
            shortest = shortest.min(limit);
            let Some(monitor) = slot.step_monitor() else {
                continue;
            };
            let Some(time) = monitor.step_time().filter(|time| *time >= limit) else {
                continue;
            };
            let was_ready = slot.is_ready();
            tracing::error!(
                model = slot.model.name,
                seconds = time.as_secs_f64(),
                opens_again = was_ready,
                "a step hangs: the model's requests fail"
            );
            monitor.abandon();
            slot.drain();
            abandoned.push((slot.model.name.clone(), was_ready));
        }
        drop(state);
        for (name, was_ready) in abandoned {
            self.wake.notify_one();
            if !was_ready {
                continue;
            }
            let models = Models {
                inner: Arc::clone(self),
            };
            // The log and the model's state have the outcome.
            tokio::spawn(async move { models.lease(&name).await.map(drop) });
        }
        (shortest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1))
    }
}
