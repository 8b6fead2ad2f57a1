//! The engine on the CPU backend: a seeded request generates the same tokens alone and in a batch.

use loquat_cpu::CpuBackend;
use loquat_engine::{Engine, EngineOptions, GenerateRequest, SamplingParams};
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
