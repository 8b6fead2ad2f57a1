//! Same tokens whatever the load, and a share of the step for everyone.

use std::sync::Arc;

use crate::support::*;
use loquat_engine::{EngineOptions, Event, GenerateRequest, Logprobs, SamplingParams};
use loquat_testkit::fake_session::FakeOptions;

/// Sixteen requests of every kind.
fn mixed() -> Vec<GenerateRequest> {
    (0..16u32)
        .map(|i| {
            let prompt: Vec<u32> = (0..1 + i * 7).map(|t| (t * 31 + i) % 264).collect();
            let mut request = match i % 4 {
                0 => greedy(&prompt, 60),
                _ => sampled(&prompt, 60, u64::from(i)),
            };
            let sampling = &mut request.sampling;
            match i % 4 {
                2 => (sampling.top_k, sampling.temperature) = (40, 0.7),
                3 => (sampling.top_p, sampling.repetition_penalty) = (0.9, 1.3),
                _ => {}
            }
            request.logprobs = (i % 5 == 1).then_some(Logprobs::for_model(3));
            request
        })
        .collect()
}

#[test]
fn results_do_not_depend_on_the_batch() {
    let (engine, _) = start_default();
    let alone: Vec<_> = mixed().into_iter().map(|r| ids(&engine, r)).collect();
    let fake = FakeOptions::default();
    let hold = Arc::clone(&fake.hold);
    let options = EngineOptions {
        step_tokens: Some(40),
        // Measured times decide nothing.
        max_slowdown: f32::INFINITY,
        ..EngineOptions::default()
    };
    let (engine, counters) = start(fake, options);
    let held = hold.lock().expect("no panic");
    let together: Vec<_> = mixed()
        .into_iter()
        .map(|request| engine.submit(request).expect("accepted"))
        .collect();
    drop(held);
    for (generation, alone) in together.into_iter().zip(&alone) {
        let completion = generation.collect_blocking().expect("finished");
        assert_eq!(completion.ids(), *alone);
    }
    let steps = counters.steps();
    assert!(steps.iter().any(|step| step.rows >= 12), "{steps:?}");
    assert!(steps.iter().all(|step| step.tokens <= 40), "{steps:?}");
}

#[test]
fn engine_matches_bare_session() {
    let prompt = [5, 6, 7];
    let (engine, _) = start_default();
    assert_eq!(
        ids(&engine, greedy(&prompt, 20)),
        oracle(FakeOptions::default(), &prompt, 20)
    );
    let through_logits = GenerateRequest {
        logprobs: Some(Logprobs::for_model(0)),
        ..greedy(&prompt, 20)
    };
    assert_eq!(
        ids(&engine, through_logits),
        oracle(FakeOptions::default(), &prompt, 20)
    );
}

#[test]
fn chunked_prompt_equals_whole_prompt() {
    let prompt: Vec<u32> = (0..200).map(|i| i * 13 % 264).collect();
    let expected = oracle(FakeOptions::default(), &prompt, 8);
    for step_tokens in [1, 7, 64, 199, 200, 256] {
        let options = EngineOptions {
            step_tokens: Some(step_tokens),
            ..EngineOptions::default()
        };
        let (engine, counters) = start(FakeOptions::default(), options);
        assert_eq!(ids(&engine, greedy(&prompt, 8)), expected, "{step_tokens}");
        let chunks = 200usize.div_ceil(step_tokens);
        assert_eq!(counters.steps().len(), chunks + 7, "{step_tokens}");
    }
}

#[test]
fn decoding_continues_during_long_prompt() {
    let options = EngineOptions {
        step_tokens: Some(4),
        event_buffer: 1000,
        max_slowdown: f32::INFINITY,
        ..EngineOptions::default()
    };
    let fake = FakeOptions::default();
    let hold = Arc::clone(&fake.hold);
    let (engine, counters) = start(fake, options);
    let held = hold.lock().expect("no panic");
    let _first = engine.submit(greedy(&[1], 1000)).expect("accepted");
    until_admitted(&engine);
    let long: Vec<u32> = vec![9; 90];
    let second = engine.submit(greedy(&long, 2)).expect("accepted");
    drop(held);
    let second = second.collect_blocking().expect("finished");
    assert_eq!(second.ids(), oracle(FakeOptions::default(), &long, 2));
    let steps = counters.steps();
    let shared = steps.iter().filter(|step| step.rows == 2).count();
    assert!(shared >= 30, "three prompt tokens a step: {shared}");
    assert!(steps.iter().all(|step| step.tokens <= 4));
}

#[test]
fn excess_requests_wait_their_turn() {
    let fake = FakeOptions {
        max_sequences: 3,
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let generations: Vec<_> = (0..20)
        .map(|i| engine.submit(greedy(&[i], 10)).expect("accepted"))
        .collect();
    for (i, generation) in generations.into_iter().enumerate() {
        let completion = generation.collect_blocking().expect("finished");
        let expected = oracle(FakeOptions::default(), &[i as u32], 10);
        assert_eq!(completion.ids(), expected);
        assert!(completion.timings.queued <= completion.timings.first_token);
        assert!(completion.timings.first_token <= completion.timings.total);
    }
    assert!(counters.steps().iter().all(|step| step.rows <= 3));
    assert_empty(&engine, &counters);
}

#[test]
fn reservations_prevent_kv_exhaustion() {
    // Room for two requests of 40 tokens, rounded to three pages each, and not for three.
    let fake = FakeOptions {
        kv_capacity: 7 * 16,
        ..FakeOptions::default()
    };
    let (engine, counters) = start(fake, EngineOptions::default());
    let generations: Vec<_> = (0..9)
        .map(|i| engine.submit(greedy(&[i; 8], 32)).expect("accepted"))
        .collect();
    for generation in generations {
        let completion = generation.collect_blocking().expect("never out of KV");
        assert_eq!(completion.usage.completion_tokens, 32);
    }
    assert!(counters.steps().iter().all(|step| step.rows <= 2));
    assert_empty(&engine, &counters);
}

#[test]
fn slow_reader_pauses_only_itself() {
    let options = EngineOptions {
        event_buffer: 4,
        ..EngineOptions::default()
    };
    let (engine, counters) = start(FakeOptions::default(), options);
    let mut slow = engine.submit(greedy(&[1], 300)).expect("accepted");
    assert_eq!(
        ids(&engine, greedy(&[2], 100)),
        oracle(FakeOptions::default(), &[2], 100)
    );
    // The slow one filled its buffer and no more: 4 steps of it, at most all beside the other.
    eventually("it pauses", || counters.steps().len() >= 100);
    let paused_at = counters.steps().len();
    assert!(paused_at <= 104, "{paused_at}");

    let mut taken = Vec::new();
    while let Some(event) = slow.recv_blocking() {
        match event {
            Event::Tokens { tokens, .. } => taken.extend(tokens.iter().map(|t| t.id)),
            Event::Finished { usage, .. } => assert_eq!(usage.completion_tokens, 300),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(taken, oracle(FakeOptions::default(), &[1], 300));
    assert_empty(&engine, &counters);
}

#[test]
fn reported_seed_reproduces_output() {
    let (engine, _) = start_default();
    let request = GenerateRequest {
        sampling: SamplingParams::default(),
        ..greedy(&[3], 30)
    };
    let free = engine.submit(request).expect("accepted");
    let free = free.collect_blocking().expect("finished");
    assert_eq!(ids(&engine, sampled(&[3], 30, free.seed)), free.ids());
    assert_ne!(ids(&engine, sampled(&[3], 30, free.seed ^ 1)), free.ids());
}
