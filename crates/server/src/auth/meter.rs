//! How much a key was used, and how much more it may be now.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loquat_engine::Usage;

use crate::config;
use crate::error::{ApiError, ErrorKind};

/// What a key was used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyUsage {
    /// Those that were let in.
    pub requests: u64,
    /// Those that came too often, or too many at once.
    pub refused: u64,
    pub prompt_tokens: u64,
    /// Those of the prompt that were not computed again.
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Requests under way.
    pub running: u32,
}

/// Counts of one key, whatever its limits are at the time.
#[derive(Debug, Default)]
pub struct Meter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    usage: KeyUsage,
    requests: Bucket,
    tokens: Bucket,
}

/// A request under way, until it is dropped.
#[derive(Debug)]
pub struct Admitted(Arc<Meter>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.lock().usage.running -= 1;
    }
}

/// What is left of a limit per minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub limit: u32,
    pub remaining: u32,
    /// Until all of it is there again.
    pub reset: Duration,
}

/// What is left of both of a key's, where it has them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub requests: Option<Rate>,
    pub tokens: Option<Rate>,
}

impl Meter {
    /// Lets a request in, or says when to come again.
    pub fn admit(
        self: &Arc<Self>,
        limits: &config::Key,
        now: Instant,
    ) -> Result<Admitted, ApiError> {
        let mut state = self.lock();
        match state.refusal(limits, now) {
            Some(refusal) => {
                state.usage.refused += 1;
                Err(refusal)
            }
            None => {
                if limits.requests_per_minute.is_some() {
                    state.requests.take(1.0);
                }
                state.usage.requests += 1;
                state.usage.running += 1;
                Ok(Admitted(Arc::clone(self)))
            }
        }
    }

    /// Tokens are known when a request has ended, and taken then: the limit is a mean, which one
    /// request may exceed and those after it wait for.
    pub fn used(&self, limits: &config::Key, usage: &Usage) {
        let mut state = self.lock();
        if limits.tokens_per_minute.is_some() {
            let tokens = usage.prompt_tokens + usage.completion_tokens;
            state.tokens.take(tokens as f64);
        }
        state.usage.prompt_tokens += usage.prompt_tokens as u64;
        state.usage.cached_tokens += usage.cached_tokens as u64;
        state.usage.completion_tokens += usage.completion_tokens as u64;
    }

    pub fn usage(&self) -> KeyUsage {
        self.lock().usage
    }

    pub fn rates(&self, limits: &config::Key, now: Instant) -> Rates {
        let mut state = self.lock();
        Rates {
            requests: limits
                .requests_per_minute
                .map(|limit| state.requests.rate(limit, now)),
            tokens: limits
                .tokens_per_minute
                .map(|limit| state.tokens.rate(limit, now)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn refusal(&mut self, limits: &config::Key, now: Instant) -> Option<ApiError> {
        if let Some(limit) = limits.requests_per_minute
            && let Some(wait) = self.requests.wait(limit, now)
        {
            let what = format!("this key may make {limit} requests a minute");
            return Some(too_many(what, "rate_limit_exceeded", wait));
        }
        if let Some(limit) = limits.tokens_per_minute
            && let Some(wait) = self.tokens.wait(limit, now)
        {
            let what = format!("this key may use {limit} tokens a minute");
            return Some(too_many(what, "rate_limit_exceeded", wait));
        }
        let limit = limits.concurrent?;
        (self.usage.running >= limit).then(|| {
            let what = format!("this key may make {limit} requests at once");
            too_many(what, "concurrency_limit_exceeded", Duration::from_secs(1))
        })
    }
}

fn too_many(what: String, code: &'static str, wait: Duration) -> ApiError {
    ApiError {
        retry_after: Some(wait),
        ..ApiError::new(ErrorKind::RateLimited, what)
    }
    .code(code)
}

/// Fills up evenly to a minute's worth. It may be in debt.
#[derive(Debug, Default)]
struct Bucket {
    /// What is missing from a full one, so that a change of the limit leaves debts as they are.
    taken: f64,
    at: Option<Instant>,
}

impl Bucket {
    fn take(&mut self, amount: f64) {
        self.taken += amount;
    }

    fn refill(&mut self, limit: u32, now: Instant) {
        if let Some(before) = self.at {
            let elapsed = now.saturating_duration_since(before).as_secs_f64();
            self.taken = (self.taken - elapsed * per_second(limit)).max(0.0);
        }
        self.at = Some(now);
    }

    /// How long until there is one; `None` where there is.
    fn wait(&mut self, limit: u32, now: Instant) -> Option<Duration> {
        self.refill(limit, now);
        let missing = self.taken + 1.0 - f64::from(limit);
        (missing > 0.0).then(|| duration(missing, limit))
    }

    fn rate(&mut self, limit: u32, now: Instant) -> Rate {
        self.refill(limit, now);
        Rate {
            limit,
            remaining: (f64::from(limit) - self.taken).max(0.0) as u32,
            reset: duration(self.taken, limit),
        }
    }
}

fn per_second(limit: u32) -> f64 {
    f64::from(limit) / 60.0
}

/// A limit of nothing never fills up; an hour is as good as never.
fn duration(amount: f64, limit: u32) -> Duration {
    const HOUR: f64 = 3600.0;
    Duration::from_secs_f64((amount / per_second(limit)).min(HOUR))
}
