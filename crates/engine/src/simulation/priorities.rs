//! The order in which requests run.

use super::harness::{Harness, alone, even_steps, greedy, millis, one_at_a_time};
use crate::{EngineOptions, GenerateRequest};

fn urgent(priority: i32, request: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        priority,
        ..request
    }
}

#[test]
fn priorities_then_arrival_order() {
    let mut harness = Harness::new(even_steps(), one_at_a_time());
    harness.submit(urgent(-100, greedy(&[1], 5)));
    harness.turn();
    let priorities = [3, -1, 0, -5, 0, 7];
    let readers = priorities.map(|priority| harness.submit(urgent(priority, greedy(&[2], 3))));
    harness.finish_all();
    let mut order = [0, 1, 2, 3, 4, 5];
    order.sort_by_key(|&i| harness.readers[readers[i]].first_token());
    assert_eq!(order, [3, 1, 2, 4, 0, 5]);
    harness.assert_empty();
}

#[test]
fn waiting_request_overtakes_urgent_stream() {
    for (aging, levels) in [(50, 4), (100, 5), (400, 2)] {
        let options = EngineOptions {
            aging: millis(aging),
            ..one_at_a_time()
        };
        let mut harness = Harness::new(even_steps(), options);
        let mut kind = 0..;
        let mut hurry = |harness: &mut Harness| {
            let prompt = [kind.next().expect("endless") % 200];
            harness.submit(urgent(0, greedy(&prompt, 4)))
        };
        hurry(&mut harness);
        harness.turn();
        let patient = harness.submit(urgent(levels, greedy(&[250], 4)));
        while harness.readers[patient].tokens.is_empty() {
            if harness.engine.stats().waiting < 2 {
                hurry(&mut harness);
            }
            harness.turn();
        }
        let waited = harness.readers[patient].first_token();
        let expected = millis(aging * levels as u64);
        let slack = millis(aging + 100);
        assert!(waited >= expected, "{waited:?}, not {expected:?}");
        assert!(waited <= expected + slack, "{waited:?}, not {expected:?}");
        assert_eq!(harness.finish(patient).ids(), alone(greedy(&[250], 4)));
    }
}
