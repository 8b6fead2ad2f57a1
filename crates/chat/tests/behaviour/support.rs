//! A byte-level model and its chat contexts.

use std::path::Path;

use loquat_chat::{ChatContext, LoweredChat, Reply, ReplyEvent};
use loquat_engine::{Completion, Engine, EngineOptions};
use loquat_grammar::Grammars;
use loquat_testkit::fake_session::{FakeOptions, FakeSession};
use loquat_text::format::FormatOverrides;
use loquat_text::{ChatTemplate, Special, Tokenizer};

pub const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens/llama");

pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_huggingface(Path::new(GOLDEN)).expect("the golden tokenizer")
}

pub fn chat(template: &str) -> ChatContext {
    chat_with(Some(ChatTemplate::new(template).expect("a template")))
}

pub fn chat_with(template: Option<ChatTemplate>) -> ChatContext {
    let grammars = Grammars::new(tokenizer(), tokenizer().vocab_size());
    ChatContext::new(tokenizer(), template, grammars, FormatOverrides::default())
}

/// Answers a request with a model that prefers to generate `script`.
pub fn answer(lowered: LoweredChat, script: &str) -> (Completion, Vec<ReplyEvent>, Reply) {
    answer_with(tokenizer(), lowered, script)
}

pub fn answer_with(
    tokenizer: Tokenizer,
    lowered: LoweredChat,
    script: &str,
) -> (Completion, Vec<ReplyEvent>, Reply) {
    let LoweredChat {
        mut generate,
        mut reply,
        ..
    } = lowered;
    generate.sampling.temperature = 0.0;
    let mut script = tokenizer.encode(script, Special::RENDERED).expect("tokens");
    // The script counts from the sequence's first token: rotate it to start at the reply.
    let turn = (generate.prompt.len() - 1) % script.len();
    script.rotate_right(turn);
    let session = FakeSession::new(FakeOptions {
        vocab_size: tokenizer.vocab_size(),
        script,
        ..FakeOptions::default()
    });
    let engine = Engine::start(Box::new(session), Some(tokenizer), EngineOptions::default())
        .expect("an engine");
    let generation = engine.submit(generate).expect("accepted");
    let completion = generation.collect_blocking().expect("finished");
    let mut events = reply.push(&completion.text);
    events.extend(reply.finish());
    let mut whole = Reply::default();
    events.iter().for_each(|event| whole.add(event));
    (completion, events, whole)
}
