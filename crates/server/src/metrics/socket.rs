//! How long tokens take from the engine to the socket.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::Histogram;

/// Told every time it takes a token from the engine to the socket.
pub type Watcher = Arc<dyn Fn(Duration) + Send + Sync>;

/// One connection's. Whoever reads the engine's events says when each was sent; whoever writes to
/// the socket says when it did.
///
/// HTTP/2 has several requests on a connection at once, and this does not tell them apart: an
/// answer in one piece has its tokens timed by its neighbours' writes until it is whole, and takes
/// those of theirs along that are under way when it is forgotten. Both are few beside a stream's.
pub struct SocketClock {
    times: Histogram,
    watcher: Option<Watcher>,
    /// Of tokens on their way: few, as a write follows whenever no more are to be had.
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

    /// An event was taken, to be written next.
    pub fn took(&self, sent_at: Instant) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        under_way.push(sent_at);
    }

    /// What was taken went into an answer in one piece, whose time is not the socket's.
    pub fn forget(&self) {
        let mut under_way = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // An answer may have had many.
        *under_way = Vec::new();
    }

    /// The socket took something: with it what was under way.
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
    fn each_token_is_timed_once_by_the_write_that_follows() {
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
