//! Prefixes on disk with real families: an engine ends, and the next one continues.

use std::path::Path;
use std::time::Duration;

use loquat_cpu::CpuBackend;
use loquat_engine::{
    DiskOptions, Distribution, Engine, EngineOptions, GenerateRequest, Logprobs, SamplingParams,
};
use loquat_session::{Backend, SessionOptions};
use loquat_testkit::goldens;
use tempfile::TempDir;

/// The chosen tokens with the bits of their log-probabilities, and how much of the prompt was cached.
type Answer = (Vec<(u32, Option<u32>)>, usize);

fn engine(model: &Path, kv_disk: Option<&Path>) -> Engine {
    let source = goldens::source(model).unwrap();
    let options = SessionOptions {
        // Several rows for a prompt.
        max_step_tokens: 32,
        ..SessionOptions::default()
    };
    let session = CpuBackend::AUTO.open(source, &options, &mut |_| {});
    let options = EngineOptions {
        kv_disk: kv_disk.map(|folder| DiskOptions {
            folder: folder.to_owned(),
            max_bytes: 1 << 30,
            required: true,
        }),
        ..EngineOptions::default()
    };
    Engine::start(session.unwrap(), None, options).unwrap()
}

fn ask(engine: &Engine, prompt: &[u32]) -> Answer {
    let request = GenerateRequest {
        prompt: prompt.to_vec(),
        max_tokens: 8,
        sampling: SamplingParams::greedy(),
        logprobs: Some(Logprobs {
            alternatives: 0,
            distribution: Distribution::Model,
        }),
        ..GenerateRequest::default()
    };
    let completion = engine.submit(request).unwrap().collect_blocking().unwrap();
    let tokens = completion.tokens.iter();
    let bits = tokens.map(|token| (token.id, token.logprob.map(f32::to_bits)));
    (bits.collect(), completion.usage.cached_tokens)
}

#[test]
fn every_family_continues_after_a_restart() {
    for model in goldens::all().unwrap() {
        let folder = TempDir::new().unwrap();
        let mut prompt: Vec<u32> = (0..100).map(|at| (at * at + 3) % 40).collect();
        let first = engine(&model, Some(folder.path()));
        let (answer, _) = ask(&first, &prompt);
        first.drain(Duration::from_secs(60));
        drop(first);

        prompt.extend(answer.iter().map(|(id, _)| id));
        prompt.extend([7, 8, 9]);
        let (cold, cached) = ask(&engine(&model, None), &prompt);
        assert_eq!(cached, 0);
        let (answer, cached) = ask(&engine(&model, Some(folder.path())), &prompt);
        assert_eq!(answer, cold, "{}", model.display());
        // One block, or all that was computed.
        assert!(
            [64, 107].contains(&cached),
            "{cached} of {}",
            model.display()
        );
        let has_tail = std::fs::read_dir(folder.path()).unwrap().count() > 1;
        assert_eq!(has_tail, cached == 107, "{}", model.display());
    }
}
