//! Counts requests under way, and refuses new work during shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Requests under way, until the end of their responses.
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
pub struct TrafficGuard(Count);

impl Traffic {
    pub fn enter(&self) -> TrafficGuard {
        self.requests.enter()
    }

    pub fn requests(&self) -> usize {
        *self.requests.0.borrow()
    }

    /// Returns when the number of requests satisfies `is`.
    pub async fn requests_are(&self, is: impl Fn(usize) -> bool) {
        let mut requests = self.requests.0.subscribe();
        // Fails only without a sender, and `self` holds it.
        let _ = requests.wait_for(|count| is(*count)).await;
    }

    /// Counts a request that uses models, unless new work is refused.
    pub fn work(&self) -> Option<TrafficGuard> {
        // Counted before the check, so that `idle` waits for work that `stop` was too late for.
        let guard = self.work.enter();
        (!self.is_stopping()).then_some(guard)
    }

    pub fn working(&self) -> usize {
        *self.work.0.borrow()
    }

    /// Returns when no request uses models.
    pub async fn idle(&self) {
        let mut work = self.work.0.subscribe();
        // Fails only without a sender, and `self` holds it.
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
    fn enter(&self) -> TrafficGuard {
        self.0.send_modify(|count| *count += 1);
        TrafficGuard(self.clone())
    }
}

impl Drop for TrafficGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
