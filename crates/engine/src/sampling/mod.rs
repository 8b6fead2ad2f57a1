//! From logits to the next token: penalties, bias, the constraint's mask, temperature, top-k,
//! top-p, min-p, draw, in that order.
//!
//! A choice depends on the row's logits, the request and its own random stream, never on what
//! else is running.

mod logits;
mod params;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

pub use params::{
    FREQUENCY_PENALTY, LOGIT_BIAS, MIN_P, PARAMETERS, PRESENCE_PENALTY, Parameter,
    REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_K, TOP_P,
};

pub(crate) use params::check_token;

use crate::{Constrained, EngineError, TokenInfo};
use logits::{Candidate, LogSoftmax};

/// Buffers that all requests take turns in, so that a token allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    candidates: Vec<Candidate>,
    raw: Vec<f32>,
}

/// One request's choices: its parameters, its random stream, and what it has seen.
#[derive(Debug)]
pub(crate) struct Sampler {
    params: SamplingParams,
    rng: ChaCha8Rng,
    /// Sorted by id; kept only where a penalty asks for it.
    seen: Vec<Seen>,
    constraint: Option<Constrained>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    id: u32,
    in_output: u32,
}

impl Sampler {
    pub fn new(params: SamplingParams, seed: u64, prompt: &[u32]) -> Self {
        let mut seen = Vec::new();
        if params.penalises() {
            seen.extend(prompt.iter().map(|&id| Seen { id, in_output: 0 }));
            seen.sort_unstable_by_key(|seen| seen.id);
            seen.dedup_by_key(|seen| seen.id);
        }
        Self {
            params,
            rng: ChaCha8Rng::seed_from_u64(seed),
            seen,
            constraint: None,
        }
    }

    /// Lets `constraint` say what may be chosen.
    pub fn constrained(mut self, constraint: Option<Constrained>) -> Self {
        self.constraint = constraint;
        self
    }

    /// Whether the choice is the largest of the model's own logits, so that these need not be
    /// read.
    pub fn is_plain_greedy(&self) -> bool {
        self.params.is_plain_greedy() && self.constraint.is_none()
    }

    /// Chooses the next token, with log-probabilities of the model's own distribution where
    /// `alternatives` asks for them. Overwrites `logits`.
    pub fn sample(
        &mut self,
        logits: &mut [f32],
        alternatives: Option<usize>,
        scratch: &mut Scratch,
    ) -> Result<TokenInfo, EngineError> {
        let Some(count) = alternatives else {
            let id = self.choose(logits, scratch)?;
            return Ok(TokenInfo::bare(id));
        };
        let mut raw = std::mem::take(&mut scratch.raw);
        raw.clear();
        raw.extend_from_slice(logits);
        let info = self
            .choose(logits, scratch)
            .and_then(|id| score(id, &raw, count, scratch));
        scratch.raw = raw;
        info
    }

    /// Notes a token of the output.
    pub fn observe(&mut self, id: u32) -> Result<(), EngineError> {
        if self.params.penalises() {
            match self.seen.binary_search_by_key(&id, |seen| seen.id) {
                Ok(at) => self.seen[at].in_output += 1,
                Err(at) => self.seen.insert(at, Seen { id, in_output: 1 }),
            }
        }
        match &mut self.constraint {
            Some(constraint) => constraint.accept(id),
            None => Ok(()),
        }
    }

    fn choose(&mut self, logits: &mut [f32], scratch: &mut Scratch) -> Result<u32, EngineError> {
        self.penalise(logits);
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        let chosen = if self.params.temperature == 0.0 {
            logits::argmax(logits)
        } else {
            let unit = unit_interval(self.rng.next_u64());
            self.draw(logits, unit, &mut scratch.candidates)
        };
        chosen.ok_or_else(|| match self.constraint {
            Some(_) => EngineError::Constraint("it leaves no token to choose".into()),
            None => EngineError::NoCandidate,
        })
    }

    fn penalise(&self, logits: &mut [f32]) {
        let SamplingParams {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            ..
        } = self.params;
        for seen in &self.seen {
            let Some(logit) = logits.get_mut(seen.id as usize) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= repetition_penalty;
            } else {
                *logit *= repetition_penalty;
            }
            if seen.in_output > 0 {
                *logit -= presence_penalty + frequency_penalty * seen.in_output as f32;
            }
        }
    }

    /// Temperature, truncations and the choice itself; `unit` is in [0, 1).
    fn draw(&self, logits: &mut [f32], unit: f64, candidates: &mut Vec<Candidate>) -> Option<u32> {
        let SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..
        } = self.params;
        let peak = logits::peak(logits)?;
        if top_k > 0 && top_k < logits.len() {
            logits::top_k(logits, top_k, candidates);
            for candidate in candidates.iter_mut() {
                candidate.score = logits::weight(candidate.score, peak, temperature);
            }
            if top_p < 1.0 {
                logits::nucleus(candidates, f64::from(top_p) * weight_of(candidates));
            }
        } else {
            logits::weigh(logits, peak, temperature);
            let total = logits::total(logits);
            if top_p == 1.0 && min_p == 0.0 {
                return logits::draw(logits, unit * total);
            }
            if top_p < 1.0 {
                // Tokens below this weigh less than 1 - top_p together, so the nucleus is
                // found without them.
                let spare = (1.0 - f64::from(top_p)) * total / logits.len() as f64;
                logits::at_least(logits, spare as f32, candidates);
                logits::nucleus(candidates, f64::from(top_p) * total);
            } else {
                logits::at_least(logits, min_p, candidates);
            }
        }
        candidates.retain(|candidate| candidate.score >= min_p);
        logits::draw_candidate(candidates, unit * weight_of(candidates))
    }
}

/// A token with its log-probability and the `count` likeliest, before any adjustment.
pub(crate) fn score(
    id: u32,
    logits: &[f32],
    count: usize,
    scratch: &mut Scratch,
) -> Result<TokenInfo, EngineError> {
    let softmax = LogSoftmax::of(logits).ok_or(EngineError::NoCandidate)?;
    let logit = logits.get(id as usize).copied().unwrap_or(f32::NAN);
    logits::top_k(logits, count, &mut scratch.candidates);
    let top = scratch.candidates.iter();
    Ok(TokenInfo {
        id,
        logprob: Some(softmax.logprob(logit)),
        top: top.map(|c| (c.id, softmax.logprob(c.score))).collect(),
    })
}

fn weight_of(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|c| f64::from(c.score)).sum()
}

/// The 53 high bits as a number in [0, 1).
fn unit_interval(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A seed for a request that brought none, from the operating system's randomness by way of the
/// standard library's hash keys.
pub(crate) fn fresh_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests;
