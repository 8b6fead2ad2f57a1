//! How long a request waits, for room and for its first token.

use std::time::Duration;

use super::harness::{Harness, alone, even_steps, greedy, millis, one_at_a_time, prompt};
use crate::{EngineError, EngineOptions, GenerateRequest};

#[test]
fn queue_timeout_fails_the_request() {
    let own = GenerateRequest {
        queue_timeout: Some(millis(100)),
        ..greedy(&[2], 4)
    };
    let engines = EngineOptions {
        queue_timeout: Some(millis(100)),
        ..one_at_a_time()
    };
    let cases = [(one_at_a_time(), own), (engines, greedy(&[2], 4))];
    for (options, request) in cases {
        let mut harness = Harness::new(even_steps(), options);
        let runs = harness.submit(greedy(&[1], 60));
        harness.turn();
        let waits = harness.submit(request);
        let error = harness.finish(waits).error().clone();
        let EngineError::QueueTimeout { waited } = error else {
            panic!("{error}");
        };
        assert!((millis(100)..=millis(110)).contains(&waited), "{waited:?}");
        assert!(error.is_retryable());
        // The running request was admitted in time and runs past the deadline.
        assert_eq!(harness.finish(runs).ids(), alone(greedy(&[1], 60)));
        let totals = harness.engine.stats().totals;
        assert_eq!((totals.timed_out, totals.finished), (1, 1));
        harness.assert_empty();
    }
}

#[test]
fn first_token_timeout_fails_the_request() {
    let options = EngineOptions {
        step_tokens: Some(1),
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    let late = harness.submit(GenerateRequest {
        first_token_timeout: Some(millis(200)),
        ..greedy(&prompt(1, 50), 4)
    });
    let error = harness.finish(late).error().clone();
    let EngineError::FirstTokenTimeout { waited } = error else {
        panic!("{error}");
    };
    assert!((millis(200)..=millis(210)).contains(&waited), "{waited:?}");
    assert!(error.is_retryable());
    assert_eq!(harness.counters.live(), 0, "failed requests are not kept");

    let quick = harness.submit(GenerateRequest {
        first_token_timeout: Some(millis(200)),
        ..greedy(&[1], 50)
    });
    assert_eq!(harness.finish(quick).ids(), alone(greedy(&[1], 50)));
    assert_eq!(harness.engine.stats().totals.timed_out, 1);
    harness.assert_empty();
}

#[test]
fn first_token_timeout_includes_queueing() {
    let mut harness = Harness::new(even_steps(), one_at_a_time());
    harness.submit(greedy(&[1], 60));
    harness.turn();
    let waits = harness.submit(GenerateRequest {
        first_token_timeout: Some(millis(50)),
        queue_timeout: Some(Duration::from_secs(60)),
        ..greedy(&[2], 4)
    });
    let error = harness.finish(waits).error();
    assert!(
        matches!(error, EngineError::FirstTokenTimeout { .. }),
        "{error}"
    );
}

#[test]
fn preempted_request_with_tokens_has_no_deadline() {
    let mut harness = Harness::new(even_steps(), one_at_a_time());
    let patient = GenerateRequest {
        priority: 5,
        queue_timeout: Some(millis(50)),
        first_token_timeout: Some(millis(50)),
        ..greedy(&[1], 20)
    };
    let early = harness.submit(patient.clone());
    harness.turns(3);
    harness.submit(greedy(&[2], 60));
    assert_eq!(harness.finish(early).ids(), alone(patient));
    assert_eq!(harness.engine.stats().totals.preempted, 1);
}
