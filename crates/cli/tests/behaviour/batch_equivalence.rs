//! The engine on the CPU backend: a seeded request generates the same tokens alone, in a batch, and
//! with drafts.

use loquat_cpu::CpuBackend;
use loquat_engine::{Engine, EngineOptions, GenerateRequest, Logprobs, SamplingParams};
use loquat_session::{Backend, Precision, SessionOptions};
use loquat_testkit::goldens;

fn engine(family: &str, precision: Precision, step_tokens: usize) -> Engine {
    let options = SessionOptions {
        precision,
        ..SessionOptions::default()
    };
    let source = goldens::source(&goldens::family(family)).unwrap();
    let session = CpuBackend::AUTO
        .open(source, &options, &mut |_| {})
        .unwrap();
    let options = EngineOptions {
        step_tokens: Some(step_tokens),
        ..EngineOptions::default()
    };
    Engine::start(session, None, options).unwrap()
}

fn request(seed: u64, prompt_len: usize) -> GenerateRequest {
    GenerateRequest {
        prompt: (0..prompt_len)
            .map(|i| (i as u32 * 31 + seed as u32) % 256)
            .collect(),
        max_tokens: 40,
        sampling: SamplingParams {
            temperature: 1.3,
            top_p: 0.9,
            repetition_penalty: 1.1,
            seed: Some(seed),
            ..SamplingParams::default()
        },
        ..GenerateRequest::default()
    }
}

#[test]
fn batching_does_not_change_tokens() {
    for family in ["gemma3_text", "qwen2"] {
        for precision in [Precision::Fast, Precision::Reference] {
            let wide = engine(family, precision, 512);
            let alone: Vec<Vec<u32>> = (0..16)
                .map(|seed| {
                    let generation = wide.submit(request(seed, 3 + 9 * seed as usize)).unwrap();
                    generation.collect_blocking().unwrap().ids()
                })
                .collect();
            // Steps of 24 tokens cut every longer prompt into pieces that differ with the load.
            let narrow = engine(family, precision, 24);
            let together: Vec<_> = (0..16)
                .map(|seed| narrow.submit(request(seed, 3 + 9 * seed as usize)).unwrap())
                .collect();
            for (seed, generation) in together.into_iter().enumerate() {
                let ids = generation.collect_blocking().unwrap().ids();
                assert_eq!(ids, alone[seed], "{family} {precision:?} seed {seed}");
            }
        }
    }
}

/// Attention over everything, windows, and recurrent layers.
#[test]
fn drafts_do_not_change_tokens() {
    for family in ["qwen2", "gemma3_text", "qwen3_next", "lfm2"] {
        for precision in [Precision::Fast, Precision::Reference] {
            let engine = engine(family, precision, 512);
            for seed in 0..12 {
                let repeats = (0..60).map(|at| at % 7 + seed as u32).collect();
                let sampling = match seed % 3 {
                    0 => SamplingParams::greedy(),
                    1 => SamplingParams {
                        temperature: 0.3,
                        ..request(seed, 1).sampling
                    },
                    _ => request(seed, 1).sampling,
                };
                let request = GenerateRequest {
                    prompt: repeats,
                    max_tokens: 60,
                    sampling,
                    logprobs: (seed % 2 == 0).then(|| Logprobs::for_model(2)),
                    ..request(seed, 1)
                };
                let answer = |draft_tokens| {
                    let request = GenerateRequest {
                        draft_tokens,
                        ..request.clone()
                    };
                    let generation = engine.submit(request).unwrap();
                    generation.collect_blocking().unwrap().tokens
                };
                assert_eq!(
                    answer(None),
                    answer(Some(0)),
                    "{family} {precision:?} seed {seed}"
                );
            }
            let drafts = engine.stats().speculation;
            assert!(drafts.accepted_tokens > 0, "{family}: {drafts:?}");
        }
    }
}
