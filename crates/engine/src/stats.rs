//! What the engine is doing and has done, for servers, benchmarks and people.

use std::time::{Duration, Instant};

use loquat_session::Memory;

use crate::CacheStats;

/// A look at the engine as its last step ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// Sequences that hold KV, paused ones included.
    pub running: usize,
    /// Running sequences whose readers lag behind.
    pub paused: usize,
    /// Requests that wait for room.
    pub waiting: usize,
    pub memory: Memory,
    /// KV tokens set aside for the running sequences, whether computed yet or not. What they
    /// share counts for each, so that they may come to more than there is.
    pub kv_reserved: usize,
    pub cache: CacheStats,
    pub steps: u64,
    /// The session's part of a step, in the recent mean.
    pub step_time: Duration,
    /// The engine's own part between two steps: settle, schedule, sample.
    pub overhead: Duration,
    /// Prompt tokens computed per second, of late.
    pub prompt_speed: f64,
    /// Tokens generated per second, of late.
    pub decode_speed: f64,
    pub totals: Totals,
}

/// Counts since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests accepted. Each ends as one of the next four.
    pub submitted: u64,
    pub finished: u64,
    pub failed: u64,
    /// Dropped by their readers, or ended with the engine.
    pub cancelled: u64,
    pub timed_out: u64,
    /// Requests turned away because the queue was full; not among the accepted.
    pub refused: u64,
    /// Times that a running sequence had to make room, and was computed again later.
    pub preempted: u64,
    /// Prompt tokens of accepted requests that ran…
    pub prompt_tokens: u64,
    /// …and those of them that were not computed again.
    pub cached_tokens: u64,
    /// Tokens sent to readers.
    pub completion_tokens: u64,
}

/// Keeps the counts that [`Stats`] are made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    pub totals: Totals,
    pub steps: u64,
    pub step_time: Duration,
    pub overhead: Duration,
    pub prompt: Rate,
    pub decode: Rate,
    /// When the last step's session part ended, unless the engine slept since.
    step_ended: Option<Instant>,
}

impl Meter {
    pub fn new(now: Instant) -> Self {
        Self {
            totals: Totals::default(),
            steps: 0,
            step_time: Duration::ZERO,
            overhead: Duration::ZERO,
            prompt: Rate::new(now),
            decode: Rate::new(now),
            step_ended: None,
        }
    }

    /// The engine waits for something to do; that is nobody's overhead.
    pub fn idle(&mut self) {
        self.step_ended = None;
    }

    pub fn step(&mut self, started: Instant, ended: Instant) {
        if let Some(before) = self.step_ended {
            self.overhead = blend(self.overhead, started.saturating_duration_since(before));
        }
        self.step_ended = Some(ended);
        self.step_time = blend(self.step_time, ended.saturating_duration_since(started));
        self.steps += 1;
    }
}

/// A mean in which the last few dozen values count.
fn blend(mean: Duration, value: Duration) -> Duration {
    if mean.is_zero() {
        value
    } else {
        (mean * 31 + value) / 32
    }
}

/// Tokens per second over the last whole second or more in which there were any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    since: Instant,
    tokens: usize,
    last: f64,
}

/// How long a measurement takes.
const WINDOW: Duration = Duration::from_secs(1);
/// After this long without a new one, nothing is going on.
const STALE: Duration = Duration::from_secs(3);

impl Rate {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            tokens: 0,
            last: 0.0,
        }
    }

    pub fn add(&mut self, tokens: usize, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= WINDOW {
            self.last = if passed < STALE {
                self.tokens as f64 / passed.as_secs_f64()
            } else {
                0.0
            };
            (self.since, self.tokens) = (now, 0);
        }
        self.tokens += tokens;
    }

    pub fn per_second(&self, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.since);
        match passed {
            _ if passed >= STALE => 0.0,
            _ if passed >= WINDOW => self.tokens as f64 / passed.as_secs_f64(),
            _ => self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_last_second_and_fades() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut rate = Rate::new(start);
        for tenth in 0..20 {
            rate.add(5, at(tenth * 100));
        }
        assert_eq!(rate.per_second(at(1900)), 50.0);
        assert_eq!(rate.per_second(at(2000)), 50.0);
        assert_eq!(rate.per_second(at(9000)), 0.0);
        rate.add(5, at(9000));
        assert_eq!(rate.per_second(at(9100)), 0.0);
        assert_eq!(rate.per_second(at(10_000)), 5.0);
    }

    #[test]
    fn sleep_is_not_overhead() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut meter = Meter::new(start);
        meter.step(at(0), at(10));
        meter.step(at(11), at(21));
        assert_eq!(meter.overhead, Duration::from_millis(1));
        meter.idle();
        meter.step(at(5000), at(5010));
        assert_eq!(meter.overhead, Duration::from_millis(1));
        assert_eq!(meter.step_time, Duration::from_millis(10));
    }
}
