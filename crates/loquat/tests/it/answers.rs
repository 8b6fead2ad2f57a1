//! Answers read in every way, cancelled, and continued.

use futures_util::StreamExt;
use loquat::{Conversation, Error, FinishReason, Message, ReplyEvent};

use crate::{model, runtime};

#[test]
fn every_way_to_read_gives_the_same_answer() {
    let model = model();
    let ask = || model.chat("hi").max_tokens(12).temperature(0.0);
    let whole = ask().text().unwrap();
    let events: Vec<ReplyEvent> = ask().stream().unwrap().map(Result::unwrap).collect();
    let streamed: String = events.iter().map(ReplyEvent::text).collect();
    assert_eq!(streamed, whole);

    let asynchronous = runtime().block_on(async {
        assert_eq!(ask().text_async().await.unwrap(), whole);
        let mut answer = ask().stream().unwrap();
        let mut text = String::new();
        while let Some(event) = answer.next_event().await {
            text += event.unwrap().text();
        }
        assert_eq!(answer.reply().text, text);
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
fn finish_has_reason_usage_and_repeatable_seed() {
    let model = model();
    let ask = || {
        model
            .complete("abc")
            .max_tokens(5)
            .temperature(1.5)
            .seed(11)
    };
    let mut answer = ask().stream().unwrap();
    assert!(answer.finish().is_none());
    answer.by_ref().for_each(|event| drop(event.unwrap()));
    let finish = answer.finish().unwrap().clone();
    // Random weights may end a text early.
    let is_truncated = finish.reason == FinishReason::Length;
    assert_eq!(finish.usage.completion_tokens == 5, is_truncated);
    assert!(answer.next().is_none());
    assert_eq!(ask().seed(finish.seed).text().unwrap(), answer.reply().text);
}

#[test]
fn cancelled_answer_ends_and_frees_its_memory() {
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
    assert!(answer.next().is_none() && answer.finish().is_none());
    // A dropped answer leaves the model to others too.
    drop(
        model
            .complete("abc")
            .max_tokens(40)
            .seed(1)
            .stream()
            .unwrap(),
    );
    model.complete("abc").max_tokens(3).seed(1).text().unwrap();
}

#[test]
fn answer_outlives_its_model_handle() {
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
    assert_eq!(answer.into_reply().unwrap().text, expected);
}

#[test]
fn conversation_continues_with_the_reply() {
    let model = model();
    let mut conversation = Conversation::new(Some("be brief".to_owned()));
    conversation.push_user("hi");
    let reply = model
        .converse(conversation.messages())
        .max_tokens(4)
        .seed(1)
        .reply()
        .unwrap();
    conversation.push(reply.into_message());
    conversation.push_user("and then?");
    model
        .converse(conversation.messages())
        .max_tokens(4)
        .seed(1)
        .reply()
        .unwrap();

    let by_system = model
        .chat("hi")
        .system("be brief")
        .max_tokens(4)
        .temperature(0.0);
    let messages = vec![Message::system("be brief"), Message::user("hi")];
    let by_list = model.converse(messages).max_tokens(4).temperature(0.0);
    assert_eq!(by_system.text().unwrap(), by_list.text().unwrap());
}

#[test]
fn deltas_have_events_and_tokens() {
    let model = model();
    let chat = || model.chat("hi").max_tokens(6).temperature(0.0);
    let mut answer = chat().stream().unwrap();
    let deltas: Vec<_> = answer.deltas().map(Result::unwrap).collect();
    let events = deltas.iter().flat_map(|delta| &delta.events);
    let text: String = events.map(ReplyEvent::text).collect();
    assert_eq!(text, chat().text().unwrap());
    assert_eq!(answer.reply().text, text);
    let tokens: usize = deltas.iter().map(|delta| delta.tokens.len()).sum();
    let finish = answer.finish().unwrap();
    assert_eq!(tokens, finish.usage.completion_tokens);
    assert_eq!(answer.tokens().len(), tokens);
}

#[test]
fn prefilled_answer_is_continued() {
    let model = model();
    let ask = || model.chat("hi").max_tokens(6).temperature(0.0);
    let rest = ask().prefill("Well, ").text().unwrap();
    let prompt = |text: &str| {
        let messages = vec![Message::user("hi"), Message::assistant(text)];
        let mut request = loquat::ChatRequest {
            messages,
            ..Default::default()
        };
        request.opening = loquat::ReplyOpening::ContinueLast;
        model.chat_context().render(&request, true).unwrap()
    };
    let continued = model
        .complete(prompt("Well, "))
        .max_tokens(6)
        .temperature(0.0);
    assert_eq!(continued.text().unwrap(), rest);
    let error = model.complete("a").suffix("b").text().unwrap_err();
    assert!(error.to_string().contains("fill-in-the-middle"), "{error}");
}
