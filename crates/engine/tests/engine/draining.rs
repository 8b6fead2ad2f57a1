//! Draining while requests run, wait and arrive.

use std::time::Duration;

use crate::support::*;
use loquat_engine::{Engine, EngineError, EngineOptions, Generation};
use loquat_testkit::fake_session::FakeOptions;

fn slow() -> FakeOptions {
    FakeOptions {
        delay: Duration::from_millis(1),
        ..FakeOptions::default()
    }
}

fn two_at_once() -> EngineOptions {
    EngineOptions {
        max_running: Some(2),
        event_buffer: 1000,
        ..EngineOptions::default()
    }
}

fn expect(generation: Generation, token: u32, count: usize) {
    let completion = generation.collect_blocking().expect("finished");
    let expected = oracle(FakeOptions::default(), &[token], count);
    assert_eq!(completion.ids(), expected, "prompt {token}");
}

/// Requests that run and wait, the first of which surely speaks.
fn load(engine: &Engine, count: u32, max_tokens: usize) -> Vec<Generation> {
    let submit = |token| engine.submit(greedy(&[token], max_tokens));
    let generations: Vec<_> = (0..count).map(|t| submit(t).expect("accepted")).collect();
    eventually("tokens come", || {
        engine.stats().totals.completion_tokens > 0
    });
    generations
}

#[test]
fn drain_finishes_requests_and_refuses_new_ones() {
    let (engine, counters) = start(slow(), two_at_once());
    let generations = load(&engine, 6, 20);
    std::thread::scope(|scope| {
        scope.spawn(|| engine.drain(HANG_TIMEOUT));
        eventually("it closes", || {
            engine.submit(greedy(&[9], 1)).err() == Some(EngineError::ShutDown)
        });
        for (token, generation) in (0..).zip(generations) {
            expect(generation, token, 20);
        }
    });
    assert!(counters.dropped());
    let totals = engine.stats().totals;
    assert_eq!(totals.submitted, totals.finished + totals.cancelled);
    assert!(totals.finished >= 6);
}

#[test]
fn expired_drain_cancels_the_rest() {
    let (engine, counters) = start(slow(), two_at_once());
    let generations = load(&engine, 4, 4000);
    engine.drain(Duration::from_millis(30));
    assert!(counters.dropped());
    for generation in generations {
        let error = generation.collect_blocking().expect_err("too long");
        assert_eq!(error, EngineError::ShutDown);
    }
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.kv_reserved), (0, 0, 0));
    assert_eq!(stats.totals.cancelled, 4);
}
