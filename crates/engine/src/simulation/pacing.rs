//! Running streams go on at a bounded pace while prompts come in.

use std::time::Duration;

use loquat_testkit::fake_session::{Cost, FakeOptions};

use super::harness::{Harness, greedy, millis, prompt};
use crate::EngineOptions;

const STREAMS: usize = 4;
const LONG: usize = 8000;

/// A small model on a few CPU cores.
fn cpu() -> FakeOptions {
    FakeOptions {
        max_context: 16_384,
        max_step_tokens: 512,
        kv_capacity: 1 << 17,
        cost: Cost {
            step: millis(4),
            row: Duration::from_micros(500),
            token: millis(1),
            depth: Duration::from_micros(600),
            encode: Duration::ZERO,
        },
        ..FakeOptions::default()
    }
}

fn bound(max_slowdown: f32) -> EngineOptions {
    EngineOptions {
        max_slowdown,
        ..EngineOptions::default()
    }
}

/// Four streams that have run for a while.
fn with_streams(options: EngineOptions) -> Harness {
    let mut harness = Harness::new(cpu(), options);
    for kind in 0..STREAMS as u32 {
        harness.submit(greedy(&prompt(kind, 8), 8000));
    }
    harness.turn_until("the streams run", |harness| {
        harness
            .readers
            .iter()
            .all(|reader| reader.tokens.len() > 50)
    });
    harness
}

/// How much slower the streams' tokens came while a long prompt entered, and how long that took.
fn slowdown(options: EngineOptions) -> (f64, Duration) {
    let mut harness = with_streams(options.clone());
    let before: Vec<usize> = harness.readers.iter().map(|r| r.tokens.len()).collect();
    let submitted = harness.clock.elapsed();
    let long = harness.submit(greedy(&prompt(9, LONG), 1));
    let entered = harness.finish(long).first_token();

    let mut control = with_streams(options);
    let mut slowdown: f64 = 0.0;
    for (stream, before) in before.into_iter().enumerate() {
        let with = &harness.readers[stream].times;
        let (first, last) = (before - 1, with.len() - 1);
        control.turn_until("as many tokens", |control| {
            control.readers[stream].times.len() > last
        });
        let without = &control.readers[stream].times;
        let record_event = |times: &[Duration]| (times[last] - times[first]).as_secs_f64();
        slowdown = slowdown.max(record_event(with) / record_event(without));
    }
    (slowdown, entered - submitted)
}

#[test]
fn streams_slow_down_within_bound() {
    // 8,000 tokens at 1 ms, and 0.6 ms for each 1,024 tokens before them.
    let alone = Duration::from_secs(27);
    for (bound_at, most_time) in [(1.5, 6), (2.0, 4), (3.0, 3)] {
        let (slowdown, entered) = slowdown(bound(bound_at));
        assert!(slowdown <= f64::from(bound_at), "{slowdown} of {bound_at}");
        assert!(entered <= alone * most_time, "{entered:?} with {bound_at}");
    }
    let (unbounded, entered) = slowdown(bound(f32::INFINITY));
    assert!(
        unbounded > 5.0,
        "without a bound, streams slow down: {unbounded}"
    );
    assert!(entered < alone * 11 / 10, "{entered:?}");
}

#[test]
fn short_prompt_overtakes_long_one() {
    let mut harness = Harness::new(cpu(), EngineOptions::default());
    let long = harness.submit(greedy(&prompt(1, LONG), 4));
    harness.turn();
    let sent = harness.clock.elapsed();
    let short = harness.submit(greedy(&prompt(2, 16), 4));
    let waited = harness.finish(short).first_token() - sent;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    let long = harness.finish(long).first_token();
    assert!(long < Duration::from_secs(35), "{long:?}");
}

#[test]
fn long_prompt_is_not_starved() {
    let mut harness = Harness::new(cpu(), EngineOptions::default());
    let long = harness.submit(greedy(&prompt(1, 2000), 1));
    harness.turn();
    let mut sent = 0;
    while !harness.readers[long].has_ended() {
        if harness.engine.stats().running < 3 {
            sent += 1;
            harness.submit(greedy(&prompt(2 + sent % 60, 300), 2));
        }
        harness.turn();
    }
    let waited = harness.readers[long].first_token();
    assert!(sent > 3, "{sent}");
    assert!(waited < Duration::from_secs(12), "{waited:?}");
}
