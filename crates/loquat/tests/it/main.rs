//! The public API on a tiny checkpoint and on a scripted session.

mod answers;
mod batching;
mod constraints;
mod embeddings;
mod examples;
mod loading;
mod logprobs;
mod tokenization;
mod tools;

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use loquat::{BackendChoice, Model, ModelFiles, ModelOptions};

/// Random weights: its answers are noise that satisfies their constraints.
fn model() -> Model {
    options().load(golden().to_str().unwrap()).unwrap()
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama")
}

fn golden_files() -> ModelFiles {
    let checkpoint = loquat_weights::Checkpoint::open(&golden()).unwrap();
    ModelFiles::from_checkpoint("llama".to_owned(), checkpoint).unwrap()
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
