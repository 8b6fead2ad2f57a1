//! Everything at once, from many threads: submitting, leaving, reloading, draining, shutting down.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use loquat_engine::{
    Allowed, Constrained, Constraint, ConstraintError, Engine, EngineError, EngineOptions, Event,
    GenerateRequest, Generation, TokenMask,
};
use loquat_session::Session;
use loquat_testkit::fake_session::{FakeOptions, FakeSession, Fault};

fn slow() -> FakeOptions {
    FakeOptions {
        delay: Duration::from_millis(1),
        ..FakeOptions::default()
    }
}

/// Reloads into `fake`, whose opening takes `opening`; runs `meanwhile` when that has begun.
fn while_opening(
    engine: &Engine,
    fake: FakeOptions,
    opening: Duration,
    meanwhile: impl FnOnce(),
) -> Result<(), EngineError> {
    let begun = Arc::new(AtomicBool::new(false));
    let announced = Arc::clone(&begun);
    let open = move || -> Result<Box<dyn Session>, String> {
        announced.store(true, Ordering::SeqCst);
        thread::sleep(opening);
        Ok(Box::new(FakeSession::new(fake)))
    };
    thread::scope(|scope| {
        let reload = scope.spawn(|| engine.reload(Duration::ZERO, open));
        eventually("it opens", || begun.load(Ordering::SeqCst));
        meanwhile();
        reload.join().expect("no panic")
    })
}

#[test]
fn what_arrives_while_a_session_opens_is_checked_against_it() {
    let (engine, _) = start(slow(), EngineOptions::default());
    let small = FakeOptions {
        max_context: 64,
        kv_capacity: 48,
        ..slow()
    };
    let mut large = None;
    let reloaded = while_opening(&engine, small, Duration::from_millis(100), || {
        large = Some(
            engine
                .submit(greedy(&[5; 20], 40))
                .expect("it fits the old one"),
        );
    });
    assert_eq!(reloaded, Ok(()));
    let refused = large.expect("submitted").collect_blocking();
    assert_eq!(
        refused,
        Err(EngineError::NeverFits {
            wanted: 64,
            capacity: 48,
            max_context: 64
        })
    );
    assert_eq!(
        ids(&engine, greedy(&[7], 4)).len(),
        4,
        "nobody is stuck behind it"
    );
}

#[test]
fn deadlines_and_cancellations_are_heeded_while_a_session_opens() {
    let (engine, _) = start(slow(), EngineOptions::default());
    let opening = Duration::from_secs(2);
    let reloaded = while_opening(&engine, slow(), opening, || {
        let hasty = GenerateRequest {
            queue_timeout: Some(Duration::from_millis(20)),
            ..greedy(&[6], 4)
        };
        let asked = Instant::now();
        let outcome = engine.submit(hasty).expect("accepted").collect_blocking();
        assert!(
            matches!(outcome, Err(EngineError::QueueTimeout { .. })),
            "{outcome:?}"
        );
        assert!(asked.elapsed() < opening / 2, "{:?}", asked.elapsed());
        drop(engine.submit(greedy(&[1], 4)).expect("accepted"));
        eventually("its place is free", || engine.stats().waiting == 0);
    });
    assert_eq!(reloaded, Ok(()));
    assert!(
        engine.stats().overhead < opening / 4,
        "opening is nobody's overhead"
    );
}

#[test]
fn shutting_down_while_a_session_opens_drops_that_too() {
    let (engine, _) = start(slow(), EngineOptions::default());
    let opened = FakeSession::new(slow());
    let counters = opened.counters();
    let begun = Arc::new(AtomicBool::new(false));
    let announced = Arc::clone(&begun);
    thread::scope(|scope| {
        let reload = scope.spawn(|| {
            engine.reload(Duration::ZERO, move || {
                announced.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(50));
                Ok(Box::new(opened))
            })
        });
        eventually("it opens", || begun.load(Ordering::SeqCst));
        engine.shutdown();
        assert!(counters.dropped());
        assert_eq!(reload.join().expect("no panic"), Err(EngineError::ShutDown));
    });
}

#[test]
fn the_earlier_of_two_drains_counts() {
    let options = EngineOptions {
        event_buffer: 10_000,
        ..EngineOptions::default()
    };
    let (engine, _) = start(slow(), options);
    let endless = engine.submit(greedy(&[1], 4000)).expect("accepted");
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| engine.drain(Duration::from_millis(100)));
        thread::sleep(Duration::from_millis(20));
        engine.drain(Duration::from_secs(3600));
    });
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(endless.collect_blocking(), Err(EngineError::ShutDown));
}

#[test]
fn nobody_waits_for_readers_that_are_gone() {
    let options = || EngineOptions {
        event_buffer: 2,
        ..EngineOptions::default()
    };
    type Act = fn(&Engine);
    let acts: [Act; 2] = [
        |engine| engine.drain(Duration::from_secs(60)),
        |engine| {
            let opener = || Ok(Box::new(FakeSession::new(slow())) as Box<dyn Session>);
            let reloaded = engine.reload(Duration::from_secs(60), opener);
            assert_eq!(reloaded, Ok(()));
        },
    ];
    for act in acts {
        let (engine, _) = start(slow(), options());
        let stalled = engine.submit(greedy(&[1], 1000)).expect("accepted");
        eventually("it stalls", || engine.stats().paused == 1);
        let begun = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| act(&engine));
            thread::sleep(Duration::from_millis(20));
            drop(stalled);
        });
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn whoever_stops_the_engine_second_finds_the_session_gone_too() {
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
struct Bomb;

impl Constraint for Bomb {
    fn allowed(&mut self, _mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        Ok(Allowed::All)
    }

    fn accept(&mut self, _token: u32) -> Result<(), ConstraintError> {
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Bomb)
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if thread::current().name() == Some("loquat-engine") {
            panic!("a bug in dropping");
        }
    }
}

#[test]
fn a_constraint_that_cannot_even_be_dropped_harms_nobody() {
    let (engine, counters) = start(slow(), EngineOptions::default());
    let other = engine.submit(greedy(&[1], 50)).expect("accepted");
    let bomb = GenerateRequest {
        constraint: Some(Constrained::new(Bomb)),
        ..greedy(&[2], 3)
    };
    let bomb = engine.submit(bomb).expect("accepted");
    assert_eq!(bomb.collect_blocking().expect("finished").ids().len(), 3);
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
        EngineError::Dead { reason } => !reason.contains("thread is gone"),
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
fn turmoil(round: u64, faults: Vec<(usize, Fault)>) {
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
    let (engine, _) = start(fake.clone(), options);
    let engine = &engine;
    let wrong: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|name| scope.spawn(move || client(engine, name)))
            .collect();
        let reloads = scope.spawn(move || {
            let opener = |fake: FakeOptions| {
                move || -> Result<Box<dyn Session>, String> {
                    match round % 7 {
                        3 => Err("no such luck".into()),
                        _ => Ok(Box::new(FakeSession::new(fake))),
                    }
                }
            };
            let mut wrong = Vec::new();
            for _ in 0..3 {
                engine.clear_cache();
                let reloaded = engine.reload(Duration::from_micros(300), opener(fake.clone()));
                wrong.extend(reloaded.err().as_ref().and_then(unexpected));
            }
            wrong
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
        let all = clients.into_iter().chain([reloads]);
        all.flat_map(|thread| thread.join().expect("no panic"))
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
fn turmoil_leaves_nothing_behind() {
    for round in 0..300 {
        turmoil(round, Vec::new());
    }
}

#[test]
fn turmoil_with_a_dying_session_leaves_nothing_behind() {
    for round in 0..300 {
        let at = round as usize % 60;
        let faults = match round % 2 {
            0 => vec![(at, Fault::Panic)],
            _ => (at..at + 3).map(|step| (step, Fault::Fail)).collect(),
        };
        turmoil(round, faults);
    }
}

#[test]
fn a_reader_who_stopped_reading_is_waited_for_once() {
    let grace = Duration::from_millis(250);
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
    // Each of two hundred steps would take the grace.
    assert!(began.elapsed() < grace * 40, "{:?}", began.elapsed());
}
