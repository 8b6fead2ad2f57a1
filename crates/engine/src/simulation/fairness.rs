//! Clients of one priority get equal shares, however many requests each sends.

use std::time::Duration;

use super::harness::{Harness, even_steps, greedy, millis, one_at_a_time, prompt};
use crate::{EngineOptions, GenerateRequest};

fn request_from(client: &str, kind: u32, len: usize, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        client: Some(client.into()),
        ..greedy(&prompt(kind, len), max_tokens)
    }
}

#[test]
fn flood_does_not_delay_other_clients() {
    // Waits of many seconds, in which the earliest request would age far ahead.
    for aging in [
        millis(20),
        Duration::from_secs(1),
        Duration::from_secs(3600),
    ] {
        let options = EngineOptions {
            aging,
            ..one_at_a_time()
        };
        let mut harness = Harness::new(even_steps(), options);
        let flood: Vec<_> = (0..50)
            .map(|kind| harness.submit(request_from("flood", kind, 4, 8)))
            .collect();
        harness.turns(100);
        let modest: Vec<_> = (50..55)
            .map(|kind| harness.submit(request_from("modest", kind, 4, 8)))
            .collect();
        let ended = |harness: &Harness, readers: &[usize]| {
            let ended = |reader: &&usize| harness.readers[**reader].has_ended();
            readers.iter().filter(ended).count()
        };
        let before = ended(&harness, &flood);
        harness.finish(modest[4]);
        assert_eq!(ended(&harness, &modest), 5);
        let meanwhile = ended(&harness, &flood) - before;
        assert!((4..=6).contains(&meanwhile), "{meanwhile} of the flood");
        harness.finish_all();
        harness.assert_empty();
    }
}

#[test]
fn shares_count_tokens_not_requests() {
    let mut harness = Harness::new(even_steps(), one_at_a_time());
    for kind in 0..60 {
        harness.submit(request_from("short", kind, 5, 5));
        harness.submit(request_from("long", 60 + kind, 40, 20));
    }
    harness.turns(300);
    let computed = |parity: usize, size: usize| {
        let mine = harness.readers.iter().skip(parity).step_by(2);
        mine.filter(|reader| reader.has_ended()).count() * size
    };
    let (short, long) = (computed(0, 9), computed(1, 59));
    assert!(long > 300, "{long}");
    assert!(short.abs_diff(long) <= 60, "{short} and {long}");
}

#[test]
fn heavy_client_is_not_starved_by_newcomers() {
    let mut harness = Harness::new(even_steps(), one_at_a_time());
    harness.submit(request_from("keeper", 0, 2, 2));
    let heavy = harness.submit(request_from("heavy", 1, 2000, 100));
    harness.finish(heavy);
    let mut newcomers = 2..;
    let mut arrive = |harness: &mut Harness| {
        while harness.engine.stats().waiting < 4 {
            let kind = newcomers.next().expect("endless");
            harness.submit(request_from(&kind.to_string(), kind % 60, 4, 4));
        }
    };
    arrive(&mut harness);
    let again = harness.submit(request_from("heavy", 1, 4, 4));
    let sent = harness.clock.elapsed();
    while !harness.readers[again].has_ended() {
        arrive(&mut harness);
        harness.turn();
        let waited = harness.clock.elapsed() - sent;
        assert!(waited < Duration::from_secs(120), "starved for {waited:?}");
    }
}
