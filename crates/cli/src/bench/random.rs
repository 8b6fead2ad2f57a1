//! Seeded draws, so that a run can be repeated request by request.

use loquat_synthetic::SplitMix64;

use crate::args::Span;

/// Tokens and lengths, the same on every machine.
pub struct Random(SplitMix64);

impl Random {
    /// Streams of one seed have nothing in common.
    pub fn new(seed: u64, stream: u64) -> Self {
        let start = SplitMix64::new(seed).next_u64();
        let offset = stream.wrapping_mul(0xd134_2543_de82_ef95);
        Self(SplitMix64::new(start.wrapping_add(offset)))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 up to, not including, `bound`; 0 where there is nothing below it.
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

    /// As often between 16 and 32 as between 256 and 512: most texts are short, some are long.
    pub fn within(&mut self, span: Span) -> usize {
        let (low, high) = (span.low as f64, (span.high + 1) as f64);
        let drawn = low * (high / low).powf(self.share());
        (drawn as usize).clamp(span.low, span.high)
    }

    pub fn tokens(&mut self, vocab_size: usize, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab_size) as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let draw = |seed, stream| Random::new(seed, stream).tokens(1000, 32);
        assert_eq!(draw(7, 3), draw(7, 3));
        let all = [draw(7, 3), draw(7, 4), draw(8, 3), draw(8, 4)];
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{place}");
        }
    }

    #[test]
    fn lengths_reach_both_ends_and_are_mostly_short() {
        let span = Span { low: 16, high: 512 };
        let mut random = Random::new(0, 0);
        let mut drawn: Vec<_> = (0..20_000).map(|_| random.within(span)).collect();
        drawn.sort_unstable();
        assert_eq!((drawn[0], drawn[drawn.len() - 1]), (16, 512));
        // The geometric middle of 16 and 512 is 90.
        assert!((80..100).contains(&drawn[drawn.len() / 2]));
        let one = Span { low: 5, high: 5 };
        assert_eq!(random.within(one), 5);
    }

    #[test]
    fn draws_stay_below_their_bound() {
        let mut random = Random::new(1, 1);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert!((0..1000).all(|_| random.below(0) == 0));
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.share())));
    }
}
