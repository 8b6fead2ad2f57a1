//! Statistics of the engine.

use std::time::{Duration, Instant};

use loquat_kvdisk::DiskStats;
use loquat_session::Memory;

use crate::{CacheStats, SpeculationStats};

/// The engine's state after its last step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// Sequences that hold KV, paused ones included.
    pub running: usize,
    /// Running sequences whose readers lag.
    pub paused: usize,
    /// Queued requests.
    pub waiting: usize,
    /// The session's memory.
    pub memory: Memory,
    /// KV tokens reserved for running sequences. Shared tokens count for each, so the sum may
    /// exceed the capacity.
    pub kv_reserved: usize,
    /// The prefix cache.
    pub cache: CacheStats,
    /// Its prefixes on disk; zeros if they are not stored.
    pub disk: DiskStats,
    /// Drafts of speculative decoding; zeros if nobody proposes any.
    pub speculation: SpeculationStats,
    /// Steps since the engine started.
    pub steps: u64,
    /// Recent mean of the session's part of a step.
    pub step_time: Duration,
    /// Recent mean of the engine's part between two steps: settle, schedule, sample.
    pub overhead: Duration,
    /// Recent prompt tokens per second.
    pub prompt_speed: f64,
    /// Recent generated tokens per second.
    pub decode_speed: f64,
    /// Counts since the engine started.
    pub totals: Totals,
}

/// Counts since the engine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Accepted requests. Each ends as one of the next four.
    pub submitted: u64,
    /// Requests that were answered.
    pub finished: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Cancelled by their readers, or ended with the engine.
    pub cancelled: u64,
    /// Requests that waited longer than they may.
    pub timed_out: u64,
    /// Requests rejected because the queue was full; not counted as submitted.
    pub refused: u64,
    /// Preemptions of running sequences.
    pub preempted: u64,
    /// Pictures, videos and raw embeddings that were encoded; those that were found encoded do not
    /// count.
    pub media_encoded: u64,
    /// Prompt tokens of requests that ran.
    pub prompt_tokens: u64,
    /// Those of them that came from the prefix cache.
    pub cached_tokens: u64,
    /// Tokens sent to readers.
    pub completion_tokens: u64,
}

/// Collects the numbers for [`Stats`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    pub totals: Totals,
    pub steps: u64,
    pub step_time: Duration,
    pub overhead: Duration,
    pub prompt: Rate,
    pub decode: Rate,
    /// When the last session step ended; `None` after idling.
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

    /// Waiting for work is not overhead.
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

/// An exponential mean over a few dozen values.
fn blend(mean: Duration, value: Duration) -> Duration {
    if mean.is_zero() {
        value
    } else {
        (mean * 31 + value) / 32
    }
}

/// Tokens per second over the last window with any tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    since: Instant,
    tokens: usize,
    last: f64,
}

/// Length of a measurement.
const WINDOW: Duration = Duration::from_secs(1);
/// Without a new measurement for this long, the rate is 0.
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
    fn rate_covers_last_second_and_fades() {
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
    fn idle_time_is_not_overhead() {
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
