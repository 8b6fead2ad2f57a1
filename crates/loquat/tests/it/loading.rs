//! Loading models, and the errors of loading and asking.

use std::fs;

use loquat::{Error, HubOptions, LoadProgress, Model, ModelOptions};
use loquat_hubkit::{FakeFile, FakeRepo, HubServer};

use crate::{golden, model, options, runtime};

#[test]
fn errors_name_what_is_wrong() {
    let refused = |options: ModelOptions, reference: &str| match options.load(reference) {
        Ok(_) => panic!("{reference} was loaded"),
        Err(error) => error.to_string(),
    };
    let golden = golden();
    let golden = golden.to_str().unwrap();
    assert!(refused(options(), "./nowhere.gguf").contains("nowhere.gguf"));
    let mut small = options();
    small.session.context = Some(0);
    assert!(refused(small, golden).contains("context"));

    let model = model();
    let empty = model.complete("").text().unwrap_err();
    assert!(empty.to_string().contains("prompt"), "{empty}");
    let long = "a".repeat(model.token_limit());
    let long = model.complete(long).max_tokens(8).text().unwrap_err();
    assert!(
        long.to_string().contains("do not fit the context"),
        "{long}"
    );
    let grammar = model.chat("hi").regex("(").text().unwrap_err();
    assert!(
        grammar.to_string().contains("regular expression"),
        "{grammar}"
    );
}

#[test]
fn load_async_returns_model_or_error() {
    runtime().block_on(async {
        let golden = golden();
        let model = options()
            .load_async(golden.to_str().unwrap())
            .await
            .unwrap();
        assert_eq!(model.name(), "llama");
        let missing = options().load_async("./nowhere.gguf").await;
        assert!(matches!(missing, Err(Error::Store(_))));
    });
}

#[test]
fn hub_model_is_downloaded_and_reports_progress() {
    let files = fs::read_dir(golden()).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        FakeFile::large(&name, fs::read(entry.path()).unwrap())
    });
    let hub = HubServer::start(vec![FakeRepo::new("tiny/llama", files.collect())]).unwrap();
    let machine = tempfile::tempdir().unwrap();
    let options = |offline| {
        let mut options = options();
        options.store.cache_dir = Some(machine.path().join("cache"));
        options.store.hub = HubOptions {
            endpoint: Some(hub.url()),
            token: None,
            cache_dir: Some(machine.path().join("hub")),
            offline,
        };
        options
    };
    let ask = |model: Model| model.chat("hi").max_tokens(6).temperature(0.0).text();
    let (mut done, mut total, mut loaded) = (0, None, 0.0);
    let report = |progress: LoadProgress<'_>| match progress {
        LoadProgress::Downloading {
            done_bytes,
            total_bytes,
        } => (done, total) = (done_bytes, total_bytes),
        LoadProgress::Loading { fraction } => loaded = fraction,
        _ => {}
    };
    let downloaded = options(false).load_with("tiny/llama", report).unwrap();
    assert!(done > 0 && total == Some(done), "{done} of {total:?}");
    assert_eq!(loaded, 1.0);
    assert_eq!(downloaded.name(), "tiny/llama");
    let expected = ask(model()).unwrap();
    assert_eq!(ask(downloaded).unwrap(), expected);
    let cached = options(true).load("tiny/llama").unwrap();
    assert_eq!(ask(cached).unwrap(), expected);
}
