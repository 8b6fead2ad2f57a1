//! Limits the prompt tokens of a step, so that running streams slow down by a bounded factor.
//!
//! The cost of a prompt token is measured: the difference between steps with and without prompts.
//! It is paid from a credit that every step refills in proportion to its length.

use std::time::Duration;

/// Steps with prompts between two that measure the streams alone.
const MEASURE_INTERVAL: usize = 32;
/// The most consecutive steps without prompt tokens: prompts always progress.
const MAX_HELD_BACK_STEPS: usize = 16;
/// Weight of a new measurement in the running mean.
const BLEND_WEIGHT: f64 = 0.25;
/// A step this many times longer than expected is an outlier.
const OUTLIER_FACTOR: f64 = 3.0;
/// The target as a share of the bound, because measurements are noisy.
const TARGET_SHARE: f64 = 0.85;
/// Prompt tokens of the first measurement.
const FIRST_ALLOWANCE: usize = 8;

#[derive(Debug)]
pub(crate) struct PromptPacer {
    /// Extra time for prompts, relative to a step without them; `None` for no bound.
    share: Option<f64>,
    /// Seconds of a step by its number of streams, without prompts; 0 if not measured.
    alone: Vec<f64>,
    /// Seconds that one prompt token adds to a step.
    token: Option<f64>,
    /// Seconds available for prompts now.
    credit: f64,
    /// Steps with prompts since the streams were measured alone.
    unmeasured: usize,
    held_back: usize,
}

impl PromptPacer {
    /// Bounds the slowdown of running streams to `max_slowdown`.
    pub fn new(max_slowdown: f32, max_running: usize) -> Self {
        let share = f64::from(max_slowdown) - 1.0;
        Self {
            share: share.is_finite().then_some(share * TARGET_SHARE),
            alone: vec![0.0; max_running + 1],
            token: None,
            credit: 0.0,
            unmeasured: 0,
            held_back: 0,
        }
    }

    /// How many of `most` prompt tokens fit a step with `streams` streams.
    pub fn allowance(&mut self, streams: usize, most: usize) -> usize {
        if streams == 0 || self.share.is_none() || most == 0 {
            return most;
        }
        let granted = self.affordable(streams).min(most);
        if granted > 0 {
            self.held_back = 0;
            return granted;
        }
        self.held_back += 1;
        if self.held_back <= MAX_HELD_BACK_STEPS {
            return 0;
        }
        self.held_back = 0;
        1
    }

    fn affordable(&self, streams: usize) -> usize {
        let alone = self.alone.get(streams).copied().unwrap_or(0.0);
        if alone == 0.0 || self.unmeasured >= MEASURE_INTERVAL {
            return 0;
        }
        match self.token {
            None => FIRST_ALLOWANCE,
            // Below the measurement noise.
            Some(token) if token < alone * 1e-6 => usize::MAX,
            Some(token) => (self.credit / token) as usize,
        }
    }

    /// Records a step's duration.
    pub fn record(&mut self, streams: usize, prompt_tokens: usize, record_event: Duration) {
        let (Some(share), Some(alone)) = (self.share, self.alone.get_mut(streams)) else {
            return;
        };
        if streams == 0 {
            return;
        }
        let record_event = record_event.as_secs_f64();
        if prompt_tokens == 0 {
            *alone = blend(*alone, record_event);
            self.unmeasured = 0;
        } else {
            self.unmeasured += 1;
        }
        let alone = *alone;
        if alone == 0.0 {
            return;
        }
        if prompt_tokens > 0 {
            let extra = (record_event - alone).max(0.0);
            let token = extra / prompt_tokens as f64;
            let known = self.token.unwrap_or(0.0);
            self.token = Some(blend(known, token));
            self.credit -= extra;
        }
        // Save enough for a token that costs more than a step, but not more: unused credit must not
        // stall the streams later.
        let income = share * alone;
        let most = (2.0 * income).max(self.token.unwrap_or(0.0) * 1.01);
        self.credit = (self.credit + income).clamp(-4.0 * income, most);
    }
}

/// A running mean that ignores outliers.
fn blend(known: f64, measured: f64) -> f64 {
    match known {
        0.0 => measured,
        known => known + BLEND_WEIGHT * (measured.min(OUTLIER_FACTOR * known) - known),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates streams beside a prompt on a device with these costs in microseconds. Returns the
    /// prompt's steps and the mean slowdown.
    fn enter(
        bound: f32,
        streams: usize,
        prompt: usize,
        step: impl Fn(usize) -> f64,
        token: impl Fn(usize) -> f64,
    ) -> (usize, f64) {
        let mut pace = PromptPacer::new(bound, 64);
        let (mut left, mut steps, mut total) = (prompt, 0, 0.0);
        while left > 0 {
            let tokens = pace.allowance(streams, left.min(2048));
            let record_event = step(streams) + tokens as f64 * token(prompt - left);
            pace.record(
                streams,
                tokens,
                Duration::from_secs_f64(record_event * 1e-6),
            );
            left -= tokens;
            steps += 1;
            total += record_event;
            assert!(steps < 1_000_000, "the prompt never gets in");
        }
        (steps, total / (steps as f64 * step(streams)))
    }

    #[test]
    fn slowdown_stays_within_bound() {
        let cheap = |_: usize| 40.0;
        let deep = |depth: usize| 100.0 + depth as f64;
        for streams in [1, 4, 31] {
            let step = |streams: usize| 4000.0 + 300.0 * streams as f64;
            for bound in [1.25, 2.0, 4.0] {
                for (steps, slowdown) in [
                    enter(bound, streams, 8000, step, cheap),
                    enter(bound, streams, 8000, step, deep),
                ] {
                    let bound = f64::from(bound);
                    assert!(slowdown <= bound, "{slowdown} with {streams} and {bound}");
                    let used = (slowdown - 1.0) / (bound - 1.0);
                    assert!(used > 0.6, "{used} of {bound} in {steps} steps");
                }
            }
        }
    }

    #[test]
    fn expensive_prompt_tokens_still_progress() {
        let (steps, slowdown) = enter(2.0, 1, 50, |_| 1000.0, |_| 5000.0);
        assert!(slowdown <= 2.0, "{slowdown}");
        assert!((200..600).contains(&steps), "{steps}");
    }

    #[test]
    fn prompts_progress_without_measurements() {
        let (steps, _) = enter(2.0, 3, 10, |_| 0.0, |_| 1000.0);
        assert!(steps <= 10 * (MAX_HELD_BACK_STEPS + 1), "{steps}");
        let (steps, _) = enter(1.0, 3, 10, |_| 1000.0, |_| 1000.0);
        assert!(steps <= 10 * (MAX_HELD_BACK_STEPS + 1), "{steps}");
    }

    #[test]
    fn prompts_are_unlimited_without_streams() {
        assert_eq!(PromptPacer::new(2.0, 4).allowance(0, 512), 512);
        assert_eq!(PromptPacer::new(f32::INFINITY, 4).allowance(3, 512), 512);
    }
}
