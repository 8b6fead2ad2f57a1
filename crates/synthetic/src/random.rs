//! A seeded random number generator.

/// SplitMix64: fast, and the same on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Uniform over `-limit..limit`.
    #[inline]
    pub(crate) fn within(&mut self, limit: f32) -> f32 {
        // The 24 bits that an `f32` holds.
        let drawn = (self.next() as i64 >> 40) as f32;
        drawn * (limit / (1 << 23) as f32)
    }

    /// 1 or -1.
    pub(crate) fn sign(&mut self) -> f32 {
        match self.next() >> 63 {
            0 => 1.0,
            _ => -1.0,
        }
    }
}
