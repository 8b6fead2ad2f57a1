//! Sampling through `Sampler::sample`, whose `Distribution::Sampled` shows what was drawn from.

mod distributions;
mod dry;
mod exclusions;
mod logprobs;
mod mirostat;
pub(crate) mod naive;
mod penalties;
mod robust;
mod steps;
mod values;

use std::path::Path;

use super::*;

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// Logits whose softmax is 0.5, 0.25, 0.125, 0.125.
fn halves() -> Vec<f32> {
    [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec()
}

fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    change(&mut params);
    params
}

fn sampler(params: SamplingParams, seed: u64) -> Sampler {
    Sampler::new(params, seed, &[], &[])
}

/// What the next token is drawn from: ids and probabilities, by id.
fn distribution(
    sampler: &mut Sampler,
    logits: &[f32],
    allowed: Option<&TokenMask>,
) -> Result<Vec<(u32, f64)>, EngineError> {
    let logprobs = Logprobs {
        alternatives: logits.len(),
        distribution: Distribution::Sampled,
    };
    let (mut row, mut scratch) = (logits.to_vec(), SamplerScratch::default());
    let info = sampler.sample(&mut row, allowed, Some(logprobs), &mut scratch)?;
    let mut shares: Vec<(u32, f64)> = info
        .top
        .iter()
        .map(|&(id, logprob)| (id, f64::from(logprob).exp()))
        .collect();
    shares.sort_unstable_by_key(|share| share.0);
    assert!(shares.iter().any(|share| share.0 == info.id), "{info:?}");
    Ok(shares)
}

/// One token per byte.
fn tokenizer() -> Tokenizer {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama");
    Tokenizer::from_huggingface(&dir).expect("the golden tokenizer")
}

/// Random numbers for test cases.
struct SeededRng(ChaCha8Rng);

impl SeededRng {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn unit(&mut self) -> f32 {
        unit_interval(self.0.next_u64()) as f32
    }

    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Normally distributed, near enough.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.unit()).sum::<f32>() - 6.0
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}
