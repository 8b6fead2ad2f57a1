//! SmolLM2 under load: every stream generates what it generates alone, for any chunk size, with or
//! without the cache, and after preemption.

use std::sync::Arc;

use loquat_cpu::CpuBackend;
use loquat_engine::{Engine, EngineOptions, GenerateRequest, Generation, SamplingParams, Stats};
use loquat_session::{Backend, ModelSource, SessionOptions};
use loquat_store::{NoProgress, Store, StoreOptions};
use loquat_text::{Special, Tokenizer};
use loquat_weights::Checkpoint;

const REQUESTS: usize = 32;
const LONG: usize = 20;

struct Model {
    source: ModelSource,
    tokenizer: Tokenizer,
}

impl Model {
    fn load() -> Self {
        let store = Store::open(StoreOptions::default()).unwrap();
        let located = store
            .locate(&"smollm2:135m".into(), &mut NoProgress)
            .unwrap();
        let checkpoint = Checkpoint::open(&located.path).unwrap();
        Self {
            source: ModelSource {
                spec: Arc::new(checkpoint.spec.clone()),
                weights: Arc::new(checkpoint.bind().unwrap()),
                paths: checkpoint.paths.clone(),
            },
            tokenizer: Tokenizer::from_gguf(checkpoint.gguf_metadata().unwrap()).unwrap(),
        }
    }

    fn engine(&self, kv_tokens: usize, options: EngineOptions) -> Engine {
        let session = SessionOptions {
            kv_tokens: Some(kv_tokens),
            ..SessionOptions::default()
        };
        let session = CpuBackend::AUTO
            .open(self.source.clone(), &session, &mut |_| {})
            .unwrap();
        Engine::start(session, None, options).unwrap()
    }

    /// Greedy requests of many lengths, some with common prefixes.
    fn requests(&self) -> Vec<GenerateRequest> {
        let openings = [
            "You are a helpful assistant who answers in one short sentence. ",
            "The following is a list of facts about the sea, each on its own line:\n- ",
            "",
        ];
        let subjects = ["Rain", "Paris", "In 1492", "The cat", "Two plus two"];
        (0..REQUESTS)
            .map(|i| {
                let subject = subjects[i % subjects.len()];
                let times = match i {
                    // Longer than any step.
                    LONG => 90,
                    _ => i * i % 7,
                };
                let middle = "and then, as everyone knows, ".repeat(times);
                let text = format!("{}{subject} {middle}is", openings[i % openings.len()]);
                GenerateRequest {
                    prompt: self.tokenizer.encode(&text, Special::PROMPT).unwrap(),
                    max_tokens: 6 + i * 7 % 13,
                    sampling: SamplingParams::greedy(),
                    ..GenerateRequest::default()
                }
            })
            .collect()
    }
}

fn finish(generations: Vec<Generation>) -> Vec<Vec<u32>> {
    generations
        .into_iter()
        .map(|generation| generation.collect_blocking().unwrap().ids())
        .collect()
}

/// All requests at once, with the engine's statistics.
fn together(engine: &Engine, requests: &[GenerateRequest]) -> (Vec<Vec<u32>>, Stats) {
    let submit = |request: &GenerateRequest| engine.submit(request.clone()).unwrap();
    let ids = finish(requests.iter().map(submit).collect());
    (ids, engine.stats())
}

/// The longest starts first; later requests have higher priority, and KV is short.
fn with_preemption(model: &Model, options: EngineOptions, alone: &[Vec<u32>]) {
    let engine = model.engine(26 * 32, options);
    let mut generations: Vec<Option<Generation>> = (0..REQUESTS).map(|_| None).collect();
    let requests = model.requests();
    for (order, i) in (LONG..REQUESTS).chain(0..LONG).enumerate() {
        let request = GenerateRequest {
            priority: (REQUESTS - order) as i32,
            ..requests[i].clone()
        };
        generations[i] = Some(engine.submit(request).unwrap());
        // The longest is running when the others arrive.
        while order == 0 && engine.stats().running == 0 {
            std::thread::yield_now();
        }
    }
    let ids = finish(generations.into_iter().flatten().collect());
    assert_eq!(ids, alone);
    let stats = engine.stats();
    assert!(stats.totals.preempted > 0, "{stats:?}");
}

#[test]
fn batching_does_not_change_smollm2() {
    let model = Model::load();
    let requests = model.requests();
    let longest = requests.iter().map(|request| request.prompt.len()).max();
    assert!(longest > Some(512), "{longest:?}");
    let cold = EngineOptions {
        cache_bytes: Some(0),
        ..EngineOptions::default()
    };
    let engine = model.engine(16_384, cold.clone());
    let alone: Vec<Vec<u32>> = requests
        .iter()
        .flat_map(|request| finish(vec![engine.submit(request.clone()).unwrap()]))
        .collect();
    drop(engine);
    for step_tokens in [16, 64, 512] {
        for cache_bytes in [None, Some(0)] {
            let options = EngineOptions {
                step_tokens: Some(step_tokens),
                cache_bytes,
                ..EngineOptions::default()
            };
            let engine = model.engine(16_384, options);
            let (ids, stats) = together(&engine, &requests);
            assert_eq!(ids, alone, "steps of {step_tokens}, cache {cache_bytes:?}");
            assert_eq!(stats.cache.hits > 0, cache_bytes.is_none(), "{stats:?}");
            // Again, from the cache of the first round.
            if step_tokens == 64 && cache_bytes.is_none() {
                let (ids, again) = together(&engine, &requests);
                assert_eq!(ids, alone, "from the cache");
                assert_eq!(again.cache.hits - stats.cache.hits, REQUESTS as u64);
            }
        }
    }
    for step_tokens in [16, 64, 512] {
        let cached = EngineOptions::default();
        for options in [cached, cold.clone()] {
            let options = EngineOptions {
                step_tokens: Some(step_tokens),
                ..options
            };
            with_preemption(&model, options, &alone);
        }
    }
}
