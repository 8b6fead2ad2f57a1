//! How fast the writer may work, so that it delays no step.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// While steps are computed, the writer works in pieces of some microseconds, and rests this many
/// times as long after each: a core that a step shares with it is lost to the step for a hundredth of
/// the time, and never for long.
const REST: u32 = 99;

/// Whether the writer's user computes. A new one does not.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    computing: Mutex<bool>,
    changed: Condvar,
}

impl Pace {
    /// Lets the writer work slowly from now on, or at its full speed.
    pub fn set_computing(&self, computing: bool) {
        let mut known = self
            .computing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *known, computing) != computing {
            self.changed.notify_all();
        }
    }

    /// Rests after a piece of work that began at this time, unless nothing is computed.
    pub fn rest(&self, began: Instant) {
        let computing = self
            .computing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *computing {
            let worked = began.elapsed().max(Duration::from_micros(1));
            // What is poisoned or timed out is over all the same.
            let rested = self
                .changed
                .wait_timeout_while(computing, worked * REST, |computing| *computing);
            drop(rested);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn writer_rests_only_while_something_is_computed() {
        let pace = Arc::new(Pace::default());
        let worked = Duration::from_secs(60);
        let long_ago = Instant::now().checked_sub(worked).unwrap();
        let began = Instant::now();
        pace.rest(long_ago);
        pace.set_computing(true);
        let resting = std::thread::spawn({
            let pace = Arc::clone(&pace);
            move || pace.rest(long_ago)
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!resting.is_finished(), "it rests 99 minutes");
        pace.set_computing(false);
        resting.join().unwrap();
        assert!(began.elapsed() < worked);
        pace.set_computing(true);
        let began = Instant::now();
        pace.rest(began);
        assert!(began.elapsed() >= Duration::from_micros(99));
    }
}
