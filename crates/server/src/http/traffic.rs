//! How much is going on, and whether more is welcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// Requests between the end of their headers and the end of their answer.
#[derive(Debug)]
pub struct Traffic {
    requests: Arc<watch::Sender<usize>>,
    stopping: AtomicBool,
}

/// Counts as a request until it is dropped.
#[derive(Debug)]
pub struct Passing(Arc<watch::Sender<usize>>);

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests: Arc::new(watch::Sender::new(0)),
            stopping: AtomicBool::new(false),
        }
    }
}

impl Traffic {
    pub fn enter(&self) -> Passing {
        self.requests.send_modify(|count| *count += 1);
        Passing(Arc::clone(&self.requests))
    }

    pub fn requests(&self) -> usize {
        *self.requests.borrow()
    }

    /// Returns at a moment when no request is under way.
    pub async fn none(&self) {
        let mut requests = self.requests.subscribe();
        // Fails when the sender is gone, and we hold it.
        let _ = requests.wait_for(|count| *count == 0).await;
    }

    /// From now on new work is refused.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
