//! Random choices that a seed reproduces.

use std::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub struct SeededRng(ChaCha8Rng);

impl SeededRng {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub fn number(&mut self, among: RangeInclusive<usize>) -> usize {
        let (low, high) = among.into_inner();
        low + (self.0.next_u64() % (high - low + 1) as u64) as usize
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.number(0..=99) < chance
    }

    pub fn pick<T: Clone>(&mut self, among: &[T]) -> T {
        among[self.number(0..=among.len() - 1)].clone()
    }
}
