//! The model of the fake session: logits are a pure function of the tokens so far.

use loquat_session::sequences::ExportedAdapter;
use loquat_synthetic::SplitMix64;

/// The logit of the likeliest token, above all others but the script's.
const LIKELIEST: f32 = 8.0;
const SCRIPTED: f32 = 64.0;
/// Seeds the likeliest token; not a token of any vocabulary.
const LIKELIEST_DRAW: u32 = u32::MAX;
/// Seeds hidden states, so that they differ from the logits.
const HIDDEN_DRAW: u32 = u32::MAX - 1;

pub struct Model {
    pub vocab_size: usize,
    pub script: Vec<u32>,
    pub opening: Vec<u32>,
    pub replies: Vec<Vec<u32>>,
}

/// A sequence's tokens and a digest after each, so that a row costs only its own tokens.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The digest before the first token: that of the sequence's adapters.
    seed: u64,
    tokens: Vec<u32>,
    digests: Vec<u64>,
}

impl History {
    /// An empty history of a sequence with adapters.
    pub fn adapted(adapters: &[ExportedAdapter]) -> Self {
        let words = adapters.iter().flat_map(|adapter| {
            let fingerprint = adapter.fingerprint;
            let halves = [fingerprint as u32, (fingerprint >> 32) as u32];
            halves.into_iter().chain([adapter.scale.to_bits()])
        });
        Self {
            seed: words.fold(0, mix),
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub fn append(&mut self, tokens: &[u32]) {
        let mut digest = self.digest(self.len());
        self.tokens.extend_from_slice(tokens);
        self.digests.extend(tokens.iter().map(|token| {
            digest = mix(digest, *token);
            digest
        }));
    }

    /// The first `len` tokens, which must exist.
    pub fn prefix(&self, len: usize) -> Self {
        Self {
            seed: self.seed,
            tokens: self.tokens[..len].to_vec(),
            digests: self.digests[..len].to_vec(),
        }
    }

    /// A hash of the first `len` tokens.
    pub fn digest(&self, len: usize) -> u64 {
        match len {
            0 => self.seed,
            len => self.digests[len - 1],
        }
    }
}

impl Model {
    /// The likeliest token after the first `len` of the history, without the others' logits.
    pub fn greedy(&self, history: &History, len: usize) -> u32 {
        self.scripted(history, len)
            .unwrap_or_else(|| self.likeliest(history.digest(len)))
    }

    /// All logits after the first `len` tokens: the likeliest high, the others spread over [-8, 8).
    pub fn logits(&self, history: &History, len: usize, logits: &mut [f32]) {
        let digest = history.digest(len);
        for (token, logit) in (0..).zip(logits.iter_mut()) {
            *logit = (mix(digest, token) >> 40) as f32 / (1 << 20) as f32 - 8.0;
        }
        logits[self.likeliest(digest) as usize] = LIKELIEST;
        if let Some(token) = self.scripted(history, len) {
            logits[token as usize] = SCRIPTED;
        }
    }

    /// The hidden state after the first `len` tokens, spread over [-1, 1).
    pub fn hidden(&self, history: &History, len: usize, state: &mut [f32]) {
        let digest = mix(history.digest(len), HIDDEN_DRAW);
        for (index, value) in (0..).zip(state) {
            *value = (mix(digest, index) >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
    }

    fn likeliest(&self, digest: u64) -> u32 {
        (mix(digest, LIKELIEST_DRAW) % self.vocab_size as u64) as u32
    }

    fn scripted(&self, history: &History, len: usize) -> Option<u32> {
        let (script, position) = match self.opening.len() {
            0 => (&self.script, len.checked_sub(1)?),
            width => {
                let positions = history.tokens[..len].windows(width).enumerate();
                let opened = positions.filter(|(_, tokens)| *tokens == self.opening);
                let (turn, (position, _)) = opened.enumerate().last()?;
                (self.reply(turn), len - position - width)
            }
        };
        let token = script[position.checked_rem(script.len())?];
        Some(token).filter(|token| (*token as usize) < self.vocab_size)
    }

    fn reply(&self, turn: usize) -> &Vec<u32> {
        let reply = self.replies.get(turn).or(self.replies.last());
        reply.unwrap_or(&self.script)
    }
}

/// SplitMix64's finaliser over a running state.
fn mix(state: u64, token: u32) -> u64 {
    let next = state.rotate_left(17).wrapping_add(u64::from(token) + 1);
    SplitMix64::mix(next.wrapping_mul(SplitMix64::INCREMENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argmax(logits: &[f32]) -> u32 {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        logits.iter().position(|logit| *logit == best).unwrap() as u32
    }

    #[test]
    fn greedy_token_is_the_argmax() {
        let stray = 999;
        for (vocab_size, script) in [(1, vec![]), (7, vec![3, stray, 5]), (264, vec![])] {
            let model = Model {
                vocab_size,
                script,
                opening: Vec::new(),
                replies: Vec::new(),
            };
            let mut history = History::default();
            let mut logits = vec![0.0; vocab_size];
            for len in 1..200 {
                history.append(&[len as u32 * 31 % vocab_size as u32]);
                model.logits(&history, len, &mut logits);
                let greedy = model.greedy(&history, len);
                assert_eq!(greedy, argmax(&logits), "{vocab_size} tokens, length {len}");
            }
        }
    }

    #[test]
    fn script_repeats() {
        let model = Model {
            vocab_size: 10,
            script: vec![4, 2],
            opening: Vec::new(),
            replies: Vec::new(),
        };
        let mut history = History::default();
        history.append(&[1, 1, 1]);
        let tokens: Vec<u32> = (1..=3).map(|len| model.greedy(&history, len)).collect();
        assert_eq!(tokens, [4, 2, 4]);
    }

    #[test]
    fn each_opening_has_its_reply() {
        let model = Model {
            vocab_size: 10,
            script: Vec::new(),
            opening: vec![7, 8],
            replies: vec![vec![1, 2], vec![3]],
        };
        let mut history = History::default();
        history.append(&[0, 7, 8, 1, 2, 7, 8, 3, 7, 8]);
        let scripted = [3, 4, 7, 10].map(|len| model.scripted(&history, len));
        assert_eq!(scripted, [Some(1), Some(2), Some(3), Some(3)]);
        assert_eq!(model.scripted(&history, 2), None, "before the first");
    }

    #[test]
    fn digest_covers_all_tokens_in_order() {
        let digest = |chunks: &[&[u32]]| {
            let mut history = History::default();
            chunks.iter().for_each(|chunk| history.append(chunk));
            history.digest(history.len())
        };
        assert_eq!(digest(&[&[1, 2, 3]]), digest(&[&[1], &[2, 3]]));
        for other in [[2, 1, 3], [1, 2, 2], [0, 1, 2]] {
            assert_ne!(digest(&[&[1, 2, 3]]), digest(&[&other]), "{other:?}");
        }
        let mut history = History::default();
        history.append(&[1, 2, 3, 4]);
        assert_eq!(history.prefix(3).digest(3), digest(&[&[1, 2, 3]]));
    }
}
