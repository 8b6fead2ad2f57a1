//! Retries and cancellation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::HubError;

/// How often a waiting thread checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Why a request failed, and whether a retry may help.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    pub error: HubError,
    again: RetryAdvice,
}

#[derive(Debug)]
enum RetryAdvice {
    Never,
    Soon,
    After(Duration),
}

impl RequestFailure {
    pub(crate) fn lasting(error: HubError) -> Self {
        let again = RetryAdvice::Never;
        Self { error, again }
    }

    pub(crate) fn passing(error: HubError) -> Self {
        let again = RetryAdvice::Soon;
        Self { error, again }
    }

    pub(crate) fn after(wait: Duration, error: HubError) -> Self {
        let again = RetryAdvice::After(wait);
        Self { error, again }
    }
}

/// How often to retry, and how long to wait between attempts.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub retries: u32,
    /// Before the first retry; doubled for each one after it.
    pub backoff: Duration,
}

impl RetryPolicy {
    /// Waits before the retry that follows failure number `failures` (from 1). Returns the error if
    /// there is no retry.
    pub(crate) fn wait(
        &self,
        failures: u32,
        failure: RequestFailure,
        stop: &StopSignal<'_>,
    ) -> Result<(), HubError> {
        let RequestFailure { error, again } = failure;
        let pause = match again {
            RetryAdvice::Never => return Err(error),
            _ if failures > self.retries => return Err(error),
            RetryAdvice::After(wait) => wait,
            RetryAdvice::Soon => self.backoff * 2_u32.saturating_pow(failures - 1),
        };
        tracing::debug!("{error}; trying again in {pause:?}");
        if stop.pause(pause) {
            Err(error)
        } else {
            Ok(())
        }
    }

    pub(crate) fn run<T>(
        &self,
        stop: &StopSignal<'_>,
        mut attempt: impl FnMut() -> Result<T, RequestFailure>,
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

/// Cancels the threads of a fetch or of one file.
#[derive(Debug, Default)]
pub(crate) struct StopSignal<'a> {
    stopped: AtomicBool,
    /// A signal that stops this one too.
    parent: Option<&'a StopSignal<'a>>,
}

impl<'a> StopSignal<'a> {
    pub(crate) fn child_of(parent: &'a StopSignal<'a>) -> Self {
        Self {
            stopped: AtomicBool::new(false),
            parent: Some(parent),
        }
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed) || self.parent.is_some_and(StopSignal::is_stopped)
    }

    /// Sleeps unless stopped; returns whether it is stopped.
    fn pause(&self, duration: Duration) -> bool {
        let end = Instant::now() + duration;
        while !self.is_stopped() && Instant::now() < end {
            thread::sleep(POLL_INTERVAL.min(duration));
        }
        self.is_stopped()
    }
}
