//! How long answers may be, and how many share a batch.

use loquat::{DEFAULT_MAX_TOKENS, FinishReason};
use loquat_testkit::fake_session::FakeOptions;
use loquat_text::Special;

use crate::{counted_fake_model, fake_model, golden_context, within_a_minute};

const KV_TOKENS: usize = 100_000;

/// A model that never ends its answer, with KV memory for one sequence of full length.
fn endless() -> FakeOptions {
    let context = golden_context();
    let script = context.tokenizer().encode("a", Special::PLAIN).unwrap();
    FakeOptions {
        max_context: KV_TOKENS,
        kv_capacity: KV_TOKENS,
        script,
        ..FakeOptions::default()
    }
}

#[test]
fn chats_without_max_tokens_share_a_batch() {
    let options = endless();
    let hold = options.hold.clone();
    let (model, counters) = counted_fake_model(options);
    assert_eq!(model.max_tokens(None, 10), DEFAULT_MAX_TOKENS);
    within_a_minute(move || {
        let held = hold.lock();
        let mut answers = ["hi", "hello"].map(|text| model.chat(text).seed(1).stream().unwrap());
        drop(held);
        for answer in &mut answers {
            assert!(answer.next().unwrap().is_ok());
        }
    });
    let largest = counters.steps().iter().map(|step| step.rows).max();
    assert_eq!(largest, Some(2));
}

#[test]
fn max_tokens_are_reduced_to_the_context() {
    let model = fake_model(endless());
    for (requested, prompt, expected) in [
        (None, 1, DEFAULT_MAX_TOKENS),
        (None, KV_TOKENS - 7, 7),
        (None, KV_TOKENS, 1),
        (Some(9000), 1, 9000),
        (Some(9000), KV_TOKENS - 7, 7),
        (Some(9000), KV_TOKENS, 1),
        (Some(usize::MAX), 1, KV_TOKENS - 1),
    ] {
        assert_eq!(model.max_tokens(requested, prompt), expected);
    }
    let defaults = loquat::RequestDefaults {
        max_tokens: 5,
        ..model.defaults().clone()
    };
    assert_eq!(model.with_defaults(defaults).max_tokens(None, 1), 5);
}

#[test]
fn answer_states_its_reduced_limit() {
    let model = fake_model(FakeOptions {
        max_context: 64,
        ..endless()
    });
    let ask = |count| model.complete("abc").max_tokens(count).stream().unwrap();
    assert_eq!(ask(5).max_tokens(), 5);
    let mut answer = ask(32_000);
    assert_eq!(answer.max_tokens(), 64 - "abc".len());
    assert!(answer.by_ref().all(|event| event.is_ok()));
    assert_eq!(answer.tokens().len(), answer.max_tokens());
    assert_eq!(answer.finish().unwrap().reason, FinishReason::Length);
}
