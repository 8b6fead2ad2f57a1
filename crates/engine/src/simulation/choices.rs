//! Many answers to one prompt, which is computed once.

use loquat_testkit::fake_session::FakeOptions;

use super::harness::{
    Harness, alone, even_steps, greedy, prompt, recurrent, sampled, without_cache,
};
use crate::{EngineError, EngineOptions};

const LEN: usize = 70;

#[test]
fn choices_share_prompt_and_differ_in_seed() {
    let cases: [(FakeOptions, EngineOptions); 4] = [
        (even_steps(), EngineOptions::default()),
        (even_steps(), without_cache()),
        (recurrent(), EngineOptions::default()),
        (recurrent(), without_cache()),
    ];
    for (case, (fake, options)) in cases.into_iter().enumerate() {
        let mut harness = Harness::new(fake, options);
        let readers = harness.submit_choices(sampled(&prompt(1, LEN), 12, 100), 5);
        harness.finish_all();
        let mut answers: Vec<Vec<u32>> = Vec::new();
        for (choice, reader) in (0..).zip(readers) {
            let reader = &harness.readers[reader];
            let expected = alone(sampled(&prompt(1, LEN), 12, 100 + choice));
            assert_eq!(reader.ids(), expected, "case {case}, choice {choice}");
            let cached = if choice == 0 { 0 } else { LEN - 1 };
            assert_eq!(reader.usage().cached_tokens, cached, "case {case}");
            answers.push(reader.ids());
        }
        answers.sort();
        answers.dedup();
        assert!(answers.len() >= 4, "case {case}: {answers:?}");
        let computed = harness.counters.computed_tokens();
        assert_eq!(computed, LEN + 4 + 5 * 11, "case {case}");
        harness.assert_empty();
    }
}

#[test]
fn choices_start_together() {
    let mut harness = Harness::new(even_steps(), EngineOptions::default());
    let readers = harness.submit_choices(sampled(&prompt(1, LEN), 12, 100), 4);
    harness.finish_all();
    let first = harness.readers[readers[0]].first_token();
    for reader in readers {
        let late = harness.readers[reader].first_token() - first;
        assert!(late <= super::harness::millis(10), "{late:?}");
    }
}

#[test]
fn excess_choices_take_turns() {
    let fake = FakeOptions {
        kv_capacity: 2 * 96,
        ..even_steps()
    };
    let mut harness = Harness::new(fake, EngineOptions::default());
    let readers = harness.submit_choices(sampled(&prompt(1, LEN), 20, 3), 6);
    harness.finish_all();
    for (choice, reader) in (0..).zip(readers) {
        let expected = alone(sampled(&prompt(1, LEN), 20, 3 + choice));
        assert_eq!(harness.readers[reader].ids(), expected, "choice {choice}");
    }
    // The pages of the prompt are shared, or three of these would not run at once.
    let most = harness.counters.steps().iter().map(|step| step.rows).max();
    assert!(most >= Some(3), "{most:?}");
    assert_eq!(harness.counters.starved_rows(), 0);
    harness.assert_empty();
}

#[test]
fn request_counts_once_in_queue() {
    let options = EngineOptions {
        max_running: Some(1),
        max_queue: 1,
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    harness.submit_choices(sampled(&[1], 3, 1), 3);
    harness.submit_choices(sampled(&[1], 3, 1), 2);
    let refused = harness.engine.submit_choices(greedy(&[1], 3), 2);
    assert_eq!(refused.err(), Some(EngineError::QueueFull));
    harness.finish_all();
    let totals = harness.engine.stats().totals;
    assert_eq!((totals.submitted, totals.refused), (5, 2));
    harness.assert_empty();
}

/// However many choices have started when the next request comes.
#[test]
fn idle_engine_accepts_its_capacity() {
    for (max_running, choices) in [(1, 2), (2, 2), (3, 2), (2, 3)] {
        let options = EngineOptions {
            max_running: Some(max_running),
            max_queue: 1,
            ..EngineOptions::default()
        };
        for turns in 0..4 {
            let mut harness = Harness::new(even_steps(), options.clone());
            for _ in 0..harness.engine.idle_capacity(choices) {
                harness.submit_choices(sampled(&[1], 30, 1), choices);
                for _ in 0..turns {
                    harness.turn();
                }
            }
            harness.finish_all();
            assert_eq!(harness.engine.stats().totals.refused, 0);
        }
    }
}

#[test]
fn idle_slots_admit_a_burst() {
    let options = EngineOptions {
        max_running: Some(2),
        max_queue: 1,
        ..EngineOptions::default()
    };
    let mut harness = Harness::new(even_steps(), options);
    let mut burst = |expected: [bool; 5]| {
        let accepted = expected.map(|_| match harness.engine.submit(greedy(&[1], 3)) {
            Ok(generation) => {
                harness.read(generation);
                true
            }
            Err(_) => false,
        });
        assert_eq!(accepted, expected);
        // Those that run leave their places in the queue, and take the free slots.
        harness.turn();
    };
    burst([true, true, true, false, false]);
    burst([false; 5]);
    harness.finish_all();
    let waiting = harness.engine.stats().waiting;
    assert_eq!(waiting, 0);
    harness.assert_empty();
}
