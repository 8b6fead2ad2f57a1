//! Slow readers delay only their own requests.

use super::harness::{
    Harness, ReaderBehaviour, alone, even_steps, greedy, millis, one_at_a_time, sampled,
    without_cache,
};
use crate::EngineOptions;

#[test]
fn stalled_reader_is_preempted_and_resumes() {
    for cache_bytes in [None, Some(0)] {
        let options = EngineOptions {
            event_buffer: 4,
            cache_bytes,
            ..one_at_a_time()
        };
        let mut harness = Harness::new(even_steps(), options);
        let stalled = harness.submit(sampled(&[1], 30, 5));
        harness.readers[stalled].habit = ReaderBehaviour::Stalled;
        harness.turns(10);
        let stats = harness.engine.stats();
        assert_eq!((stats.running, stats.paused), (1, 1));
        let paused = harness.clock.elapsed();
        let other = harness.submit(greedy(&[2], 10));
        assert_eq!(harness.finish(other).ids(), alone(greedy(&[2], 10)));
        let waited = harness.readers[other].first_token() - paused;
        assert!((millis(150)..millis(400)).contains(&waited), "{waited:?}");
        let stats = harness.engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.paused), (0, 1, 0));

        harness.readers[stalled].habit = ReaderBehaviour::Eager;
        assert_eq!(harness.finish(stalled).ids(), alone(sampled(&[1], 30, 5)));
        assert_eq!(harness.engine.stats().totals.preempted, 1);
        harness.assert_empty();
    }
}

#[test]
fn stalled_reader_stays_without_contention() {
    let options = EngineOptions {
        event_buffer: 2,
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    let stalled = harness.submit(greedy(&[1], 30));
    harness.readers[stalled].habit = ReaderBehaviour::Stalled;
    let other = harness.submit(greedy(&[2], 300));
    harness.turns(200);
    assert_eq!(harness.readers[other].tokens.len(), 200, "not delayed");
    let stats = harness.engine.stats();
    assert_eq!((stats.running, stats.paused), (2, 1));
    assert_eq!(stats.totals.preempted, 0);
    assert_eq!(harness.counters.computed_tokens(), 202);
}

#[test]
fn single_event_buffer_finishes() {
    let options = EngineOptions {
        event_buffer: 1,
        ..without_cache()
    };
    let mut harness = Harness::new(even_steps(), options);
    let reader = harness.submit(greedy(&[1], 30));
    harness.readers[reader].habit = ReaderBehaviour::Every(7);
    assert_eq!(harness.finish(reader).ids(), alone(greedy(&[1], 30)));
    assert_eq!(harness.counters.computed_tokens(), 30);
}
