//! Requests with adapters, loaded and unloaded while others run.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use loquat_engine::{EngineError, EngineOptions, GenerateRequest, UnloadMode};
use loquat_session::{AdapterId, AdapterWeights, AppliedAdapter, SessionError};
use loquat_testkit::fake_session::FakeOptions;
use loquat_testkit::{adapters, goldens};

use crate::support::{assert_empty, eventually, greedy, ids, start, start_default};

fn pair() -> [Arc<AdapterWeights>; 2] {
    let source = goldens::source(&goldens::family("llama")).expect("a golden");
    let pair = adapters::pair(&source.spec).into_iter().map(Arc::new);
    let pair: Vec<_> = pair.collect();
    pair.try_into().expect("two")
}

fn with(adapters: &[(AdapterId, f32)], request: GenerateRequest) -> GenerateRequest {
    let applied = |(id, scale): &(AdapterId, f32)| AppliedAdapter {
        id: *id,
        scale: *scale,
    };
    GenerateRequest {
        adapters: adapters.iter().map(applied).collect(),
        ..request
    }
}

#[test]
fn adapters_share_no_prefixes() {
    let (engine, counters) = start_default();
    let [a, b] = pair().map(|weights| engine.load_adapter(weights).unwrap());
    let prompt: Vec<u32> = (0..100).collect();
    let mixes: [&[(AdapterId, f32)]; 5] = [
        &[],
        &[(a, 1.0)],
        &[(b, 1.0)],
        &[(a, 0.5)],
        &[(b, 1.0), (a, 1.0)],
    ];
    let mut answers: Vec<Vec<u32>> = Vec::new();
    for mix in mixes {
        let answer = |expected: u64| {
            let generation = engine.submit(with(mix, greedy(&prompt, 8))).unwrap();
            let completion = generation.collect_blocking().unwrap();
            assert_eq!(completion.usage.cached_tokens as u64, expected, "{mix:?}");
            completion.ids()
        };
        let first = answer(0);
        assert_eq!(answer(99), first, "{mix:?}");
        assert!(!answers.contains(&first), "{mix:?}");
        answers.push(first);
    }
    // The order of adapters, and one of scale 0, change nothing.
    let turned = with(&[(a, 1.0), (b, 1.0)], greedy(&prompt, 8));
    assert_eq!(ids(&engine, turned), answers[4]);
    let nothing = with(&[(a, 0.0)], greedy(&prompt, 8));
    assert_eq!(ids(&engine, nothing), answers[0]);
    assert_eq!(engine.memory().adapters_loaded, 2);
    for id in [a, b] {
        engine.unload_adapter(id, UnloadMode::Wait).unwrap();
    }
    assert_eq!(engine.memory().adapter_bytes, 0);
    assert_empty(&engine, &counters);
}

#[test]
fn unloading_waits_for_requests_or_fails_them() {
    for mode in [UnloadMode::Wait, UnloadMode::Cancel] {
        // The requests take much longer than the command.
        let fake = FakeOptions {
            delay: Duration::from_millis(2),
            ..FakeOptions::default()
        };
        let (engine, counters) = start(fake, EngineOptions::default());
        let [a, b] = pair().map(|weights| engine.load_adapter(weights).unwrap());
        let user = engine
            .submit(with(&[(a, 1.0)], greedy(&[1, 2], 300)))
            .unwrap();
        let other = engine
            .submit(with(&[(b, 1.0)], greedy(&[1, 2], 300)))
            .unwrap();
        thread::scope(|scope| {
            let unloading = scope.spawn(|| engine.unload_adapter(a, mode));
            let ended = user.collect_blocking();
            let unknown = EngineError::Session(SessionError::UnknownAdapter(a));
            match mode {
                UnloadMode::Wait => assert_eq!(ended.unwrap().ids().len(), 300),
                UnloadMode::Cancel => assert_eq!(ended.unwrap_err(), unknown),
            }
            assert_eq!(unloading.join().unwrap(), Ok(()));
        });
        assert_eq!(other.collect_blocking().unwrap().ids().len(), 300);
        let refused = engine.submit(with(&[(a, 1.0)], greedy(&[1], 1))).unwrap();
        let refused = refused.collect_blocking().unwrap_err();
        let unknown = EngineError::Session(SessionError::UnknownAdapter(a));
        assert_eq!(refused, unknown);
        assert_eq!(engine.unload_adapter(a, mode), Err(unknown));
        eventually("one adapter is left", || {
            engine.memory().adapters_loaded == 1
        });
        assert_empty(&engine, &counters);
    }
}

#[test]
fn loading_and_unloading_under_traffic_keeps_answers_right() {
    const LOADS: usize = 100;
    let (engine, counters) = start_default();
    let weights = pair();
    let expected = weights.clone().map(|weights| {
        let id = engine.load_adapter(weights).unwrap();
        let answer = ids(&engine, with(&[(id, 1.0)], greedy(&[7, 8, 9], 6)));
        engine.unload_adapter(id, UnloadMode::Wait).unwrap();
        answer
    });
    let base = ids(&engine, greedy(&[7, 8, 9], 6));
    thread::scope(|scope| {
        for (weights, expected) in weights.iter().zip(&expected) {
            let engine = &engine;
            scope.spawn(move || {
                for _ in 0..LOADS {
                    let id = engine.load_adapter(Arc::clone(weights)).unwrap();
                    let found = ids(engine, with(&[(id, 1.0)], greedy(&[7, 8, 9], 6)));
                    assert_eq!(found, *expected);
                    engine.unload_adapter(id, UnloadMode::Wait).unwrap();
                }
            });
        }
        for _ in 0..LOADS {
            assert_eq!(ids(&engine, greedy(&[7, 8, 9], 6)), base);
        }
    });
    let memory = engine.memory();
    assert_eq!((memory.adapters_loaded, memory.adapter_bytes), (0, 0));
    assert_empty(&engine, &counters);
}

#[test]
fn session_without_room_refuses_adapters() {
    let fake = FakeOptions {
        adapters: Default::default(),
        ..FakeOptions::default()
    };
    let (engine, _) = start(fake, EngineOptions::default());
    let [a, _] = pair();
    let refused = engine.load_adapter(a).unwrap_err();
    let unsupported = EngineError::Session(SessionError::Unsupported("adapters"));
    assert_eq!(refused, unsupported);
    let request = with(&[(AdapterId(0), 1.0)], greedy(&[1], 1));
    let refused = engine.submit(request).unwrap_err().to_string();
    assert!(refused.contains("`adapters`"), "{refused}");
}
