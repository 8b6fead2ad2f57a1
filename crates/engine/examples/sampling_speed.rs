//! How long choosing one token takes: medians over rows of logits as sure and as unsure models
//! give them.
//!
//! `cargo run --release -p loquat-engine --example sampling_speed`

use std::time::{Duration, Instant};

use loquat_engine::{Distribution, Logprobs, Sampler, SamplerScratch, SamplingParams};

const VOCABULARIES: [usize; 3] = [49_152, 151_936, 262_144];
const ROUNDS: usize = 401;

/// How much likelier a few dozen tokens are than the rest: a model as it mostly is, and one that
/// knows nothing.
const MODELS: [(&str, f32); 2] = [("sure", 14.0), ("unsure", 0.0)];

fn chains() -> Vec<(&'static str, SamplingParams)> {
    let chain = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams {
            temperature: 0.8,
            ..SamplingParams::default()
        };
        change(&mut params);
        params
    };
    vec![
        ("temperature", chain(|_| ())),
        (
            "top_k 40, top_p 0.95",
            chain(|p| (p.top_k, p.top_p) = (40, 0.95)),
        ),
        ("top_p 0.95", chain(|p| p.top_p = 0.95)),
        ("min_p 0.05", chain(|p| p.min_p = 0.05)),
        ("typical_p 0.9", chain(|p| p.typical_p = 0.9)),
        ("top_n_sigma 1", chain(|p| p.top_n_sigma = 1.0)),
        (
            "dynatemp, top_k 40",
            chain(|p| (p.dynatemp_range, p.top_k) = (0.5, 40)),
        ),
        ("mirostat 2", chain(|p| p.mirostat = 2)),
        (
            "top_k 40, xtc",
            chain(|p| (p.top_k, p.xtc_probability) = (40, 0.5)),
        ),
        (
            "penalties, top_k 40",
            chain(|p| (p.repetition_penalty, p.top_k) = (1.1, 40)),
        ),
        (
            "dry, top_k 40",
            chain(|p| {
                (p.dry_multiplier, p.top_k) = (0.8, 40);
                p.dry_sequence_breakers.clear();
            }),
        ),
        ("greedy", chain(|p| p.temperature = 0.0)),
    ]
}

fn main() {
    let prompt: Vec<u32> = (0..2000).map(|at| at * 7 % 1013).collect();
    print!("{:<24} {:<8}", "median, µs", "model");
    for vocabulary in VOCABULARIES {
        print!("{vocabulary:>9}");
    }
    println!();
    for (model, lift) in MODELS {
        for (name, params) in chains() {
            row(name, model, lift, None, &params, &prompt);
        }
        let logprobs = [Distribution::Model, Distribution::Sampled];
        for distribution in logprobs {
            let name = format!("{distribution:?} logprobs, top_k 40");
            let params = SamplingParams {
                top_k: 40,
                ..SamplingParams::default()
            };
            let logprobs = Some(Logprobs {
                alternatives: 5,
                distribution,
            });
            row(&name, model, lift, logprobs, &params, &prompt);
        }
    }
}

fn row(
    name: &str,
    model: &str,
    lift: f32,
    logprobs: Option<Logprobs>,
    params: &SamplingParams,
    prompt: &[u32],
) {
    print!("{name:<24} {model:<8}");
    for vocabulary in VOCABULARIES {
        let sampler = Sampler::new(params.clone(), 1, prompt, &[]);
        let median = median(sampler, &logits(vocabulary, lift), logprobs);
        print!("{:>9.1}", median.as_secs_f64() * 1e6);
    }
    println!();
}

fn median(mut sampler: Sampler, logits: &[f32], logprobs: Option<Logprobs>) -> Duration {
    let mut scratch = SamplerScratch::default();
    let mut row = logits.to_vec();
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            row.copy_from_slice(logits);
            let start = Instant::now();
            let info = sampler.sample(&mut row, None, logprobs, &mut scratch);
            let time = start.elapsed();
            assert!(info.is_ok(), "{info:?}");
            time
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

/// Normally distributed (the sum of twelve uniform numbers is close enough), with `lift` for a
/// few.
fn logits(vocabulary: usize, lift: f32) -> Vec<f32> {
    const SPREAD: f32 = 2.0;
    const LIFTED_EVERY: usize = 4001;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let logit = |id: usize| {
        let normal = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
        let lifted = id.is_multiple_of(LIFTED_EVERY);
        SPREAD * normal + if lifted { lift } else { 0.0 }
    };
    (0..vocabulary).map(logit).collect()
}
