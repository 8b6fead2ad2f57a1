//! Submitting, cancelling, draining and shutting down from many threads at once.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use loquat_engine::{
    AllowedTokens, Constraint, ConstraintError, Engine, EngineError, EngineFailure, EngineOptions,
    Event, GenerateRequest, Generation, RequestConstraint, TokenMask,
};
use loquat_testkit::fake_session::{FakeOptions, FakeSession, Fault};

fn slow() -> FakeOptions {
    FakeOptions {
        delay: Duration::from_millis(1),
        ..FakeOptions::default()
    }
}

#[test]
fn earlier_of_two_drains_counts() {
    let (engine, _) = start(slow(), EngineOptions::default());
    // Unread, it does not end by itself.
    let endless = engine.submit(greedy(&[1], 4000)).expect("accepted");
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| engine.drain(Duration::from_millis(100)));
        engine.drain(HANG_TIMEOUT);
    });
    assert!(begun.elapsed() < HANG_TIMEOUT, "{:?}", begun.elapsed());
    assert_eq!(endless.collect_blocking(), Err(EngineError::ShutDown));
}

#[test]
fn dropped_readers_delay_nobody() {
    let options = EngineOptions {
        event_buffer: 2,
        ..EngineOptions::default()
    };
    let (engine, _) = start(slow(), options);
    let stalled = engine.submit(greedy(&[1], 1000)).expect("accepted");
    eventually("it stalls", || engine.stats().paused == 1);
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| engine.drain(HANG_TIMEOUT));
        drop(stalled);
    });
    assert!(begun.elapsed() < HANG_TIMEOUT, "{:?}", begun.elapsed());
}

#[test]
fn second_stop_finds_session_dropped() {
    for _ in 0..300 {
        let session = FakeSession::new(FakeOptions::default());
        let counters = session.counters();
        let engine = Engine::start(Box::new(session), None, EngineOptions::default());
        let engine = engine.expect("an engine");
        thread::scope(|scope| {
            scope.spawn(|| engine.drain(Duration::ZERO));
            engine.shutdown();
            assert!(counters.dropped());
        });
    }
}

/// Panics when the engine drops it.
struct PanicsOnDrop;

impl Constraint for PanicsOnDrop {
    fn allowed(&mut self, _mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        Ok(AllowedTokens::All)
    }

    fn accept(&mut self, _token: u32) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(PanicsOnDrop)
    }
}

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if thread::current().name() == Some("loquat-engine") {
            panic!("a bug in dropping");
        }
    }
}

#[test]
fn panic_in_constraint_drop_is_contained() {
    let (engine, counters) = start(slow(), EngineOptions::default());
    let other = engine.submit(greedy(&[1], 50)).expect("accepted");
    let panics_on_drop = GenerateRequest {
        constraint: Some(RequestConstraint::new(PanicsOnDrop)),
        ..greedy(&[2], 3)
    };
    let panics_on_drop = engine.submit(panics_on_drop).expect("accepted");
    assert_eq!(
        panics_on_drop
            .collect_blocking()
            .expect("finished")
            .ids()
            .len(),
        3
    );
    assert_eq!(other.collect_blocking().expect("finished").ids().len(), 50);
    assert_empty(&engine, &counters);
}

/// Reads to the end, and says what was wrong with it.
fn read(mut generation: Generation) -> Option<String> {
    let (mut ends, mut tokens) = (0, 0);
    let mut wrong = None;
    while let Some(event) = generation.recv_blocking() {
        match event {
            Event::Tokens { tokens: new, .. } => tokens += new.len(),
            Event::Finished { usage, .. } => {
                ends += 1;
                if usage.completion_tokens != tokens {
                    wrong = Some(format!("{tokens} tokens, but {usage:?}"));
                }
            }
            Event::Failed(error) => {
                ends += 1;
                wrong = wrong.or_else(|| unexpected(&error));
            }
            Event::PromptLogprobs(_) | Event::Embedding(_) => {}
        }
    }
    wrong.or((ends != 1).then(|| format!("{ends} last events")))
}

/// What an engine that ends, or whose session fails, does not say.
fn unexpected(error: &EngineError) -> Option<String> {
    let expected = match error {
        EngineError::ShutDown | EngineError::QueueFull | EngineError::Session(_) => true,
        EngineError::Dead(failure) => *failure != EngineFailure::ThreadGone,
        _ => false,
    };
    (!expected).then(|| error.to_string())
}

/// A client that now and then leaves early.
fn client(engine: &Engine, name: u32) -> Vec<String> {
    let mut wrong = Vec::new();
    for i in 0..40 {
        let request = greedy(&[name, i % 7, 3, 4], 1 + (i as usize * 7) % 30);
        match engine.submit(request) {
            Ok(generation) if i % 3 == 0 => drop(generation),
            Ok(generation) => wrong.extend(read(generation)),
            Err(EngineError::QueueFull) => thread::yield_now(),
            Err(error) => {
                wrong.extend(unexpected(&error));
                break;
            }
        }
    }
    wrong
}

/// One engine from its start to its end, with everybody at it.
fn run_concurrent_load(round: u64, faults: Vec<(usize, Fault)>) {
    let fake = FakeOptions {
        faults,
        kv_capacity: 256,
        max_sequences: 6,
        ..FakeOptions::default()
    };
    let options = EngineOptions {
        max_queue: 8,
        event_buffer: 2,
        max_running: Some(3),
        ..EngineOptions::default()
    };
    let (engine, _) = start(fake, options);
    let engine = &engine;
    let wrong: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|name| scope.spawn(move || client(engine, name)))
            .collect();
        scope.spawn(move || {
            for _ in 0..3 {
                engine.clear_cache();
                thread::sleep(Duration::from_micros(300));
            }
        });
        scope.spawn(move || {
            thread::sleep(Duration::from_micros(200 * (round % 40)));
            engine.drain(Duration::from_micros(500));
        });
        if round.is_multiple_of(3) {
            scope.spawn(move || {
                thread::sleep(Duration::from_micros(200 * (round % 40) + 50));
                engine.shutdown();
            });
        }
        let clients = clients.into_iter();
        clients
            .flat_map(|client| client.join().expect("no panic"))
            .collect()
    });
    assert!(wrong.is_empty(), "round {round}: {wrong:?}");
    let stats = engine.stats();
    let held = stats.running + stats.waiting + stats.kv_reserved + stats.memory.kv_in_use;
    assert_eq!(held, 0, "round {round}: {stats:?}");
    let totals = stats.totals;
    let ended = totals.finished + totals.failed + totals.cancelled + totals.timed_out;
    assert_eq!(totals.submitted, ended, "round {round}: {totals:?}");
}

#[test]
fn concurrent_load_leaks_nothing() {
    for round in 0..300 {
        run_concurrent_load(round, Vec::new());
    }
}

#[test]
fn concurrent_load_on_failing_session_leaks_nothing() {
    for round in 0..300 {
        let at = round as usize % 60;
        let faults = match round % 2 {
            0 => vec![(at, Fault::Panic)],
            _ => (at..at + 3).map(|step| (step, Fault::Fail)).collect(),
        };
        run_concurrent_load(round, faults);
    }
}

#[test]
fn stalled_reader_delays_only_one_step() {
    let grace = Duration::from_secs(2);
    let options = EngineOptions {
        reader_grace: grace,
        ..EngineOptions::default()
    };
    let (engine, _) = start(FakeOptions::default(), options);
    let submit = || engine.submit(greedy(&[5; 8], 200)).expect("room");
    let stalled = submit();
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..6 {
            let generation = submit();
            scope.spawn(|| generation.collect_blocking().expect("whole"));
        }
    });
    drop(stalled);
    // Otherwise each of two hundred steps would take the grace.
    assert!(began.elapsed() < grace * 150, "{:?}", began.elapsed());
}
