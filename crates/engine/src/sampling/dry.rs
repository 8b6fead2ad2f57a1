//! DRY ("don't repeat yourself"): penalises tokens that would extend a repetition, by its length.

use loquat_text::Tokenizer;

use super::pool::CandidatePool;
use super::{SamplingParams, params};
use crate::EngineError;

#[derive(Debug)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    window: usize,
    breakers: Vec<Vec<u8>>,
    tokenizer: Option<Tokenizer>,
    /// Tokens since the last one that a breaker ended in.
    unbroken: usize,
    /// The end of the text, as far back as a breaker may begin.
    tail: Vec<u8>,
}

/// Buffers for [`Dry::apply_dry`].
#[derive(Debug, Default)]
pub(super) struct Buffers {
    lengths: Vec<usize>,
    prolonging: Vec<(u32, usize)>,
}

impl Dry {
    /// `None` if it is switched off.
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Option<Self> {
        let breakers = params.dry_sequence_breakers.iter();
        let breakers = breakers.filter(|text| !text.is_empty());
        params.discourages_repetition().then(|| Self {
            multiplier: params.dry_multiplier,
            base: params.dry_base,
            allowed_length: params.dry_allowed_length,
            window: params::window(params.dry_penalty_last_n),
            breakers: breakers.map(|text| text.clone().into_bytes()).collect(),
            tokenizer: None,
            unbroken: prompt.len(),
            tail: Vec::new(),
        })
    }

    /// Sets the tokenizer; `tokens` are the existing ones.
    pub fn read_by(&mut self, tokenizer: &Tokenizer, tokens: &[u32]) {
        self.tokenizer = Some(tokenizer.clone());
        (self.unbroken, self.tail) = (0, Vec::new());
        for &id in tokens {
            self.observe(id);
        }
    }

    pub fn observe(&mut self, id: u32) {
        let seam = self.tail.len();
        self.tail.extend_from_slice(bytes(&self.tokenizer, id));
        let ends_here = |breaker: &Vec<u8>| {
            let start = seam.saturating_sub(breaker.len() - 1);
            contains(&self.tail[start..], breaker)
        };
        if self.breakers.iter().any(ends_here) {
            self.unbroken = 0
        } else {
            self.unbroken += 1
        }
        let longest = self.breakers.iter().map(Vec::len).max().unwrap_or(1);
        let surplus = self.tail.len().saturating_sub(longest - 1);
        self.tail.drain(..surplus);
    }

    /// Lowers the logits of tokens that would extend a repetition in `tokens`.
    pub fn apply_dry(
        &self,
        tokens: &[u32],
        pool: &mut CandidatePool<'_>,
        buffers: &mut Buffers,
    ) -> Result<(), EngineError> {
        if self.tokenizer.is_none() && !self.breakers.is_empty() {
            return Err(EngineError::Unsupported {
                field: "dry_sequence_breakers",
                why: "they are matched in text, and the engine was started without a tokenizer",
            });
        }
        let Buffers {
            lengths,
            prolonging,
        } = buffers;
        let visible = &tokens[tokens.len().saturating_sub(self.window)..];
        let reach = self.unbroken.min(visible.len());
        prolonging.clear();
        if visible.len() > self.allowed_length && reach >= self.allowed_length {
            repetitions(visible, lengths);
            // The text `back` tokens before the end repeats it; the token after that position would
            // extend the repetition.
            for (back, &length) in lengths.iter().enumerate().skip(1) {
                let length = length.min(reach);
                if length >= self.allowed_length {
                    prolonging.push((visible[visible.len() - back], length));
                }
            }
        }
        prolonging.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
        prolonging.dedup_by_key(|(id, _)| *id);
        let breaks = |id| {
            self.breakers
                .iter()
                .any(|b| contains(bytes(&self.tokenizer, id), b))
        };
        prolonging.retain(|(id, _)| !breaks(*id));
        let change = |&(_, length): &(u32, usize), logit: f32, temperature: f32| {
            logit - self.penalty(length) * temperature
        };
        pool.adjust(prolonging, |(id, _)| *id, change);
        Ok(())
    }

    /// `multiplier * base ^ (length - allowed_length)`, bounded so that the logit stays finite.
    fn penalty(&self, length: usize) -> f32 {
        const MOST: f64 = 1e30;
        let mut penalty = f64::from(self.multiplier);
        for _ in self.allowed_length..length {
            penalty *= f64::from(self.base);
            if penalty > MOST || self.base == 1.0 {
                break;
            }
        }
        penalty.min(MOST) as f32
    }
}

/// For each offset from the end, the length of the common suffix with the whole text: the Z
/// algorithm, from the end.
fn repetitions(tokens: &[u32], lengths: &mut Vec<usize>) {
    let count = tokens.len();
    let from_end = |at: usize| tokens[count - 1 - at];
    lengths.clear();
    lengths.resize(count, 0);
    let (mut left, mut right) = (0, 0);
    for at in 1..count {
        let mut length = if at < right {
            lengths[at - left].min(right - at)
        } else {
            0
        };
        while at + length < count && from_end(length) == from_end(at + length) {
            length += 1;
        }
        if at + length > right {
            (left, right) = (at, at + length);
        }
        lengths[at] = length;
    }
}

fn bytes(tokenizer: &Option<Tokenizer>, id: u32) -> &[u8] {
    let tokenizer = tokenizer.as_ref();
    let bytes = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(id));
    bytes.unwrap_or_default()
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_common_ends() {
        let texts: [&[u32]; 6] = [
            &[],
            &[1],
            &[7, 7, 7, 7, 7],
            &[1, 2, 3, 3, 2, 3, 9, 1, 2, 3],
            &[1, 2, 1, 2, 1, 2, 1],
            &[1, 1, 2, 1, 1, 2, 1, 1, 1, 2, 1, 1],
        ];
        for tokens in texts {
            let mut found = Vec::new();
            repetitions(tokens, &mut found);
            for back in 1..tokens.len() {
                let (earlier, all) = (&tokens[..tokens.len() - back], tokens);
                let pairs = earlier.iter().rev().zip(all.iter().rev());
                let expected = pairs.take_while(|(a, b)| a == b).count();
                assert_eq!(found[back], expected, "{tokens:?} {back}");
            }
        }
    }
}
