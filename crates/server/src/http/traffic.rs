//! How much is going on, and whether more is welcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// What is under way, until the end of its answer.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Requests, from the end of their headers.
    requests: Count,
    /// Those of them that use models.
    work: Count,
    stopping: AtomicBool,
}

#[derive(Debug, Clone, Default)]
struct Count(Arc<watch::Sender<usize>>);

/// Counts until it is dropped.
#[derive(Debug)]
pub struct Passing(Count);

impl Traffic {
    pub fn enter(&self) -> Passing {
        self.requests.enter()
    }

    pub fn requests(&self) -> usize {
        *self.requests.0.borrow()
    }

    /// What uses models, unless new work is refused.
    pub fn work(&self) -> Option<Passing> {
        // Counted before the look: what `stop` came too late for, `idle` waits for.
        let passing = self.work.enter();
        (!self.is_stopping()).then_some(passing)
    }

    pub fn working(&self) -> usize {
        *self.work.0.borrow()
    }

    /// Returns at a moment when nothing uses models.
    pub async fn idle(&self) {
        let mut work = self.work.0.subscribe();
        // Fails when the sender is gone, and we hold it.
        let _ = work.wait_for(|count| *count == 0).await;
    }

    /// From now on new work is refused.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Count {
    fn enter(&self) -> Passing {
        self.0.send_modify(|count| *count += 1);
        Passing(self.clone())
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
