//! Computed prefixes are reused, within their scope.

use super::harness::{
    Harness, alone, even_steps, greedy, millis, prompt, recurrent, windowed, without_cache,
    without_drafts,
};
use crate::{EngineOptions, GenerateRequest};

fn in_scope(scope: &str, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        cache_scope: Some(scope.into()),
        ..request
    }
}

#[test]
fn repeated_prompt_computes_one_token() {
    for fake in [even_steps(), recurrent(), windowed()] {
        let mut harness = Harness::new(fake, EngineOptions::default());
        let request = || greedy(&prompt(1, 100), 1);
        let first = harness.computed(|harness| _ = harness.answer(request()));
        let again = harness.computed(|harness| {
            let reader = harness.submit(request());
            let reader = harness.finish(reader);
            assert_eq!(reader.usage().cached_tokens, 99);
            assert_eq!(reader.ids(), alone(request()));
        });
        assert_eq!((first, again), (100, 1));
        let stats = harness.engine.stats();
        assert_eq!((stats.cache.hits, stats.cache.misses), (1, 1));
        assert_eq!(stats.cache.hit_tokens, 99);
        assert_eq!(stats.totals.cached_tokens, 99);
        harness.assert_empty();
    }
}

#[test]
fn common_prefix_is_reused() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    harness.answer(greedy(&prompt(1, 100), 4));
    let mut other = prompt(1, 77);
    other.extend(prompt(2, 23));
    let reader = harness.submit(greedy(&other, 4));
    let reader = harness.finish(reader);
    assert_eq!(reader.usage().cached_tokens, 77);
    assert_eq!(reader.ids(), alone(greedy(&other, 4)));
}

#[test]
fn scopes_share_no_prefixes() {
    for fake in [even_steps(), recurrent(), windowed()] {
        let mut harness = Harness::new(fake, EngineOptions::default());
        let request = || greedy(&prompt(1, 100), 50);
        let cached = |harness: &mut Harness, request| {
            let reader = harness.submit(request);
            harness.finish(reader).usage().cached_tokens
        };
        // While it runs, and after.
        let runs = harness.submit(in_scope("a", request()));
        harness.turns(3);
        let others = [in_scope("b", request()), request()];
        let readers = others.map(|request| harness.submit(request));
        let friend = harness.submit(in_scope("a", request()));
        for reader in readers {
            assert_eq!(harness.finish(reader).usage().cached_tokens, 0);
        }
        assert_eq!(harness.finish(friend).usage().cached_tokens, 99);
        harness.finish(runs);
        assert_eq!(cached(&mut harness, in_scope("c", request())), 0);
        assert_eq!(cached(&mut harness, in_scope("c", request())), 99);
        harness.assert_empty();
    }
}

#[test]
fn least_recently_used_is_evicted_first() {
    let options = EngineOptions {
        cache_bytes: Some(2 * 32 * 4),
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    let mut cached = |kind| {
        let reader = harness.submit(greedy(&prompt(kind, 32), 1));
        let cached = harness.finish(reader).usage().cached_tokens;
        let cache = harness.engine.stats().cache;
        assert!(cache.bytes <= 256 && cache.entries <= 2, "{cache:?}");
        cached
    };
    // The third displaces the second, because the first was used again.
    let asked = [(1, 0), (2, 0), (1, 31), (3, 0), (1, 31), (3, 31), (2, 0)];
    for (turn, (kind, expected)) in asked.into_iter().enumerate() {
        assert_eq!(cached(kind), expected, "turn {turn}");
    }
    assert_eq!(harness.engine.stats().cache.evictions, 2);
    harness.assert_empty();
}

/// Tokens computed in each turn of a conversation.
fn converse(mut harness: Harness) -> Vec<usize> {
    let mut said = prompt(1, 40);
    (0..20)
        .map(|turn| {
            let request = greedy(&said, 8);
            let computed = harness.computed(|harness| {
                let answer = harness.answer(request.clone());
                assert_eq!(answer, alone(request), "turn {turn}");
                said.extend(answer);
            });
            said.extend(prompt(turn + 2, 10));
            computed
        })
        .collect()
}

#[test]
fn conversation_computes_only_new_tokens() {
    for fake in [even_steps(), recurrent(), windowed()] {
        // Rejected drafts would count too.
        let turns = converse(Harness::new(fake, without_drafts()));
        assert_eq!(turns[0], 40 + 7);
        // The last answer's last token, ten new ones, and all but the last of the next answer.
        assert_eq!(turns[1..], [1 + 10 + 7; 19]);
    }
    let turns = converse(Harness::new(even_steps(), without_cache()));
    assert_eq!(turns[19], 40 + 19 * 18 + 7, "all of it");
}

#[test]
fn clearing_cache_keeps_running_requests() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    harness.answer(greedy(&prompt(1, 64), 1));
    let runs = harness.submit(greedy(&prompt(1, 64), 30));
    harness.turns(3);
    harness.engine.clear_cache();
    harness.turn();
    assert_eq!(harness.engine.stats().cache.entries, 0);
    assert_eq!(
        harness.finish(runs).ids(),
        alone(greedy(&prompt(1, 64), 30))
    );
    assert_eq!(harness.readers[runs].usage().cached_tokens, 63);
}

#[test]
fn cache_yields_to_running_sequences() {
    let fake = loquat_testkit::fake_session::FakeOptions {
        kv_capacity: 96,
        ..even_steps()
    };
    let mut harness = Harness::new(fake, EngineOptions::default());
    for kind in 0..10 {
        let reader = harness.submit(greedy(&prompt(kind, 48), 16));
        let queued = harness.finish(reader).timings().queued;
        assert_eq!(queued, millis(0), "request {kind}");
    }
    let stats = harness.engine.stats();
    assert!(stats.cache.evictions >= 9, "{stats:?}");
    assert_eq!(stats.totals.preempted, 0);
    harness.assert_empty();
}

#[test]
fn prompt_beyond_windows_is_reused_at_its_end() {
    let mut harness = Harness::new(windowed(), EngineOptions::default());
    let request = || greedy(&prompt(1, 100), 60);
    harness.answer(request());
    // Another answer's continuation, and a prompt that diverges inside.
    for (own, expected) in [(100, 99), (80, 0)] {
        let mut other = prompt(1, own);
        other.extend(prompt(2, 20));
        let reader = harness.submit(greedy(&other, 4));
        let reader = harness.finish(reader);
        assert_eq!(
            reader.usage().cached_tokens,
            expected,
            "{own} common tokens"
        );
        assert_eq!(reader.ids(), alone(greedy(&other, 4)));
    }
    harness.assert_empty();
}

#[test]
fn short_requests_cache_one_sequence_each() {
    let mut harness = Harness::new(windowed(), EngineOptions::default());
    // Within the windows, so that it can be forked at any length.
    harness.answer(greedy(&prompt(1, 20), 8));
    assert_eq!(harness.engine.stats().cache.entries, 1);
    let mut other = prompt(1, 13);
    other.extend(prompt(2, 5));
    let reader = harness.submit(greedy(&other, 4));
    assert_eq!(harness.finish(reader).usage().cached_tokens, 13);
    // The longer sequence replaces the cached one that it continues.
    let mut longer = prompt(1, 20);
    longer.extend(alone(greedy(&prompt(1, 20), 8)));
    harness.answer(greedy(&longer, 2));
    assert_eq!(harness.engine.stats().cache.entries, 2);
    harness.assert_empty();
}

#[test]
fn windows_admit_more_requests() {
    for (fake, expected) in [(even_steps(), 1), (windowed(), 3)] {
        let fake = loquat_testkit::fake_session::FakeOptions {
            kv_capacity: 608,
            max_step_tokens: 64,
            ..fake
        };
        let mut harness = Harness::new(fake, without_cache());
        let readers = (0..3).map(|kind| harness.submit(greedy(&prompt(kind, 400), 20)));
        let readers: Vec<usize> = readers.collect();
        let mut most = 0;
        while !readers.iter().all(|at| harness.readers[*at].has_ended()) {
            harness.turn();
            most = most.max(harness.worker.running.len());
        }
        assert_eq!(most, expected);
        for (kind, reader) in (0..).zip(readers) {
            let expected = alone(greedy(&prompt(kind, 400), 20));
            assert_eq!(harness.readers[reader].ids(), expected);
        }
        harness.assert_empty();
    }
}
