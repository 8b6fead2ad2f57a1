//! The library from the outside, on a tiny checkpoint.

use std::fs;
use std::path::PathBuf;

use futures_util::StreamExt;
use loquat::{
    Conversation, Error, Event, FinishReason, HubOptions, Message, Model, ModelOptions, Role,
};
use loquat_hubkit::{FakeFile, FakeRepo, HubServer};
use serde_json::json;

/// Random weights: what it says is noise, but what it is held to holds all the same.
fn model() -> Model {
    options().load(golden().to_str().unwrap()).unwrap()
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../testkit/goldens/llama")
}

fn options() -> ModelOptions {
    ModelOptions {
        backend: "cpu".to_owned(),
        ..ModelOptions::default()
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.build().unwrap()
}

#[test]
fn an_answer_is_the_same_whichever_way_it_is_read() {
    let model = model();
    let ask = || model.chat("hi").max_tokens(12).temperature(0.0);
    let whole = ask().text().unwrap();
    let events: Vec<Event> = ask().stream().unwrap().map(Result::unwrap).collect();
    let streamed: String = events.iter().map(Event::text).collect();
    assert_eq!(streamed, whole);

    let asynchronous = runtime().block_on(async {
        assert_eq!(ask().text_async().await.unwrap(), whole);
        let mut answer = ask().stream().unwrap();
        let mut text = String::new();
        while let Some(event) = answer.next_event().await {
            text += event.unwrap().text();
        }
        assert_eq!(answer.said().text, text);
        let stream = ask().stream().unwrap().into_stream();
        let parts: Vec<_> = stream
            .map(|event| event.unwrap().text().to_owned())
            .collect()
            .await;
        assert_eq!(parts.concat(), text);
        text
    });
    assert_eq!(asynchronous, whole);
}

#[test]
fn the_end_says_how_and_repeats() {
    let model = model();
    let ask = || model.complete("abc").max_tokens(5).temperature(1.5);
    let mut answer = ask().stream().unwrap();
    assert!(answer.ended().is_none());
    answer.by_ref().for_each(|event| drop(event.unwrap()));
    let ended = answer.ended().unwrap().clone();
    // Random weights may end a text early.
    let is_cut = ended.reason == FinishReason::Length;
    assert_eq!(ended.usage.completion_tokens == 5, is_cut);
    assert!(answer.next().is_none());
    assert_eq!(ask().seed(ended.seed).text().unwrap(), answer.said().text);
}

#[test]
fn half_a_form_is_no_answer() {
    let model = model();
    let cut = model.complete("x").regex("[0-9]{50}").max_tokens(3);
    match cut.text() {
        Err(Error::Cut(reply)) => assert!(!reply.text.is_empty()),
        other => panic!("{other:?}"),
    }
    // Free text may end anywhere.
    let free = model.complete("abc").max_tokens(3).seed(1);
    assert!(free.text().is_ok());
}

#[test]
fn answers_are_held_to_their_form() {
    let model = model();
    let schema = json!({ "type": "array", "items": { "enum": [1, 2] }, "maxItems": 3 });
    for seed in 0..8 {
        let ask = || model.chat("hi").seed(seed).temperature(1.0);
        let choice = ask().choice(["sad", "glad"]).text().unwrap();
        assert!(["sad", "glad"].contains(&choice.as_str()), "{choice}");
        let array = ask().schema(schema.clone()).text().unwrap();
        let array: Vec<u8> = serde_json::from_str(&array).unwrap();
        assert!(array.len() <= 3 && array.iter().all(|item| [1, 2].contains(item)));
        let digits = model
            .complete("x")
            .seed(seed)
            .regex("[0-9]{2}")
            .text()
            .unwrap();
        assert!(
            digits.len() == 2 && digits.parse::<u8>().is_ok(),
            "{digits}"
        );
    }
}

#[test]
fn cancelling_from_elsewhere_ends_the_answer_and_frees_its_room() {
    let model = model();
    let mut answer = model
        .complete("abc")
        .max_tokens(40)
        .temperature(0.0)
        .stream()
        .unwrap();
    answer.canceller().cancel();
    let outcomes: Vec<_> = answer.by_ref().collect();
    assert!(matches!(outcomes.last(), Some(Err(Error::Cancelled))));
    assert!(answer.next().is_none() && answer.ended().is_none());
    // Whoever dropped an answer, or cancelled it, leaves the model to others.
    drop(model.complete("abc").max_tokens(40).stream().unwrap());
    model.complete("abc").max_tokens(3).text().unwrap();
}

#[test]
fn an_answer_outlives_the_handle_it_was_asked_of() {
    let model = model();
    let answer = model
        .chat("hi")
        .max_tokens(6)
        .temperature(0.0)
        .stream()
        .unwrap();
    let expected = model
        .chat("hi")
        .max_tokens(6)
        .temperature(0.0)
        .text()
        .unwrap();
    drop(model);
    assert_eq!(answer.finish().unwrap().text, expected);
}

#[test]
fn a_conversation_goes_on_where_it_was() {
    let model = model();
    let mut conversation = Conversation::new(Some("be brief".to_owned()));
    conversation.push_user("hi");
    let reply = model
        .converse(conversation.messages())
        .max_tokens(4)
        .reply()
        .unwrap();
    conversation.push(reply.into_message());
    conversation.push_user("and then?");
    model
        .converse(conversation.messages())
        .max_tokens(4)
        .reply()
        .unwrap();

    let by_system = model
        .chat("hi")
        .system("be brief")
        .max_tokens(4)
        .temperature(0.0);
    let messages = vec![
        Message::new(Role::System, "be brief"),
        Message::new(Role::User, "hi"),
    ];
    let by_list = model.converse(messages).max_tokens(4).temperature(0.0);
    assert_eq!(by_system.text().unwrap(), by_list.text().unwrap());
}

#[test]
fn what_cannot_be_is_an_error_that_says_so() {
    let refused = |options: ModelOptions, reference: &str| match options.load(reference) {
        Ok(_) => panic!("{reference} was loaded"),
        Err(error) => error.to_string(),
    };
    let golden = golden();
    let golden = golden.to_str().unwrap();
    let backend = ModelOptions {
        backend: "abacus".to_owned(),
        ..options()
    };
    assert!(refused(backend, golden).contains("`abacus`"));
    assert!(refused(options(), "./nowhere.gguf").contains("nowhere.gguf"));
    let mut small = options();
    small.session.context = Some(0);
    assert!(refused(small, golden).contains("context"));

    let model = model();
    let empty = model.complete("").text().unwrap_err();
    assert!(empty.to_string().contains("prompt"), "{empty}");
    let huge = model
        .complete("abc")
        .max_tokens(1 << 40)
        .text()
        .unwrap_err();
    assert!(huge.to_string().contains("max_tokens"), "{huge}");
    let grammar = model.chat("hi").regex("(").text().unwrap_err();
    assert!(
        grammar.to_string().contains("regular expression"),
        "{grammar}"
    );
}

#[test]
fn loading_does_not_block_and_fails_where_it_is_awaited() {
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
fn a_model_of_the_hub_is_brought_and_called_by_its_name() {
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
    let brought = options(false).load("tiny/llama").unwrap();
    assert_eq!(brought.name(), "tiny/llama");
    let expected = ask(model()).unwrap();
    assert_eq!(ask(brought).unwrap(), expected);
    let kept = options(true).load("tiny/llama").unwrap();
    assert_eq!(ask(kept).unwrap(), expected);
}
