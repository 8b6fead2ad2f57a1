//! Urgent requests preempt others, which lose nothing but time.

use loquat_testkit::fake_session::FakeOptions;

use super::harness::{
    Harness, alone, even_steps, greedy, millis, one_at_a_time, prompt, recurrent, sampled,
    without_cache,
};
use crate::{EngineOptions, GenerateRequest};

const PATIENT: usize = 16 + 112;
const URGENT: usize = 16 + 32;

/// Room for either request, and for what the patient one has computed beside the urgent one.
fn short_of_room(fake: FakeOptions) -> FakeOptions {
    FakeOptions {
        kv_capacity: 160,
        ..fake
    }
}

fn patient() -> GenerateRequest {
    GenerateRequest {
        priority: 5,
        ..sampled(&prompt(1, 16), PATIENT - 16, 7)
    }
}

fn urgent() -> GenerateRequest {
    greedy(&prompt(2, 16), URGENT - 16)
}

/// Tokens computed when the patient one was preempted, and in all.
fn preempt(fake: FakeOptions, options: EngineOptions) -> (usize, usize) {
    let mut harness = Harness::new(short_of_room(fake), options);
    let slow = harness.submit(patient());
    harness.turns(21);
    let before = harness.counters.computed_tokens();
    assert_eq!(harness.engine.stats().running, 1);
    let fast = harness.submit(urgent());
    assert_eq!(harness.finish(fast).ids(), alone(urgent()));
    let read = harness.readers[slow].tokens.len();
    assert!((20..=22).contains(&read), "it was preempted: {read}");
    assert_eq!(harness.finish(slow).ids(), alone(patient()));
    let stats = harness.engine.stats();
    assert_eq!(stats.totals.preempted, 1);
    assert_eq!(harness.readers[slow].usage().cached_tokens, 0);
    harness.assert_empty();
    (before, harness.counters.computed_tokens())
}

#[test]
fn preempted_requests_resume() {
    let needed = PATIENT - 1 + URGENT - 1;
    let (_, computed) = preempt(even_steps(), EngineOptions::default());
    assert_eq!(computed, needed, "nothing twice");
    let (_, computed) = preempt(recurrent(), EngineOptions::default());
    assert_eq!(computed, needed, "nothing twice");
}

#[test]
fn preempted_requests_recompute_without_cache() {
    let needed = PATIENT - 1 + URGENT - 1;
    let (before, computed) = preempt(even_steps(), without_cache());
    assert_eq!(computed, needed + before, "all of it twice");
}

#[test]
fn equal_priority_is_never_preempted() {
    let mut harness = Harness::new(short_of_room(even_steps()), EngineOptions::default());
    let first = harness.submit(patient());
    harness.turns(5);
    let second = harness.submit(GenerateRequest {
        priority: 5,
        ..urgent()
    });
    harness.finish(second);
    assert!(harness.readers[first].has_ended(), "it was there first");
    assert_eq!(harness.engine.stats().totals.preempted, 0);
}

#[test]
fn aged_request_is_not_preempted_repeatedly() {
    let options = EngineOptions {
        aging: millis(100),
        ..one_at_a_time()
    };
    let mut harness = Harness::new(even_steps(), options);
    let patient = harness.submit(GenerateRequest {
        priority: 3,
        ..greedy(&[250], 40)
    });
    harness.turns(3);
    for kind in 0.. {
        if harness.readers[patient].has_ended() {
            break;
        }
        // Another urgent one as soon as the last is done.
        let urgent = harness.submit(greedy(&[kind % 200], 10));
        harness.turn_until("either's end", |harness| {
            harness.readers[urgent].has_ended() || harness.readers[patient].has_ended()
        });
    }
    assert_eq!(harness.finish(patient).ids(), alone(greedy(&[250], 40)));
    let preempted = harness.engine.stats().totals.preempted;
    assert!((1..=4).contains(&preempted), "{preempted}, once a level");
}

#[test]
fn least_urgent_latest_is_preempted_first() {
    let fake = FakeOptions {
        kv_capacity: 3 * 64,
        ..even_steps()
    };
    let mut harness = Harness::new(fake, EngineOptions::default());
    let running = [(1, 4), (2, 9), (3, 9)].map(|(kind, priority)| {
        harness.submit(GenerateRequest {
            priority,
            ..greedy(&prompt(kind, 16), 48)
        })
    });
    harness.turns(4);
    let urgent = harness.submit(greedy(&prompt(4, 16), 48));
    harness.finish(urgent);
    let read = running.map(|reader| harness.readers[reader].tokens.len());
    assert_eq!(harness.engine.stats().totals.preempted, 1);
    assert!(read[2] < read[0] && read[2] < read[1], "{read:?}");
}
