//! A set of tokens, one bit each.

/// The tokens of a vocabulary that may be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenMask {
    /// Bit `id % 32` of word `id / 32`; bits past the vocabulary are never set.
    words: Vec<u32>,
    vocab_size: usize,
}

const BITS: usize = u32::BITS as usize;

impl TokenMask {
    /// No token of a vocabulary of `vocab_size`.
    pub fn none(vocab_size: usize) -> Self {
        Self {
            words: vec![0; vocab_size.div_ceil(BITS)],
            vocab_size,
        }
    }

    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Takes every token out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Puts every token in.
    pub fn fill(&mut self) {
        self.words.fill(u32::MAX);
        self.trim();
    }

    pub fn forbid(&mut self, id: u32) {
        let id = id as usize;
        if id < self.vocab_size {
            self.words[id / BITS] &= !(1 << (id % BITS));
        }
    }

    /// An id past the vocabulary is no token.
    pub fn allow(&mut self, id: u32) {
        let id = id as usize;
        if id < self.vocab_size {
            self.words[id / BITS] |= 1 << (id % BITS);
        }
    }

    pub fn contains(&self, id: u32) -> bool {
        let id = id as usize;
        id < self.vocab_size && self.words[id / BITS] & (1 << (id % BITS)) != 0
    }

    /// Puts the tokens of another mask in as well.
    pub fn merge(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Allows what `words` has, bit `id % 32` of word `id / 32`; what is past its end is not
    /// allowed.
    pub fn copy_from_words(&mut self, words: &[u32]) {
        let common = words.len().min(self.words.len());
        self.words[..common].copy_from_slice(&words[..common]);
        self.words[common..].fill(0);
        self.trim();
    }

    fn trim(&mut self) {
        let used = self.vocab_size % BITS;
        if let Some(last) = self.words.last_mut().filter(|_| used > 0) {
            *last &= (1 << used) - 1;
        }
    }

    /// Makes the logits of all other tokens minus infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut chunks = logits.chunks_mut(BITS);
        for (&word, chunk) in self.words.iter().zip(&mut chunks) {
            match word {
                u32::MAX => {}
                0 => chunk.fill(f32::NEG_INFINITY),
                _ => keep(word, chunk),
            }
        }
        for chunk in chunks {
            chunk.fill(f32::NEG_INFINITY);
        }
    }
}

/// Without a branch, so that the compiler vectorises it.
fn keep(word: u32, logits: &mut [f32]) {
    for (bit, logit) in logits.iter_mut().enumerate() {
        let allowed = word >> bit & 1 == 1;
        *logit = if allowed { *logit } else { f32::NEG_INFINITY };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_mask_is_minus_infinity() {
        for vocab_size in [1, 31, 32, 33, 64, 1000] {
            for rows in [vocab_size, vocab_size + 40] {
                let mut mask = TokenMask::none(vocab_size);
                for id in (0..2000).filter(|id| id % 3 == 0 || (32..64).contains(id)) {
                    mask.allow(id);
                }
                let mut logits: Vec<f32> = (0..rows).map(|id| id as f32).collect();
                mask.apply(&mut logits);
                for (id, &logit) in logits.iter().enumerate() {
                    let wanted = id < vocab_size && (id % 3 == 0 || (32..64).contains(&id));
                    assert_eq!(mask.contains(id as u32), wanted, "{id} of {vocab_size}");
                    let expected = if wanted { id as f32 } else { f32::NEG_INFINITY };
                    assert_eq!(logit, expected, "{id} of {vocab_size}");
                }
            }
        }
    }

    #[test]
    fn words_of_another_length_are_taken_as_far_as_they_go() {
        let mut mask = TokenMask::none(40);
        mask.copy_from_words(&[u32::MAX]);
        assert!(mask.contains(31) && !mask.contains(32));
        mask.copy_from_words(&[0, u32::MAX, u32::MAX]);
        assert!(!mask.contains(31) && mask.contains(39) && !mask.contains(40));
        let mut other = TokenMask::none(40);
        other.allow(3);
        mask.merge(&other);
        assert!(mask.contains(3) && mask.contains(39) && !mask.contains(4));
        mask.fill();
        mask.forbid(7);
        mask.forbid(40);
        assert!(mask.contains(39) && !mask.contains(7) && !mask.contains(40));
        let mut wide = vec![0.0; 48];
        mask.apply(&mut wide);
        assert_eq!(wide[39], 0.0);
        assert!(wide[40..].iter().all(|logit| *logit == f32::NEG_INFINITY));
        mask.clear();
        assert_eq!(mask, TokenMask::none(40));
    }
}
