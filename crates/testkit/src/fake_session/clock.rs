//! A clock that tests advance, and the time a step takes on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that tests and sessions advance, so that minutes of schedule run instantly and
/// deterministically.
#[derive(Debug, Default)]
pub struct VirtualClock {
    nanos: AtomicU64,
}

impl VirtualClock {
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let add = |nanos: u64| Some(nanos.saturating_add(by));
        let _always = self
            .nanos
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, add);
    }

    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }
}

/// The time a step takes on the virtual clock. Refused rows take none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// For the step itself, even if it fails.
    pub step: Duration,
    pub row: Duration,
    pub token: Duration,
    /// For each token, per 1024 tokens before it.
    pub depth: Duration,
    /// For each media that is encoded.
    pub encode: Duration,
}

impl Cost {
    /// The time of a row of `tokens` after `len` others.
    pub(super) fn row_time(&self, len: usize, tokens: usize) -> Duration {
        let (len, tokens) = (len as u128, tokens as u128);
        let before_each = tokens * len + tokens * tokens.saturating_sub(1) / 2;
        let nanos = self.row.as_nanos()
            + self.token.as_nanos() * tokens
            + self.depth.as_nanos() * before_each / 1024;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn clock_moves_only_when_advanced() {
        let clock = VirtualClock::default();
        assert_eq!(clock.elapsed(), Duration::ZERO);
        clock.advance(micros(3));
        clock.advance(Duration::from_nanos(7));
        assert_eq!(clock.elapsed(), Duration::from_nanos(3007));
        clock.advance(Duration::MAX);
        clock.advance(micros(1));
        assert_eq!(clock.elapsed(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn rows_cost_by_tokens_and_depth() {
        let cost = Cost {
            step: micros(1000),
            row: micros(100),
            token: micros(10),
            depth: micros(1024),
            ..Cost::default()
        };
        let cases = [
            // (tokens before, new tokens, micros)
            (0, 1, 110),
            (0, 2, 120 + 1),
            (1024, 1, 110 + 1024),
            (10, 4, 140 + 10 + 11 + 12 + 13),
        ];
        for (len, tokens, expected) in cases {
            let found = cost.row_time(len, tokens);
            assert_eq!(found, micros(expected), "{tokens} tokens after {len}");
        }
    }
}
