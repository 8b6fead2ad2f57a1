//! Refusal, cancellation, failure and the end.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use loquat_engine::{
    Blame, EngineError, EngineFailure, EngineOptions, GenerateRequest, Generation, Logprobs,
    SamplingParams,
};
use loquat_session::SessionError;
use loquat_testkit::fake_session::{FakeOptions, Fault};

#[test]
fn impossible_request_is_refused_by_field() {
    let fake = FakeOptions {
        max_context: 100,
        kv_capacity: 64,
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let with = |change: fn(&mut GenerateRequest)| {
        let mut request = greedy(&[1, 2], 4);
        change(&mut request);
        engine.submit(request).map(|_| ()).expect_err("refused")
    };
    let out_of_vocabulary = |field| EngineError::OutOfVocabulary {
        field,
        token: 264,
        vocab_size: 264,
    };
    let cases = [
        (with(|r| r.prompt.clear()), EngineError::EmptyPrompt),
        (with(|r| r.prompt.push(264)), out_of_vocabulary("prompt")),
        (
            with(|r| r.stop_ids.push(264)),
            out_of_vocabulary("stop_ids"),
        ),
        (
            with(|r| r.max_tokens = 99),
            EngineError::ContextExceeded {
                prompt: 2,
                max_tokens: 99,
                max_context: 100,
            },
        ),
        (
            with(|r| r.max_tokens = usize::MAX),
            EngineError::ContextExceeded {
                prompt: 2,
                max_tokens: usize::MAX,
                max_context: 100,
            },
        ),
        (
            with(|r| r.max_tokens = 63),
            EngineError::NeverFits {
                needed: 80,
                capacity: 64,
                max_context: 100,
            },
        ),
        (
            with(|r| r.max_tokens = 0),
            EngineError::OutOfRange {
                field: "max_tokens",
                found: "0".into(),
                expected: "at least 1, unless `prompt_logprobs` is all that is asked for".into(),
            },
        ),
        (
            with(|r| r.logprobs = Some(Logprobs::for_model(265))),
            EngineError::OutOfRange {
                field: "logprobs",
                found: "265".into(),
                expected: "from 0 to 264, the vocabulary".into(),
            },
        ),
        (
            with(|r| r.sampling.temperature = -1.0),
            EngineError::OutOfRange {
                field: "temperature",
                found: "-1".into(),
                expected: "from 0 to 100".into(),
            },
        ),
        (
            with(|r| r.stop.push("x".into())),
            EngineError::Unsupported {
                field: "stop",
                why: "the engine was started without a tokenizer, so it produces no text",
            },
        ),
    ];
    for (found, expected) in cases {
        assert_eq!(found, expected);
        assert_eq!(found.blame(), Blame::Request);
        assert!(!found.is_retryable());
    }
    assert_eq!(ids(&engine, greedy(&[1, 2], 62)).len(), 62, "just fits");
    assert_empty(&engine, &counters);
}

#[test]
fn invalid_options_are_refused() {
    let with = |change: fn(&mut EngineOptions)| {
        let mut options = EngineOptions::default();
        change(&mut options);
        let session = loquat_testkit::fake_session::FakeSession::new(FakeOptions::default());
        match loquat_engine::Engine::start(Box::new(session), None, options) {
            Err(EngineError::OutOfRange { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(with(|o| o.step_tokens = Some(257)), "step_tokens");
    assert_eq!(with(|o| o.step_tokens = Some(0)), "step_tokens");
    assert_eq!(with(|o| o.max_queue = 0), "max_queue");
    assert_eq!(with(|o| o.event_buffer = 0), "event_buffer");
    assert_eq!(with(|o| o.max_running = Some(65)), "max_running");
    let per_client = "max_queue_per_client";
    assert_eq!(with(|o| o.max_queue_per_client = Some(0)), per_client);
    assert_eq!(with(|o| o.max_queue_per_client = Some(257)), per_client);
    assert_eq!(with(|o| o.max_slowdown = 0.9), "max_slowdown");
    assert_eq!(with(|o| o.max_slowdown = f32::NAN), "max_slowdown");
    assert_eq!(with(|o| o.aging = Duration::ZERO), "aging");
}

#[test]
fn full_queue_refuses_and_recovers() {
    let fake = FakeOptions {
        max_sequences: 1,
        ..FakeOptions::default()
    };
    let options = EngineOptions {
        max_queue: 2,
        ..EngineOptions::default()
    };
    let hold = Arc::clone(&fake.hold);
    let (engine, counters) = start(fake, options);
    let held = hold.lock().expect("no panic");
    let running = engine.submit(greedy(&[1], 1000)).expect("accepted");
    until_admitted(&engine);
    let waiting = [2, 3].map(|t| engine.submit(greedy(&[t], 5)).expect("queued"));
    let refused = engine.submit(greedy(&[4], 5)).expect_err("full");
    assert_eq!(refused, EngineError::QueueFull);
    assert!(refused.is_retryable());
    assert_eq!(engine.stats().waiting, 2);

    drop((running, held));
    for (generation, token) in waiting.into_iter().zip([2, 3]) {
        let completion = generation.collect_blocking().expect("finished");
        let expected = oracle(FakeOptions::default(), &[token], 5);
        assert_eq!(completion.ids(), expected);
    }
    assert_eq!(ids(&engine, greedy(&[4], 5)).len(), 5);
    assert_empty(&engine, &counters);
}

#[test]
fn one_client_cannot_fill_the_queue_for_others() {
    let fake = FakeOptions {
        max_sequences: 1,
        ..FakeOptions::default()
    };
    let options = EngineOptions {
        max_queue: 6,
        max_queue_per_client: Some(2),
        ..EngineOptions::default()
    };
    let hold = Arc::clone(&fake.hold);
    let (engine, counters) = start(fake, options);
    let held = hold.lock().expect("no panic");
    let running = engine.submit(greedy(&[1], 1000)).expect("accepted");
    until_admitted(&engine);
    let of = |client: Option<&str>| {
        engine.submit(GenerateRequest {
            client: client.map(str::to_owned),
            ..greedy(&[2], 5)
        })
    };
    let mut waiting = Vec::new();
    for client in [Some("a"), None, Some("b")] {
        waiting.push(of(client).expect("its first place"));
        waiting.push(of(client).expect("its second"));
        let refused = of(client).expect_err("no third");
        assert_eq!(refused, EngineError::QueueFull);
    }
    assert_eq!(of(Some("c")).expect_err("all six"), EngineError::QueueFull);
    drop((running, held));
    for generation in waiting {
        assert_eq!(
            generation.collect_blocking().expect("finished").ids().len(),
            5
        );
    }
    assert_eq!(engine.stats().totals.refused, 4);
    assert!(of(Some("a")).is_ok(), "places come back");
    assert_empty(&engine, &counters);
}

#[test]
fn dropping_a_generation_frees_it() {
    // A request neither ends nor pauses for minutes: a paused one could be preempted.
    const TOKENS: usize = 20_000;
    let fake = FakeOptions {
        max_sequences: 2,
        max_context: 2 * TOKENS,
        delay: Duration::from_millis(10),
        ..FakeOptions::default()
    };
    let options = EngineOptions {
        event_buffer: TOKENS,
        ..EngineOptions::default()
    };
    let (engine, counters) = start(fake, options);
    let [first, second, queued] =
        [1, 2, 3].map(|token| engine.submit(greedy(&[token], TOKENS)).expect("accepted"));
    let until = |running, waiting| {
        eventually(&format!("{running} run and {waiting} wait"), || {
            let stats = engine.stats();
            (stats.running, stats.waiting) == (running, waiting)
        });
    };
    until(2, 1);
    drop(queued);
    until(2, 0);
    drop(second);
    until(1, 0);
    drop(first);
    assert_empty(&engine, &counters);
}

#[test]
fn cancellation_takes_one_step() {
    let fake = FakeOptions {
        delay: Duration::from_millis(20),
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let mut doomed = engine.submit(greedy(&[1], 1000)).expect("accepted");
    until_running(&mut doomed);
    drop(doomed);
    let before = counters.steps().len();
    assert_empty(&engine, &counters);
    assert!(counters.steps().len() <= before + 1);
}

#[test]
fn cleared_cache_drops_cancelled_sequences() {
    let fake = FakeOptions {
        delay: Duration::from_millis(50),
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let mut doomed = engine.submit(greedy(&[1; 32], 1000)).expect("accepted");
    until_running(&mut doomed);
    // Both reach the engine within its next step.
    drop(doomed);
    engine.clear_cache();
    eventually("nothing is held", || counters.live() == 0);
}

#[test]
fn refused_row_fails_only_its_request() {
    let fake = FakeOptions {
        poison: Some(13),
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let good = |seed| GenerateRequest {
        sampling: SamplingParams {
            seed: Some(seed),
            logit_bias: vec![(13, -100.0)],
            ..SamplingParams::default()
        },
        ..greedy(&[1, 2], 50)
    };
    let before = engine.submit(good(1)).expect("accepted");
    let bad = engine.submit(greedy(&[1, 13], 50)).expect("accepted");
    let after = engine.submit(good(2)).expect("accepted");
    let device = SessionError::Device("token 13 is poison".into());
    assert_eq!(
        bad.collect_blocking(),
        Err(EngineError::Session(device.clone()))
    );
    assert_eq!(before.collect_blocking().expect("finished").ids().len(), 50);
    assert_eq!(after.collect_blocking().expect("finished").ids().len(), 50);
    assert_empty(&engine, &counters);
}

#[test]
fn failed_step_fails_only_its_rows() {
    for (fault, error) in [
        (Fault::Fail, SessionError::Device("step 2".into())),
        (
            Fault::Withhold,
            SessionError::Device("a row came back without what it was to emit".into()),
        ),
    ] {
        let fake = FakeOptions {
            faults: vec![(2, fault)],
            ..FakeOptions::default()
        };
        let (engine, counters) = start(fake, EngineOptions::default());
        for request in [greedy(&[1], 9), sampled(&[1], 9, 1)] {
            let doomed = counters.steps().is_empty();
            let outcome = engine.submit(request).expect("alive").collect_blocking();
            if doomed {
                assert_eq!(outcome, Err(EngineError::Session(error.clone())))
            } else {
                assert_eq!(outcome.expect("finished").ids().len(), 9)
            }
            assert_empty(&engine, &counters);
        }
    }
}

/// Waits for the engine's end as a caller sees it, and checks that the session is dropped.
fn assert_dead(engine: &loquat_engine::Engine, reason_has: &str) {
    let error = engine.submit(greedy(&[1], 1)).expect_err("dead");
    match &error {
        EngineError::Dead(failure) => {
            assert!(failure.to_string().contains(reason_has), "{failure}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(error.blame(), Blame::System);
}

#[test]
fn three_failed_steps_end_the_engine() {
    let fake = FakeOptions {
        max_sequences: 1,
        faults: vec![(0, Fault::Fail), (2, Fault::Fail)]
            .into_iter()
            .chain((4..7).map(|step| (step, Fault::Fail)))
            .collect(),
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let generations: Vec<_> = (0..9).map(|_| engine.submit(greedy(&[1], 1))).collect();
    let mut outcomes = generations
        .into_iter()
        .map(|submitted| submitted.and_then(Generation::collect_blocking));
    for step in 0..6 {
        match (step, outcomes.next().expect("nine")) {
            (1 | 3, outcome) => assert!(outcome.is_ok(), "{outcome:?}"),
            (_, outcome) => assert!(
                matches!(outcome, Err(EngineError::Session(_))),
                "{outcome:?}"
            ),
        }
    }
    for outcome in outcomes {
        assert!(matches!(outcome, Err(EngineError::Dead(_))), "{outcome:?}");
    }
    assert_dead(&engine, "3 consecutive steps failed");
    eventually("the session is dropped", || counters.dropped());
    assert_empty(&engine, &counters);
}

#[test]
fn lost_weights_end_the_engine_at_once() {
    let fake = FakeOptions {
        max_sequences: 2,
        faults: vec![(3, Fault::WeightsChanged)],
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let generations: Vec<_> = (0..4).map(|i| engine.submit(greedy(&[i], 9))).collect();
    let lost = SessionError::WeightsChanged("step 3".into());
    for submitted in generations {
        let outcome = submitted.and_then(Generation::collect_blocking);
        let expected = EngineError::Dead(EngineFailure::Session(lost.clone()));
        assert_eq!(outcome, Err(expected));
    }
    assert_dead(&engine, "step 3");
    eventually("the session is dropped", || counters.dropped());
}

#[test]
fn panicking_session_ends_the_engine() {
    let fake = FakeOptions {
        max_sequences: 2,
        faults: vec![(3, Fault::Panic)],
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let generations: Vec<_> = (0..4).map(|i| engine.submit(greedy(&[i], 9))).collect();
    for submitted in generations {
        match submitted.and_then(Generation::collect_blocking) {
            Err(EngineError::Dead(EngineFailure::Panicked(message))) => {
                assert!(message.contains("panics at step 3"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_dead(&engine, "panics at step 3");
    eventually("the session is dropped", || counters.dropped());
    engine.shutdown();
    assert_empty(&engine, &counters);
}

#[test]
fn shutdown_ends_all_requests() {
    let fake = FakeOptions {
        max_sequences: 1,
        delay: Duration::from_millis(1),
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let mut running = engine.submit(greedy(&[1], 4000)).expect("accepted");
    until_running(&mut running);
    // Unread, neither can end.
    let waiting = engine.submit(greedy(&[2], 4000)).expect("queued");
    engine.shutdown();
    assert!(counters.dropped());
    assert_eq!(counters.live(), 0);
    assert_eq!(running.collect_blocking(), Err(EngineError::ShutDown));
    assert_eq!(waiting.collect_blocking(), Err(EngineError::ShutDown));
    let refused = engine.submit(greedy(&[1], 1)).expect_err("shut down");
    assert_eq!(refused, EngineError::ShutDown);
    engine.shutdown();
    assert_empty(&engine, &counters);
}

#[test]
fn dropping_the_engine_drops_the_session() {
    let (engine, counters) = start_default();
    let running = engine.submit(greedy(&[1], 4000)).expect("accepted");
    drop(engine);
    assert!(counters.dropped());
    assert_eq!(running.collect_blocking(), Err(EngineError::ShutDown));
}

#[test]
fn into_session_returns_usable_session() {
    let (engine, counters) = start_default();
    let expected = ids(&engine, greedy(&[1, 2, 3], 20));
    let running = engine.submit(greedy(&[4], 200)).expect("accepted");
    let session = engine.into_session().expect("a whole session");
    assert_eq!(counters.live(), 0, "the running sequence was released");
    assert!(!counters.dropped());
    assert!(running.collect_blocking().is_err());
    let again = loquat_engine::Engine::start(session, None, EngineOptions::default());
    assert_eq!(
        ids(&again.expect("an engine"), greedy(&[1, 2, 3], 20)),
        expected
    );
}

#[test]
fn abandoned_engine_fails_requests_and_does_not_wait() {
    let fake = FakeOptions::default();
    let hold = Arc::clone(&fake.hold);
    let (engine, counters) = start(fake, EngineOptions::default());
    let monitor = engine.step_monitor();
    assert_eq!(monitor.step_time(), None);
    let hanging = hold.lock().expect("no panic");
    let running = engine.submit(greedy(&[1, 2], 4)).expect("accepted");
    let queued = engine.submit(greedy(&[3, 4], 4)).expect("accepted");
    eventually("the step hangs", || monitor.step_time().is_some());
    monitor.abandon();
    for generation in [running, queued] {
        let outcome = generation.collect_blocking();
        let hangs = EngineFailure::StepHangs(Duration::ZERO);
        match outcome {
            Err(EngineError::Dead(failure)) => assert_eq!(
                std::mem::discriminant(&failure),
                std::mem::discriminant(&hangs),
                "{failure}"
            ),
            other => panic!("{other:?}"),
        }
    }
    assert!(engine.check().is_err());
    drop(engine);
    assert!(!counters.dropped(), "the thread still has the session");
    drop(hanging);
    eventually("the session is dropped", || counters.dropped());
}
