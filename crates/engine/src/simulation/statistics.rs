//! The engine's statistics.

use super::harness::{End, Harness, ReaderBehaviour, even_steps, greedy, millis, prompt};
use crate::{DraftCounts, EngineOptions, Timings};

#[test]
fn stats_count_requests_and_tokens() {
    let options = EngineOptions {
        max_running: Some(2),
        event_buffer: 2,
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    let readers: Vec<usize> = (0..3)
        .map(|kind| harness.submit(greedy(&prompt(kind, 20), 30)))
        .collect();
    harness.readers[readers[1]].habit = ReaderBehaviour::Stalled;
    assert_eq!(harness.engine.stats().waiting, 3);
    harness.turns(5);
    let stats = harness.engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.paused), (2, 1, 1));
    assert_eq!(stats.kv_reserved, 2 * 64);
    assert_eq!(stats.memory.kv_in_use, 2 * 32);
    assert_eq!((stats.steps, stats.step_time), (5, millis(10)));
    assert_eq!(stats.totals.prompt_tokens, 40);
    assert_eq!(stats.totals.completion_tokens, 5 + 2);

    harness.readers[readers[1]].generation = None;
    harness.finish(readers[0]);
    harness.finish(readers[2]);
    let stats = harness.engine.stats();
    let totals = stats.totals;
    assert_eq!((totals.submitted, totals.finished), (3, 2));
    assert_eq!(
        (totals.cancelled, totals.failed, totals.timed_out),
        (1, 0, 0)
    );
    assert_eq!(totals.prompt_tokens, 60);
    assert_eq!(totals.completion_tokens, 2 * 30 + 2);
    assert_eq!(totals.cached_tokens, 0);
    harness.assert_empty();
}

#[test]
fn speeds_cover_recent_seconds() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    harness.submit(greedy(&prompt(1, 16), 1000));
    harness.submit(greedy(&prompt(2, 16), 1000));
    harness.turns(250);
    let stats = harness.engine.stats();
    assert!((190.0..=210.0).contains(&stats.decode_speed), "{stats:?}");
    harness.finish_all();
    harness.clock.advance(millis(10_000));
    assert_eq!(harness.engine.stats().decode_speed, 0.0);
}

#[test]
fn timings_are_separated() {
    let options = EngineOptions {
        max_running: Some(1),
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    harness.submit(greedy(&prompt(1, 16), 10));
    harness.turn();
    let waits = harness.submit(greedy(&prompt(2, 16), 5));
    let End::Finished { timings, usage, .. } = &harness.finish(waits).ends[0] else {
        panic!("it finishes");
    };
    let expected = Timings {
        queued: millis(90),
        first_token: millis(100),
        decode: millis(40),
        total: millis(140),
        drafts: DraftCounts::default(),
    };
    assert_eq!(*timings, expected);
    let per_token = timings.per_token(usage.completion_tokens);
    assert_eq!(per_token, Some(millis(10)));
}
