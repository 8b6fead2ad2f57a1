//! The public API on a tiny checkpoint and on a scripted session.

mod answers;
mod batching;
mod constraints;
mod embeddings;
mod examples;
mod kv_disk;
mod loading;
mod logprobs;
mod media;
mod mmproj;
mod tokenization;
mod tools;

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use loquat::{BackendChoice, ChatContext, Model, ModelFiles, ModelOptions};
use loquat_testkit::fake_session::{FakeCounters, FakeOptions, FakeSession};
use loquat_text::Special;
use loquat_text::format::FormatOverrides;

/// Random weights: its answers are noise that satisfies their constraints.
fn model() -> Model {
    options().load(golden().to_str().unwrap()).unwrap()
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama")
}

fn golden_context() -> ChatContext {
    let checkpoint = loquat_weights::Checkpoint::open(&golden()).unwrap();
    let files = ModelFiles::from_checkpoint("llama".to_owned(), checkpoint).unwrap();
    files
        .chat_context(None, FormatOverrides::default())
        .unwrap()
}

fn fake_model(options: FakeOptions) -> Model {
    counted_fake_model(options).0
}

/// The model, and what its session counts.
fn counted_fake_model(options: FakeOptions) -> (Model, Arc<FakeCounters>) {
    let context = golden_context();
    let session = FakeSession::new(FakeOptions {
        vocab_size: context.tokenizer().vocab_size(),
        ..options
    });
    let counters = session.counters();
    let options = Default::default();
    let model = Model::from_session("fake", Box::new(session), context, options).unwrap();
    (model, counters)
}

/// A model that answers every chat with the same text.
fn scripted(reply: &str) -> Model {
    let context = golden_context();
    let tokenizer = context.tokenizer();
    let mut script = tokenizer.encode(reply, Special::PLAIN).unwrap();
    script.extend(tokenizer.eos_ids().first());
    let opening = "<|im_start|>assistant\n";
    fake_model(FakeOptions {
        script,
        opening: tokenizer.encode(opening, Special::RENDERED).unwrap(),
        ..FakeOptions::default()
    })
}

fn options() -> ModelOptions {
    ModelOptions {
        backend: BackendChoice::CPU,
        ..ModelOptions::default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.build().unwrap()
}

/// Runs `work` on another thread; panics if it hangs.
fn within_a_minute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    let done = receiver.recv_timeout(Duration::from_secs(60));
    done.expect("the work hangs or panicked")
}
