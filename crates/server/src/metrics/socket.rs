//! Times tokens from the engine to the socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::Histogram;

/// Called with each token's time from the engine to the socket.
pub type Watcher = Arc<dyn Fn(Duration) + Send + Sync>;

/// One connection's clock. The reader of engine events reports when each was sent, the socket when it
/// wrote.
///
/// Concurrent HTTP/2 requests share the clock: a non-streamed response has its tokens timed by other
/// requests' writes, and forgetting it forgets theirs that are pending. Both are rare next to a
/// stream's.
pub struct SocketClock {
    times: Histogram,
    watcher: Option<Watcher>,
    /// Pending tokens: few, since a write follows as soon as no more are ready.
    under_way: Mutex<Vec<Instant>>,
}

impl SocketClock {
    pub fn new(times: Histogram, watcher: Option<Watcher>) -> Self {
        Self {
            times,
            watcher,
            under_way: Mutex::default(),
        }
    }

    /// An event will be written next.
    pub fn took(&self, sent_at: Instant) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        under_way.push(sent_at);
    }

    /// Drops pending tokens: they belong to a response that is not streamed.
    pub fn forget(&self) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // A response may have many.
        *under_way = Vec::new();
    }

    /// The socket wrote, and with it all pending tokens.
    pub fn written(&self) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if under_way.is_empty() {
            return;
        }
        let now = Instant::now();
        for sent_at in under_way.drain(..) {
            let took = now.saturating_duration_since(sent_at);
            self.times.observe(took.as_secs_f64());
            if let Some(watcher) = &self.watcher {
                watcher(took);
            }
        }
    }
}

impl std::fmt::Debug for SocketClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SocketClock").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::HistogramOpts;

    use super::*;

    #[test]
    fn next_write_times_each_token_once() {
        let times = Histogram::with_opts(HistogramOpts::new("times", "times")).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let watcher: Watcher = {
            let seen = Arc::clone(&seen);
            Arc::new(move |time| seen.lock().unwrap().push(time))
        };
        let clock = SocketClock::new(times.clone(), Some(watcher));
        clock.written();
        assert_eq!(times.get_sample_count(), 0);
        let sent_at = Instant::now();
        clock.took(sent_at);
        clock.took(sent_at);
        std::thread::sleep(Duration::from_millis(2));
        clock.written();
        clock.written();
        assert_eq!(times.get_sample_count(), 2);
        clock.took(sent_at);
        clock.forget();
        clock.written();
        assert_eq!(times.get_sample_count(), 2);
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 2);
        assert!(seen.iter().all(|time| *time >= Duration::from_millis(2)));
    }
}
