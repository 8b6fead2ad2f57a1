//! Draining and reloading while requests run, wait and arrive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::*;
use loquat_engine::{Engine, EngineError, EngineOptions, Generation};
use loquat_session::{Session, SessionError};
use loquat_testkit::fake_session::{FakeOptions, FakeSession, Fault};

const LONG: Duration = Duration::from_secs(60);

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

fn opener(fake: FakeOptions) -> impl FnOnce() -> Result<Box<dyn Session>, SessionError> + Send {
    move || Ok(Box::new(FakeSession::new(fake)))
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
        scope.spawn(|| engine.drain(LONG));
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

#[test]
fn reload_loses_no_request() {
    // With patience what runs finishes first; without, it is computed again.
    for patience in [LONG, Duration::ZERO] {
        let (engine, counters) = start(slow(), two_at_once());
        let before = load(&engine, 6, 40);
        let reloaded = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                engine.reload(patience, opener(slow())).expect("reloaded");
                reloaded.store(true, Ordering::SeqCst);
            });
            let mut during = Vec::new();
            for token in 100.. {
                let last = reloaded.load(Ordering::SeqCst);
                during.push((token, engine.submit(greedy(&[token], 3)).expect("taken")));
                if last {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            for (token, generation) in (0..).zip(before) {
                expect(generation, token, 40);
            }
            for (token, generation) in during {
                expect(generation, token, 3);
            }
        });
        assert!(counters.dropped(), "the old session is gone");
        let totals = engine.stats().totals;
        assert_eq!(totals.submitted, totals.finished);
    }
}

#[test]
fn concurrent_reloads_both_happen() {
    let (engine, _) = start(slow(), two_at_once());
    let generations = load(&engine, 4, 30);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| engine.reload(LONG, opener(slow())).expect("reloaded"));
        }
    });
    for (token, generation) in (0..).zip(generations) {
        expect(generation, token, 30);
    }
}

#[test]
fn smaller_session_refuses_what_does_not_fit() {
    let (engine, _) = start(slow(), two_at_once());
    let runs = load(&engine, 2, 30);
    let fits = engine.submit(greedy(&[50], 20)).expect("waits");
    let too_long = engine.submit(greedy(&[51], 100)).expect("waits");
    let too_large = engine.submit(greedy(&[52; 20], 40)).expect("waits");
    let small = FakeOptions {
        max_context: 64,
        kv_capacity: 48,
        ..FakeOptions::default()
    };
    engine.reload(LONG, opener(small)).expect("reloaded");
    assert_eq!(engine.capabilities().max_context, 64);
    for (token, generation) in (0..).zip(runs) {
        expect(generation, token, 30);
    }
    expect(fits, 50, 20);
    assert_eq!(
        too_long.collect_blocking(),
        Err(EngineError::ContextExceeded {
            prompt: 1,
            max_tokens: 100,
            max_context: 64
        })
    );
    assert_eq!(
        too_large.collect_blocking(),
        Err(EngineError::NeverFits {
            needed: 64,
            capacity: 48,
            max_context: 64
        })
    );
    let refused = engine.submit(greedy(&[1], 100)).expect_err("refused");
    assert!(matches!(refused, EngineError::ContextExceeded { .. }));
}

#[test]
fn failed_reload_ends_all_requests() {
    type Open = fn() -> Result<Box<dyn Session>, SessionError>;
    let cases: [(Open, &str); 3] = [
        (
            || Err(SessionError::Device("the file is gone".into())),
            "the file is gone",
        ),
        (|| panic!("a bug in opening"), "a bug in opening"),
        (
            || {
                Ok(Box::new(FakeSession::new(FakeOptions {
                    vocab_size: 9,
                    ..FakeOptions::default()
                })))
            },
            "9 tokens",
        ),
    ];
    for (open, reason) in cases {
        let (engine, counters) = start(slow(), two_at_once());
        let generations = load(&engine, 4, 1000);
        let error = engine.reload(Duration::ZERO, open).expect_err("it fails");
        assert!(matches!(error, EngineError::Dead(_)), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        for generation in generations {
            assert_eq!(generation.collect_blocking().err(), Some(error.clone()));
        }
        assert_eq!(engine.submit(greedy(&[1], 1)).err(), Some(error.clone()));
        assert_eq!(engine.reload(LONG, open).err(), Some(error));
        assert!(counters.dropped());
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.kv_reserved), (0, 0, 0));
        assert_eq!(stats.totals.cancelled, stats.totals.submitted);
    }
}

#[test]
fn panic_after_reload_ends_the_engine() {
    let (engine, _) = start(slow(), two_at_once());
    let rogue = FakeOptions {
        faults: vec![(3, Fault::Panic)],
        ..slow()
    };
    engine.reload(LONG, opener(rogue)).expect("reloaded");
    let generation = engine.submit(greedy(&[1], 20)).expect("accepted");
    let error = generation.collect_blocking().expect_err("it panics");
    assert!(matches!(error, EngineError::Dead(_)), "{error}");
}

#[test]
fn reload_waits_at_most_its_patience() {
    let options = EngineOptions {
        event_buffer: 2,
        ..two_at_once()
    };
    let (engine, _) = start(FakeOptions::default(), options);
    let submit = |token, max_tokens| engine.submit(greedy(&[token], max_tokens));
    let stalled = [0, 1].map(|token| submit(token, 50).expect("accepted"));
    let waits = submit(2, 5).expect("queued");
    eventually("both stall", || engine.stats().paused == 2);
    let started = Instant::now();
    let patience = Duration::from_millis(100);
    let reloaded = engine.reload(patience, opener(FakeOptions::default()));
    assert_eq!(reloaded, Ok(()));
    let elapsed = started.elapsed();
    assert!((patience..LONG).contains(&elapsed), "{elapsed:?}");
    expect(waits, 2, 5);
    for (token, generation) in (0..).zip(stalled) {
        expect(generation, token, 50);
    }
}
