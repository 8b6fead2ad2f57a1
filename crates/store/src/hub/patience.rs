//! When to try again, and when to stop trying.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::HubError;

/// How often a thread that waits looks whether it is over.
const GLANCE: Duration = Duration::from_millis(50);

/// Why a request failed, and whether trying again may help.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: HubError,
    again: Again,
}

#[derive(Debug)]
enum Again {
    Never,
    Soon,
    After(Duration),
}

impl Failure {
    pub(crate) fn lasting(error: HubError) -> Self {
        let again = Again::Never;
        Self { error, again }
    }

    pub(crate) fn passing(error: HubError) -> Self {
        let again = Again::Soon;
        Self { error, again }
    }

    pub(crate) fn after(wait: Duration, error: HubError) -> Self {
        let again = Again::After(wait);
        Self { error, again }
    }
}

/// How often to try again, and how long to wait before.
#[derive(Debug, Clone)]
pub struct Patience {
    pub retries: u32,
    /// Before the first retry; doubled for each one after it.
    pub backoff: Duration,
}

impl Patience {
    /// Waits before the retry that follows failure number `failures` (from 1), or gives the error
    /// back when there is to be none.
    pub(crate) fn wait(
        &self,
        failures: u32,
        failure: Failure,
        stop: &Stop<'_>,
    ) -> Result<(), HubError> {
        let Failure { error, again } = failure;
        let pause = match again {
            Again::Never => return Err(error),
            _ if failures > self.retries => return Err(error),
            Again::After(wait) => wait,
            Again::Soon => self.backoff * 2_u32.saturating_pow(failures - 1),
        };
        tracing::debug!("{error}; trying again in {pause:?}");
        if stop.pause(pause) {
            Err(error)
        } else {
            Ok(())
        }
    }

    pub(crate) fn persist<T>(
        &self,
        stop: &Stop<'_>,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, HubError> {
        let mut failures = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => {
                    failures += 1;
                    self.wait(failures, failure, stop)?;
                }
            }
        }
    }
}

/// Tells the threads of a fetch, or of one file of it, that it is over.
#[derive(Debug, Default)]
pub(crate) struct Stop<'a> {
    over: AtomicBool,
    /// What this is a part of, and ends with.
    whole: Option<&'a Stop<'a>>,
}

impl<'a> Stop<'a> {
    pub(crate) fn part_of(whole: &'a Stop<'a>) -> Self {
        Self {
            over: AtomicBool::new(false),
            whole: Some(whole),
        }
    }

    pub(crate) fn now(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || self.whole.is_some_and(Stop::is_over)
    }

    /// Waits so long or until it is over, and says whether it is.
    fn pause(&self, duration: Duration) -> bool {
        let end = Instant::now() + duration;
        while !self.is_over() && Instant::now() < end {
            thread::sleep(GLANCE.min(duration));
        }
        self.is_over()
    }
}
