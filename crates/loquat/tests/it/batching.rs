//! Concurrent requests without `max_tokens`.

use loquat::{DEFAULT_MAX_TOKENS, Model};
use loquat_testkit::fake_session::FakeOptions;
use loquat_text::Special;

use crate::{fake_model, golden_context, within_a_minute};

const KV_TOKENS: usize = 100_000;

/// A model that never ends its answer, with KV memory for one sequence of full length.
fn endless() -> Model {
    let tokenizer = golden_context().tokenizer().clone();
    fake_model(FakeOptions {
        max_context: KV_TOKENS,
        kv_capacity: KV_TOKENS,
        script: tokenizer.encode("a", Special::PLAIN).unwrap(),
        ..FakeOptions::default()
    })
}

#[test]
fn chats_without_max_tokens_share_a_batch() {
    let model = endless();
    assert_eq!(model.max_tokens(None, 10), DEFAULT_MAX_TOKENS);
    // Neither answer is read to its end, so the second starts only if both fit the KV memory.
    let running = within_a_minute(move || {
        let mut answers = ["hi", "hello"].map(|text| model.chat(text).seed(1).stream().unwrap());
        let first = answers.each_mut().map(|answer| answer.next().unwrap());
        assert!(first.iter().all(Result::is_ok));
        model.engine().stats().running
    });
    assert_eq!(running, 2);
}

#[test]
fn default_max_tokens_is_bounded_by_the_room_left() {
    let model = endless();
    for (requested, prompt, expected) in [
        (None, 1, DEFAULT_MAX_TOKENS),
        (None, KV_TOKENS - 7, 7),
        (None, KV_TOKENS, 1),
        (Some(9000), 1, 9000),
        (Some(9000), KV_TOKENS, 9000),
    ] {
        assert_eq!(model.max_tokens(requested, prompt), expected);
    }
    let defaults = loquat::RequestDefaults {
        max_tokens: 5,
        ..model.defaults().clone()
    };
    assert_eq!(model.with_defaults(defaults).max_tokens(None, 1), 5);
}
