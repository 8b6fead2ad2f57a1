//! A byte-level model and its chats.
#![allow(
    dead_code,
    reason = "each test file is a program of its own and uses a part"
)]

use std::path::Path;

use loquat_chat::{Chat, Lowered, Reply, ReplyEvent};
use loquat_engine::{Completion, Engine, EngineOptions};
use loquat_grammar::Grammars;
use loquat_testkit::fake_session::{FakeOptions, FakeSession};
use loquat_text::{ChatTemplate, Special, Tokenizer};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../testkit/goldens/llama");

pub fn tokenizer() -> Tokenizer {
    Tokenizer::from_huggingface(Path::new(GOLDEN)).expect("the golden tokenizer")
}

pub fn chat(template: &str) -> Chat {
    chat_with(Some(ChatTemplate::new(template).expect("a template")))
}

pub fn chat_with(template: Option<ChatTemplate>) -> Chat {
    let grammars = Grammars::new(tokenizer(), tokenizer().vocab_size());
    Chat::new(tokenizer(), template, grammars)
}

/// What comes of a request when the model wants to say `script`, and how it was told.
pub fn answer(lowered: Lowered, script: &str) -> (Completion, Vec<ReplyEvent>, Reply) {
    let Lowered {
        mut generate,
        mut reply,
    } = lowered;
    generate.sampling.temperature = 0.0;
    let tokenizer = tokenizer();
    let mut script = tokenizer.encode(script, Special::RENDERED).expect("tokens");
    // The script counts from the sequence's first token, so it is turned to start at the reply.
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
