//! Prompts that begin alike and arrive together compute their beginning once.

use super::harness::{Harness, alone, even_steps, greedy, prompt, recurrent};
use crate::EngineOptions;

fn in_chunks() -> EngineOptions {
    EngineOptions {
        step_tokens: Some(8),
        ..EngineOptions::default()
    }
}

#[test]
fn identical_prompts_are_computed_once() {
    for fake in [even_steps(), recurrent()] {
        let mut harness = Harness::new(fake, in_chunks());
        for _ in 0..3 {
            harness.submit(greedy(&prompt(1, 64), 4));
        }
        harness.turns(3);
        let stats = harness.engine.stats();
        assert_eq!((stats.running, stats.waiting), (1, 2), "the others wait");
        harness.finish_all();
        for reader in &harness.readers {
            assert_eq!(reader.ids(), alone(greedy(&prompt(1, 64), 4)));
        }
        // Less than a run of KV is not worth waiting for.
        let computed = harness.counters.computed_tokens();
        assert!(computed <= 64 + 2 * 16 + 3 * 3, "{computed}");
        harness.assert_empty();
    }
}

#[test]
fn waits_only_for_common_prefix() {
    let mut harness = Harness::new(even_steps(), in_chunks());
    let first = harness.submit(greedy(&prompt(1, 128), 4));
    let mut other = prompt(1, 32);
    other.extend(prompt(2, 20));
    let second = harness.submit(greedy(&other, 4));
    let stranger = harness.submit(greedy(&prompt(3, 20), 4));
    harness.turns(2);
    assert_eq!(
        harness.engine.stats().running,
        2,
        "unrelated prompts do not wait"
    );
    harness.finish(second);
    assert!(
        harness.readers[first].tokens.is_empty(),
        "not for all of it"
    );
    assert_eq!(harness.readers[second].ids(), alone(greedy(&other, 4)));
    assert!(harness.readers[second].usage().cached_tokens >= 16);
    harness.finish(stranger);
    harness.finish(first);
    harness.assert_empty();
}

#[test]
fn waiter_continues_when_first_is_cancelled() {
    for fake in [even_steps(), recurrent()] {
        let mut harness = Harness::new(fake, in_chunks());
        let first = harness.submit(greedy(&prompt(1, 64), 4));
        let second = harness.submit(greedy(&prompt(1, 64), 4));
        harness.turns(4);
        assert_eq!(harness.engine.stats().running, 1);
        harness.readers[first].generation = None;
        harness.turns(2);
        assert_eq!(harness.engine.stats().running, 1, "within one step");
        assert_eq!(
            harness.finish(second).ids(),
            alone(greedy(&prompt(1, 64), 4))
        );
        let computed = harness.counters.computed_tokens();
        assert!(computed <= 64 + 3 + 8, "{computed}: half was reused");
        assert_eq!(harness.engine.stats().totals.cancelled, 1);
        harness.assert_empty();
    }
}

#[test]
fn stalled_sequence_is_not_waited_for() {
    use super::harness::ReaderBehaviour;
    use crate::GenerateRequest;
    let options = EngineOptions {
        event_buffer: 1,
        ..in_chunks()
    };
    let mut harness = Harness::new(even_steps(), options);
    let stalled = harness.submit(GenerateRequest {
        prompt_logprobs: true,
        ..greedy(&prompt(1, 20), 30)
    });
    harness.readers[stalled].habit = ReaderBehaviour::Stalled;
    harness.turns(6);
    let longer = harness.submit(greedy(&prompt(1, 64), 4));
    assert_eq!(
        harness.finish(longer).ids(),
        alone(greedy(&prompt(1, 64), 4))
    );
    assert!(!harness.readers[stalled].has_ended());
}
