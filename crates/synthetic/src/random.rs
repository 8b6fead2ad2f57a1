//! The workspace's seeded generator.

/// Sebastiano Vigna's SplitMix64: two multiplications per word, and the same words on every
/// machine. Not for secrets.
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The fraction of the golden ratio, added to the state per word.
    pub const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::INCREMENT);
        Self::mix(self.0)
    }

    /// The finalizer alone: spreads every bit of `word` over all 64.
    #[inline]
    pub fn mix(word: u64) -> u64 {
        let mut mixed = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; 0 if the range is empty.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound.max(1) as u64) as usize
    }

    pub(crate) fn bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Uniform in `-limit..limit`.
    #[inline]
    pub(crate) fn within(&mut self, limit: f32) -> f32 {
        // The 24 bits that an `f32` holds.
        let drawn = (self.next_u64() as i64 >> 40) as f32;
        drawn * (limit / (1 << 23) as f32)
    }

    /// 1 or -1.
    pub(crate) fn sign(&mut self) -> f32 {
        match self.next_u64() >> 63 {
            0 => 1.0,
            _ => -1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    /// The first words of the reference implementation's stream for this seed.
    #[test]
    fn words_match_reference_implementation() {
        let mut random = SplitMix64::new(1_234_567);
        for expected in [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ] {
            assert_eq!(random.next_u64(), expected);
        }
    }
}
