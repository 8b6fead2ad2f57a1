//! From logits to the next token: bias and masks, the steps in the request's order, and the draw.
//!
//! A choice depends on the row's logits, the request and its own random stream, never on other
//! requests.

mod buckets;
mod dry;
mod logits;
mod math;
mod mirostat;
mod order;
mod parameter;
mod params;
mod pool;
#[cfg(test)]
mod reference;
mod select;
mod slots;
mod token_counts;
mod vectorised;

use loquat_session::Draw;
use loquat_text::Tokenizer;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use order::{DEFAULT_ORDER, SamplingStep};
pub use parameter::*;
pub use params::SamplingParams;
pub use slots::{ParameterSlot, word_sequences};

pub(crate) use params::check_token;

use crate::{ConstraintError, Distribution, EngineError, Logprobs, TokenInfo, TokenMask};
use dry::Dry;
use logits::LogSoftmax;
use mirostat::Mirostat;
use pool::CandidatePool;
use select::Candidate;
use token_counts::TokenCounts;

/// Buffers shared by all requests, so that sampling a token does not allocate.
#[derive(Debug, Default)]
pub struct SamplerScratch {
    candidates: Vec<Candidate>,
    likely: Vec<Candidate>,
    maxima: Vec<f32>,
    values: Vec<f32>,
    sums: Vec<f64>,
    weights: Vec<[f64; 4]>,
    positions: Vec<u32>,
    raw: Vec<f32>,
    dry: dry::Buffers,
}

/// Samples one request's tokens: its parameters, random stream and token counts. The engine has one
/// per request; programs that run a session directly may use it too.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// Prompt and output; empty if no step looks back.
    tokens: Vec<u32>,
    looks_back: bool,
    prompt_len: usize,
    generated: usize,
    stop_ids: Vec<u32>,
    allowed: Option<TokenMask>,
    token_counts: Option<TokenCounts>,
    dry: Option<Dry>,
    mirostat: Option<Mirostat>,
    /// The next draw's random number, if it was needed before the logits.
    unit: Option<f64>,
}

impl Sampler {
    /// A sampler for the tokens after `prompt`. `min_tokens` forbids `stop_ids` at first.
    pub fn new(params: SamplingParams, seed: u64, prompt: &[u32], stop_ids: &[u32]) -> Self {
        let token_counts = TokenCounts::new(&params, prompt);
        let dry = Dry::new(&params, prompt);
        let looks_back = token_counts.as_ref().is_some_and(TokenCounts::forgets)
            || dry.is_some()
            || params.bad_words.iter().any(|word| word.len() > 1);
        let tokens = if looks_back {
            prompt.to_vec()
        } else {
            Vec::new()
        };
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            tokens,
            looks_back,
            prompt_len: prompt.len(),
            generated: 0,
            stop_ids: match params.min_tokens {
                0 => Vec::new(),
                _ => stop_ids.to_vec(),
            },
            allowed: mask_of(&params.allowed_tokens),
            token_counts,
            dry,
            mirostat: Mirostat::new(&params),
            unit: None,
            params,
        }
    }

    /// Sets the tokenizer, which `dry_sequence_breakers` need.
    pub fn with_tokenizer(mut self, tokenizer: &Tokenizer) -> Self {
        if let Some(dry) = &mut self.dry {
            dry.read_by(tokenizer, &self.tokens);
        }
        self
    }

    /// Whether the choice is the largest of the model's logits, so that the logits need not be
    /// read.
    pub fn is_plain_greedy(&self) -> bool {
        self.params.is_plain_greedy()
    }

    /// What a device needs to draw the next token itself; `None` if sampling needs more. Unchanged
    /// until a token is drawn.
    pub fn next_draw(&mut self) -> Option<Draw> {
        if !self.params.is_plain_draw() {
            return None;
        }
        let unit = self.take_unit();
        self.unit = Some(unit);
        Some(Draw {
            temperature: self.params.temperature,
            top_k: self.params.top_k,
            top_p: self.params.top_p,
            min_p: self.params.min_p,
            // Rounding must not reach 1.
            unit: (unit as f32).min(1.0 - f32::EPSILON / 2.0),
        })
    }

    /// Records that the device made the draw.
    pub fn record_draw(&mut self) {
        self.unit = None;
    }

    fn take_unit(&mut self) -> f64 {
        let unit = self.unit.take();
        unit.unwrap_or_else(|| unit_interval(self.rng.next_u64()))
    }

    /// Chooses the next token among those `allowed`, with the requested log-probabilities.
    /// Overwrites `logits`.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        allowed: Option<&TokenMask>,
        logprobs: Option<Logprobs>,
        scratch: &mut SamplerScratch,
    ) -> Result<TokenInfo, EngineError> {
        let alternatives = match logprobs {
            None => None,
            Some(Logprobs {
                alternatives,
                distribution: Distribution::Sampled,
            }) => Some(alternatives),
            Some(Logprobs {
                alternatives,
                distribution: Distribution::Model,
            }) => {
                let mut raw = std::mem::take(&mut scratch.raw);
                raw.clear();
                raw.extend_from_slice(logits);
                let info = self
                    .choose(logits, allowed, None, scratch)
                    .and_then(|chosen| score(chosen.id, &raw, alternatives, scratch));
                scratch.raw = raw;
                return info;
            }
        };
        self.choose(logits, allowed, alternatives, scratch)
    }

    /// A forced token with the requested log-probabilities. It is certain in the sampled
    /// distribution, whatever the model's.
    pub(crate) fn score_forced(
        &self,
        id: u32,
        logits: &[f32],
        logprobs: Option<Logprobs>,
        scratch: &mut SamplerScratch,
    ) -> Result<TokenInfo, EngineError> {
        let Some(Logprobs {
            alternatives,
            distribution,
        }) = logprobs
        else {
            return Ok(TokenInfo::bare(id));
        };
        match distribution {
            Distribution::Model => score(id, logits, alternatives, scratch),
            Distribution::Sampled => Ok(TokenInfo {
                id,
                logprob: Some(0.0),
                top: vec![(id, 0.0); alternatives.min(1)],
            }),
        }
    }

    /// Records a token of the output.
    pub fn observe(&mut self, id: u32) {
        self.generated += 1;
        if self.looks_back {
            self.tokens.push(id);
        }
        if let Some(token_counts) = &mut self.token_counts {
            if token_counts.forgets() {
                token_counts.observe(&self.tokens, self.prompt_len)
            } else {
                token_counts.count(id)
            }
        }
        if let Some(dry) = &mut self.dry {
            dry.observe(id);
        }
    }

    fn choose(
        &mut self,
        logits: &mut [f32],
        allowed: Option<&TokenMask>,
        alternatives: Option<usize>,
        scratch: &mut SamplerScratch,
    ) -> Result<TokenInfo, EngineError> {
        let mut dry_buffers = std::mem::take(&mut scratch.dry);
        let mut pool = CandidatePool::new(logits, scratch);
        let applied = self.apply(&mut pool, allowed, &mut dry_buffers);
        let id = applied.and_then(|()| {
            let unit = self.take_unit();
            let id = pool.draw(unit);
            id.ok_or_else(|| self.nothing_left(allowed.is_some()))
        });
        let info = id.map(|id| {
            if let Some(mirostat) = &mut self.mirostat {
                mirostat.learn(pool.probability(id));
            }
            match alternatives {
                Some(count) => pool.top_logprobs(id, count),
                None => TokenInfo::bare(id),
            }
        });
        scratch.dry = dry_buffers;
        info
    }

    /// Everything before the draw.
    fn apply(
        &mut self,
        pool: &mut CandidatePool<'_>,
        allowed: Option<&TokenMask>,
        buffers: &mut dry::Buffers,
    ) -> Result<(), EngineError> {
        let penalties_first = self.params.order.first() == Some(&SamplingStep::Penalties);
        if penalties_first {
            self.step(SamplingStep::Penalties, pool, buffers)?;
        }
        self.push_and_forbid(pool, allowed);
        for at in usize::from(penalties_first)..self.params.order.len() {
            self.step(self.params.order[at], pool, buffers)?;
        }
        if let Some(mirostat) = &self.mirostat {
            mirostat.truncate(pool);
        }
        Ok(())
    }

    /// Adjustments outside the order: bias, bad words, allowed tokens, the minimum length and the
    /// constraint.
    fn push_and_forbid(&self, pool: &mut CandidatePool<'_>, allowed: Option<&TokenMask>) {
        for &(id, bias) in &self.params.logit_bias {
            pool.push(id, bias);
        }
        for word in &self.params.bad_words {
            if let Some((last, rest)) = word.split_last()
                && self.tokens.ends_with(rest)
            {
                pool.forbid(*last);
            }
        }
        if self.generated < self.params.min_tokens {
            for &id in &self.stop_ids {
                pool.forbid(id);
            }
        }
        for mask in self.allowed.iter().chain(allowed) {
            pool.forbid_all_but(mask);
        }
    }

    fn step(
        &mut self,
        step: SamplingStep,
        pool: &mut CandidatePool<'_>,
        buffers: &mut dry::Buffers,
    ) -> Result<(), EngineError> {
        let params = &self.params;
        match step {
            SamplingStep::Penalties => {
                if let Some(token_counts) = &self.token_counts {
                    token_counts.penalise(pool);
                }
            }
            SamplingStep::Dry => {
                if let Some(dry) = &self.dry {
                    dry.apply_dry(&self.tokens, pool, buffers)?;
                }
            }
            SamplingStep::Temperature if params.dynatemp_range > 0.0 => {
                let (middle, range) = (params.temperature, params.dynatemp_range);
                let min = (middle - range).max(0.0);
                pool.dynamic_temperature(min, middle + range, params.dynatemp_exponent);
            }
            SamplingStep::Temperature => pool.temperature(params.temperature),
            SamplingStep::TopNSigma if params.top_n_sigma > 0.0 => {
                pool.top_n_sigma(params.top_n_sigma)
            }
            SamplingStep::TopK if params.top_k > 0 => pool.top_k(params.top_k),
            SamplingStep::TypicalP if params.typical_p < 1.0 => pool.typical_p(params.typical_p),
            SamplingStep::TopP if params.top_p < 1.0 => pool.top_p(params.top_p),
            SamplingStep::MinP if params.min_p > 0.0 => pool.min_p(params.min_p),
            SamplingStep::Xtc if params.xtc_probability > 0.0 => {
                if unit_interval(self.rng.next_u64()) < f64::from(params.xtc_probability) {
                    pool.exclude_top(params.xtc_threshold);
                }
            }
            SamplingStep::TopNSigma
            | SamplingStep::TopK
            | SamplingStep::TypicalP
            | SamplingStep::TopP
            | SamplingStep::MinP
            | SamplingStep::Xtc => {}
        }
        Ok(())
    }

    /// A forced token must not be forbidden by the parameters.
    pub(crate) fn check_forced(&self, id: u32) -> Result<(), EngineError> {
        let is_bad = |word: &Vec<u32>| match word.split_last() {
            Some((last, rest)) => *last == id && self.tokens.ends_with(rest),
            None => false,
        };
        let too_early = self.generated < self.params.min_tokens && self.stop_ids.contains(&id);
        let unlisted = self.allowed.as_ref().is_some_and(|mask| !mask.contains(id));
        if unlisted || too_early || self.params.bad_words.iter().any(is_bad) {
            Err(self.nothing_left(true))
        } else {
            Ok(())
        }
    }

    /// Why there is nothing to draw from.
    fn nothing_left(&self, constrained: bool) -> EngineError {
        match (constrained, self.params.excludes()) {
            (true, true) => ConstraintError::AllTokensExcluded.into(),
            (true, false) => ConstraintError::NoToken.into(),
            (false, true) => EngineError::Unsupported {
                field: "sampling",
                why: "`bad_words`, `allowed_tokens` and `min_tokens` leave no token to choose",
            },
            (false, false) => EngineError::NoCandidate,
        }
    }
}

fn mask_of(tokens: &[u32]) -> Option<TokenMask> {
    let highest = tokens.iter().max()?;
    let mut mask = TokenMask::none(*highest as usize + 1);
    for &id in tokens {
        mask.allow(id);
    }
    Some(mask)
}

/// A token with its log-probability and the `count` most likely ones, before any adjustment.
pub(crate) fn score(
    id: u32,
    logits: &[f32],
    count: usize,
    scratch: &mut SamplerScratch,
) -> Result<TokenInfo, EngineError> {
    let softmax = LogSoftmax::from_logits(logits).ok_or(EngineError::NoCandidate)?;
    let logit = logits.get(id as usize).copied().unwrap_or(f32::NAN);
    let SamplerScratch {
        candidates, maxima, ..
    } = scratch;
    select::top_k(logits, count, maxima, candidates);
    let top = candidates.iter();
    Ok(TokenInfo {
        id,
        logprob: Some(softmax.logprob(logit)),
        top: top.map(|c| (c.id, softmax.logprob(c.logit))).collect(),
    })
}

/// The 53 high bits as a number in [0, 1).
fn unit_interval(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A random seed for a request without one, from the standard library's hash keys.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
pub(crate) mod tests;
