//! Seeded random numbers, so that a run can be repeated request by request.

use std::fmt;
use std::str::FromStr;

use loquat_synthetic::SplitMix64;

/// Lengths from `low` to `high`, both at least 1 and both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LengthRange {
    pub low: usize,
    pub high: usize,
}

impl fmt::Display for LengthRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.low, self.high)
    }
}

/// A text that is not a [`LengthRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be two lengths of at least 1, the shorter first, such as 16-512")]
pub struct InvalidLengthRange;

impl FromStr for LengthRange {
    type Err = InvalidLengthRange;

    fn from_str(text: &str) -> Result<Self, InvalidLengthRange> {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let length = |text: &str| text.parse().map_err(|_| InvalidLengthRange);
        let range = Self {
            low: length(low)?,
            high: length(high)?,
        };
        // `high + 1` must not overflow.
        let valid = (1..=range.high).contains(&range.low) && range.high < usize::MAX;
        valid.then_some(range).ok_or(InvalidLengthRange)
    }
}

/// Random tokens and lengths, the same on every machine.
pub struct Random(SplitMix64);

impl Random {
    /// Streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let start = SplitMix64::new(seed).next_u64();
        let offset = stream.wrapping_mul(0xd134_2543_de82_ef95);
        Self(SplitMix64::new(start.wrapping_add(offset)))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 up to, not including, `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0.below(bound)
    }

    /// From 0 up to, not including, 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, share: f64) -> bool {
        self.share() < share
    }

    /// Log-uniform: as often between 16 and 32 as between 256 and 512.
    pub fn length(&mut self, range: LengthRange) -> usize {
        let (low, high) = (range.low as f64, (range.high + 1) as f64);
        let drawn = low * (high / low).powf(self.share());
        (drawn as usize).clamp(range.low, range.high)
    }

    pub fn tokens(&mut self, vocab_size: usize, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab_size) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_repeats_and_streams_differ() {
        let draw = |seed, stream| Random::new(seed, stream).tokens(1000, 32);
        assert_eq!(draw(7, 3), draw(7, 3));
        let all = [draw(7, 3), draw(7, 4), draw(8, 3), draw(8, 4)];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one), "{index}");
        }
    }

    #[test]
    fn lengths_are_log_uniform_within_range() {
        let range = LengthRange { low: 16, high: 512 };
        let mut random = Random::new(0, 0);
        let mut drawn: Vec<_> = (0..20_000).map(|_| random.length(range)).collect();
        drawn.sort_unstable();
        assert_eq!((drawn[0], drawn[drawn.len() - 1]), (16, 512));
        // The geometric middle of 16 and 512 is 90.
        assert!((80..100).contains(&drawn[drawn.len() / 2]));
        let one = LengthRange { low: 5, high: 5 };
        assert_eq!(random.length(one), 5);
    }

    #[test]
    fn invalid_length_ranges_are_refused() {
        assert_eq!("16-512".parse(), Ok(LengthRange { low: 16, high: 512 }));
        assert_eq!("7".parse(), Ok(LengthRange { low: 7, high: 7 }));
        for text in [
            "",
            "-",
            "0-4",
            "5-4",
            "x-4",
            "4-x",
            "1-18446744073709551615",
        ] {
            assert_eq!(
                text.parse::<LengthRange>(),
                Err(InvalidLengthRange),
                "{text}"
            );
        }
    }

    #[test]
    fn draws_stay_below_their_bound() {
        let mut random = Random::new(1, 1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert!((0..1000).all(|_| random.below(0) == 0));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.share())));
    }
}
