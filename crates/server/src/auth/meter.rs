//! A key's usage and rate limits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use loquat_engine::Usage;

use crate::config;
use crate::error::{ApiError, ErrorKind};

/// A key's usage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyUsage {
    /// Admitted.
    pub requests: u64,
    /// Refused by a limit.
    pub refused: u64,
    pub prompt_tokens: u64,
    /// Prompt tokens from the prefix cache.
    pub cached_tokens: u64,
    pub completion_tokens: u64,
    /// Running requests.
    pub running: u32,
}

/// Counts of one key, independent of its current limits.
#[derive(Debug, Default)]
pub struct Meter {
    state: Mutex<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    usage: KeyUsage,
    requests: Bucket,
    tokens: Bucket,
}

/// A running request, until it is dropped.
#[derive(Debug)]
pub struct Admitted(Arc<Meter>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.lock().usage.running -= 1;
    }
}

/// The rest of a limit per minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub limit: u32,
    pub remaining: u32,
    /// Until the limit is full again.
    pub reset: Duration,
}

/// The rest of a key's limits, if it has them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    pub requests: Option<Rate>,
    pub tokens: Option<Rate>,
}

impl Meter {
    /// Admits a request, or returns when to retry.
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
                    state.requests.withdraw(1.0);
                }
                state.usage.requests += 1;
                state.usage.running += 1;
                Ok(Admitted(Arc::clone(self)))
            }
        }
    }

    /// Charges a finished request's tokens. They are known only now: one request may exceed the
    /// limit, and later requests wait.
    pub fn used(&self, limits: &config::Key, usage: &Usage) {
        let mut state = self.lock();
        if limits.tokens_per_minute.is_some() {
            let tokens = usage.prompt_tokens + usage.completion_tokens;
            state.tokens.withdraw(tokens as f64);
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

    fn lock(&self) -> MutexGuard<'_, MeterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MeterState {
    fn refusal(&mut self, limits: &config::Key, now: Instant) -> Option<ApiError> {
        if let Some(limit) = limits.requests_per_minute
            && let Some(wait) = self.requests.wait(limit, now)
        {
            let what = format!("this key is limited to {limit} requests per minute");
            return Some(too_many(what, "rate_limit_exceeded", wait));
        }
        if let Some(limit) = limits.tokens_per_minute
            && let Some(wait) = self.tokens.wait(limit, now)
        {
            let what = format!("this key is limited to {limit} tokens per minute");
            return Some(too_many(what, "rate_limit_exceeded", wait));
        }
        let limit = limits.concurrent?;
        (self.usage.running >= limit).then(|| {
            let what = format!("this key is limited to {limit} concurrent requests");
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

/// A token bucket that holds a minute's worth. It may be in debt.
#[derive(Debug, Default)]
struct Bucket {
    /// The amount missing from a full bucket, so that changing the limit keeps debts.
    taken: f64,
    at: Option<Instant>,
}

impl Bucket {
    fn withdraw(&mut self, amount: f64) {
        self.taken += amount;
    }

    fn refill(&mut self, limit: u32, now: Instant) {
        if let Some(before) = self.at {
            let elapsed = now.saturating_duration_since(before).as_secs_f64();
            self.taken = (self.taken - elapsed * per_second(limit)).max(0.0);
        }
        self.at = Some(now);
    }

    /// How long until a unit is available; `None` if one is.
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

/// A limit of 0 never refills; reports an hour.
fn duration(amount: f64, limit: u32) -> Duration {
    const HOUR: f64 = 3600.0;
    Duration::from_secs_f64((amount / per_second(limit)).min(HOUR))
}
