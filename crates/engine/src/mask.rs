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
    /// A mask that allows no token.
    pub fn none(vocab_size: usize) -> Self {
        Self {
            words: vec![0; vocab_size.div_ceil(BITS)],
            vocab_size,
        }
    }

    /// How many tokens it covers.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Forbids every token.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Allows every token.
    pub fn fill(&mut self) {
        self.words.fill(u32::MAX);
        self.trim();
    }

    /// Forbids one token. Ignores ids past the vocabulary.
    pub fn forbid(&mut self, id: u32) {
        let id = id as usize;
        if id < self.vocab_size {
            self.words[id / BITS] &= !(1 << (id % BITS));
        }
    }

    /// Ignores ids past the vocabulary.
    pub fn allow(&mut self, id: u32) {
        let id = id as usize;
        if id < self.vocab_size {
            self.words[id / BITS] |= 1 << (id % BITS);
        }
    }

    /// Whether the token is allowed.
    pub fn contains(&self, id: u32) -> bool {
        let id = id as usize;
        id < self.vocab_size && self.words[id / BITS] & (1 << (id % BITS)) != 0
    }

    /// Also allows the tokens of another mask.
    pub fn merge(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Copies the bits of `words`: bit `id % 32` of word `id / 32`. Tokens past its end are
    /// forbidden.
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

    /// Sets the logits of forbidden tokens to minus infinity.
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

/// Branch-free, so that the compiler vectorises it.
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
    fn forbidden_logits_become_minus_infinity() {
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
    fn mask_copies_words_of_any_length() {
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
