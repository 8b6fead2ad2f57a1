//! What a reader gets: tokens, text, log-probabilities, and the reason for the end.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::support::*;
use loquat_engine::{
    Completion, Engine, Event, FinishReason, GenerateRequest, Logprobs, SamplingParams,
};
use loquat_testkit::fake_session::FakeOptions;
use loquat_text::Special;

fn complete(engine: &Engine, request: GenerateRequest) -> Completion {
    let generation = engine.submit(request).expect("accepted");
    generation.collect_blocking().expect("finished")
}

/// Has the script answer, up to `max_tokens` and the request's own stops.
fn answer(script: &str, max_tokens: usize, stop: &[&str], stop_ids: &[u32]) -> Completion {
    let engine = start_scripted(script);
    let request = GenerateRequest {
        stop: stop.iter().map(|stop| (*stop).to_owned()).collect(),
        stop_ids: stop_ids.to_vec(),
        skip_special: true,
        ..greedy(&[0], max_tokens)
    };
    complete(&engine, request)
}

#[test]
fn text_ends_at_stops_and_limits() {
    use FinishReason::*;
    let eos = tokenizer().eos_ids().to_vec();
    type Case<'a> = (
        &'a str,
        usize,
        &'a [&'a str],
        &'a [u32],
        &'a str,
        FinishReason,
        usize,
    );
    let cases: [Case<'_>; 11] = [
        ("hello there", 5, &[], &[], "hello", Length, 5),
        ("one two three", 13, &["two"], &[], "one ", StopString(0), 7),
        ("one two", 7, &["zzz", "e t"], &[], "on", StopString(1), 5),
        ("aab aac", 7, &["aac"], &[], "aab ", StopString(0), 7),
        ("held bac", 8, &["back"], &[], "held bac", Length, 8),
        ("bye<|eos|>more", 9, &[], &eos, "bye", Stop, 4),
        ("bye<|eos|>more", 8, &[], &[], "byemore", Length, 8),
        ("ba<|eos|>more", 9, &["back"], &eos, "ba", Stop, 3),
        ("né", 3, &[], &[], "né", Length, 3),
        ("né", 2, &[], &[], "n\u{fffd}", Length, 2),
        ("né!", 9, &["é"], &[], "n", StopString(0), 3),
    ];
    for (script, max_tokens, stop, stop_ids, text, reason, tokens) in cases {
        let completion = answer(script, max_tokens, stop, stop_ids);
        assert_eq!(completion.text, text, "{script:?} {stop:?}");
        assert_eq!(completion.reason, reason, "{script:?} {stop:?}");
        assert_eq!(completion.tokens.len(), tokens, "{script:?} {stop:?}");
        assert_eq!(completion.usage.completion_tokens, tokens);
        assert_eq!(completion.usage.prompt_tokens, 1);
    }
}

#[test]
fn special_tokens_are_shown_unless_skipped() {
    let engine = start_scripted("a<|eos|>b");
    assert_eq!(complete(&engine, greedy(&[0], 3)).text, "a<|eos|>b");
    let id = |text| tokenizer().token_id(text).expect("a token");
    for (shown, text) in [("<|eos|>", "a<|eos|>b"), ("<|bos|>", "ab")] {
        let request = GenerateRequest {
            skip_special: true,
            shown_special: vec![id(shown)],
            ..greedy(&[0], 3)
        };
        assert_eq!(complete(&engine, request).text, text);
    }
}

#[test]
fn stops_wait_for_min_tokens() {
    use FinishReason::*;
    let eos = tokenizer().eos_ids().to_vec();
    let cases = [
        ("a.b.c.", 0, 6, Ok(("a", StopString(0)))),
        ("a.b.c.", 2, 6, Ok(("a", StopString(0)))),
        ("a.b.c.", 3, 6, Ok(("a.b", StopString(0)))),
        ("a.b.c.", 6, 6, Ok(("a.b.c", StopString(0)))),
        ("a.b.c.", 7, 6, Err("`min_tokens`")),
        ("a<|eos|>bc", 0, 4, Ok(("a", Stop))),
    ];
    for (script, min_tokens, max_tokens, expected) in cases {
        let engine = start_scripted(script);
        let mut request = greedy(&[0], max_tokens);
        request.sampling.min_tokens = min_tokens;
        request.stop = vec![".".into()];
        request.stop_ids = eos.clone();
        let outcome = engine.submit(request);
        match (outcome, expected) {
            (Ok(generation), Ok(expected)) => {
                let completion = generation.collect_blocking().expect("finished");
                assert_eq!((completion.text.as_str(), completion.reason), expected);
            }
            (Err(error), Err(field)) => assert!(error.to_string().contains(field), "{error}"),
            other => panic!("{script} {min_tokens}: {other:?}"),
        }
    }
}

#[test]
fn empty_stop_string_is_refused() {
    let engine = start_scripted("abc");
    let request = GenerateRequest {
        stop: vec!["x".into(), String::new()],
        ..greedy(&[0], 3)
    };
    let error = engine.submit(request).expect_err("refused");
    assert!(error.to_string().contains("`stop`"), "{error}");
}

#[test]
fn text_is_sent_when_certain() {
    let engine = start_scripted("xaby");
    let request = GenerateRequest {
        stop: vec!["abc".into()],
        ..greedy(&[0], 4)
    };
    let mut generation = engine.submit(request).expect("accepted");
    let mut pieces = Vec::new();
    while let Some(event) = generation.recv_blocking() {
        if let Event::Tokens { tokens, text } = event {
            assert_eq!(tokens.len(), 1);
            pieces.push(text);
        }
    }
    assert_eq!(pieces, ["x", "", "", "aby"]);
    assert_eq!(generation.recv_blocking(), None, "nothing after the end");
}

#[test]
fn logprobs_match_model_distribution() {
    let (engine, _) = start_default();
    let request = GenerateRequest {
        logprobs: Some(Logprobs::for_model(264)),
        sampling: SamplingParams {
            temperature: 0.2,
            repetition_penalty: 1.5,
            ..SamplingParams::default()
        },
        ..greedy(&[1, 2, 3], 5)
    };
    for token in complete(&engine, request).tokens {
        let sum: f64 = token.top.iter().map(|top| f64::from(top.1).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert!(token.top.is_sorted_by(|a, b| a.1 >= b.1));
        let own = token.top.iter().find(|top| top.0 == token.id);
        assert_eq!(own.map(|top| top.1), token.logprob);
    }
    let plain = complete(&engine, greedy(&[1], 2));
    assert!(plain.tokens.iter().all(|token| token.logprob.is_none()));
}

#[test]
fn prompt_logprobs_match_generated_logprobs() {
    let script_free = FakeOptions::default();
    for step_tokens in [3, 256] {
        let (engine, counters) = start(
            script_free.clone(),
            loquat_engine::EngineOptions {
                step_tokens: Some(step_tokens),
                ..Default::default()
            },
        );
        let generated = complete(
            &engine,
            GenerateRequest {
                logprobs: Some(Logprobs::for_model(2)),
                ..greedy(&[7], 10)
            },
        );
        let mut prompt = vec![7];
        prompt.extend(generated.ids());
        let scored = complete(
            &engine,
            GenerateRequest {
                logprobs: Some(Logprobs::for_model(2)),
                prompt_logprobs: true,
                ..greedy(&prompt, 0)
            },
        );
        assert_eq!(scored.prompt_logprobs[0].logprob, None);
        assert_eq!(scored.prompt_logprobs[1..], generated.tokens);
        assert_eq!(scored.reason, FinishReason::Length);
        assert_eq!(scored.usage.completion_tokens, 0);

        let both = complete(
            &engine,
            GenerateRequest {
                prompt_logprobs: true,
                ..greedy(&prompt, 4)
            },
        );
        assert_eq!(both.prompt_logprobs.len(), prompt.len());
        assert_eq!(both.ids(), oracle(script_free.clone(), &prompt, 4));
        assert_empty(&engine, &counters);
    }
}

#[test]
fn async_api_gives_the_same_events() {
    struct Thread(std::thread::Thread);
    impl std::task::Wake for Thread {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(std::sync::Arc::new(Thread(std::thread::current())));
    let (engine, _) = start_default();
    let mut generation = engine.submit(greedy(&[1], 100)).expect("accepted");
    let mut events = pin!(async {
        let mut ids = Vec::new();
        while let Some(event) = generation.recv().await {
            if let Event::Tokens { tokens, .. } = event {
                ids.extend(tokens.iter().map(|token| token.id));
            }
        }
        ids
    });
    let ids = loop {
        match events.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(ids) => break ids,
            Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(ids, oracle(FakeOptions::default(), &[1], 100));
}

#[test]
fn bias_forces_and_forbids() {
    let (engine, _) = start_default();
    let with_bias = |bias| GenerateRequest {
        sampling: SamplingParams {
            logit_bias: vec![(42, bias)],
            seed: Some(1),
            ..SamplingParams::default()
        },
        ..greedy(&[1], 200)
    };
    assert_eq!(ids(&engine, with_bias(100.0)), [42; 200]);
    assert!(!ids(&engine, with_bias(-100.0)).contains(&42));
}

#[test]
fn script_round_trips_through_tokenizer() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("né", Special::PLAIN).expect("tokens");
    assert_eq!(ids.len(), 3, "one token a byte");
}

#[test]
fn best_choices_have_highest_mean_logprob() {
    let (engine, _) = start_default();
    let request = GenerateRequest {
        logprobs: Some(Logprobs::for_model(0)),
        ..sampled(&[1, 2, 3], 6, 11)
    };
    let choices = engine.submit_choices(request.clone(), 5).expect("accepted");
    let all = choices.collect_blocking().expect("finished");
    let mean = |each: &Completion| {
        let sum: f32 = each.tokens.iter().filter_map(|token| token.logprob).sum();
        sum / each.tokens.len() as f32
    };
    let mut expected = all.clone();
    expected.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    assert!(
        mean(&expected[0]) > mean(&expected[4]),
        "the choices differ"
    );
    let best = Completion::best(2, all).expect("ranked");
    assert_eq!(best, expected[..2]);

    let unscored = GenerateRequest {
        logprobs: None,
        ..request
    };
    let choices = engine.submit_choices(unscored, 2).expect("accepted");
    let all = choices.collect_blocking().expect("finished");
    match Completion::best(1, all) {
        Err(loquat_engine::EngineError::Unsupported { field, .. }) => assert_eq!(field, "best_of"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn dry_breaks_repetition_except_across_breakers() {
    let script = "ababababababab";
    let answer = |breakers: &[&str]| {
        let mut request = greedy(&[0], script.len());
        request.sampling.dry_multiplier = 100.0;
        request.sampling.dry_sequence_breakers = breakers.iter().map(|b| (*b).into()).collect();
        complete(&start_scripted(script), request).text
    };
    assert!(!answer(&[]).starts_with("ababab"), "{}", answer(&[]));
    assert_eq!(answer(&["b"]), script);

    let (engine, _) = start_default();
    let mut request = greedy(&[0], 4);
    request.sampling.dry_multiplier = 1.0;
    let error = engine.submit(request).expect_err("no tokenizer");
    assert!(
        error.to_string().contains("`dry_sequence_breakers`"),
        "{error}"
    );
}
