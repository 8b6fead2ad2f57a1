use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use crate::testing::{Harness, MODEL, Reply};

const ROUTE: &str = "/v1/chat/completions";

async fn streamed(server: &Harness, more: &Value) -> Reply {
    let mut request = json!({ "model": MODEL, "stream": true,
        "messages": [{ "role": "user", "content": "hi" }] });
    let fields = more.as_object().expect("an object");
    request.as_object_mut().expect("one").extend(fields.clone());
    let reply = server.post(ROUTE, &request).await;
    assert_eq!(reply.status(), StatusCode::OK, "{more} {}", reply.text());
    reply
}

fn chunks(reply: &Reply) -> Vec<Value> {
    let events = reply.events().into_iter();
    events
        .map(|(name, chunk)| {
            assert_eq!(name, None);
            chunk
        })
        .collect()
}

/// The deltas of a choice, and its finish reason.
fn deltas(chunks: &[Value]) -> Vec<Value> {
    let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
    choices.map(|choice| choice["delta"].clone()).collect()
}

fn tools() -> Value {
    json!([{ "type": "function", "function": { "name": "f", "parameters": {
        "type": "object", "properties": { "x": { "type": "integer" } } } } }])
}

#[tokio::test]
async fn chunks_have_openais_shape() {
    let server = Harness::saying("Hi");
    let reply = streamed(&server, &json!({})).await;
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
    let chunks = chunks(&reply);
    for chunk in &chunks {
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["model"], MODEL);
        assert_eq!(chunk.get("usage"), None);
    }
    let expected = [
        json!({ "role": "assistant", "content": "" }),
        json!({ "content": "H" }),
        json!({ "content": "i" }),
        json!({}),
    ];
    assert_eq!(deltas(&chunks), expected);
    let reasons = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"]);
    let last = json!("stop");
    assert!(reasons.eq([&Value::Null, &Value::Null, &Value::Null, &last]));
}

#[tokio::test]
async fn call_streams_name_then_arguments() {
    let says = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
    let reply = streamed(&Harness::saying(says), &json!({ "tools": tools() })).await;
    let chunks = chunks(&reply);
    let deltas = deltas(&chunks);
    let begin = &deltas[1]["tool_calls"][0];
    assert_eq!(begin["index"], 0);
    assert_eq!(begin["type"], "function");
    assert!(begin["id"].is_string());
    assert_eq!(begin["function"], json!({ "name": "f", "arguments": "" }));
    let mut arguments = String::new();
    for delta in &deltas[2..deltas.len() - 1] {
        let call = delta["tool_calls"][0].as_object().expect("a call");
        assert!(call.keys().eq(["index", "function"]), "{call:?}");
        arguments.push_str(call["function"]["arguments"].as_str().expect("text"));
    }
    assert_eq!(arguments, "{\"x\": 1}");
    let last = chunks.last().expect("a chunk");
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn usage_is_streamed_on_request() {
    let server = Harness::saying("Hi");
    let options = json!({ "stream_options": { "include_usage": true } });
    let last_only = chunks(&streamed(&server, &options).await);
    let (last, others) = last_only.split_last().expect("chunks");
    assert!(
        others
            .iter()
            .all(|chunk| chunk.get("usage") == Some(&Value::Null))
    );
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 3);
    let options = json!({ "stream_options": { "continuous_usage_stats": true } });
    let always = chunks(&streamed(&server, &options).await);
    let so_far = always
        .iter()
        .map(|chunk| &chunk["usage"]["completion_tokens"]);
    let so_far: Vec<_> = so_far
        .map(|tokens| tokens.as_u64().expect("a number"))
        .collect();
    assert!(so_far.is_sorted(), "{so_far:?}");
    assert_eq!(so_far.last(), Some(&3));
}

/// The joined chunks of a choice.
fn joined_chunks(chunks: &[Value], index: usize) -> Value {
    let mut message = Map::from_iter([("content".to_owned(), json!(""))]);
    let mut calls: Vec<Value> = Vec::new();
    let mut logprobs = Vec::new();
    let mut reason = Value::Null;
    let of_choice = |choice: &&Value| choice["index"] == index;
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array());
    for choice in choices.flatten().filter(of_choice) {
        for field in ["content", "reasoning_content"] {
            if let Some(more) = choice["delta"][field].as_str() {
                let so_far = message.get(field).and_then(Value::as_str);
                let text = format!("{}{more}", so_far.unwrap_or_default());
                message.insert(field.to_owned(), json!(text));
            }
        }
        for call in choice["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            match call["index"].as_u64().expect("an index") as usize {
                new if new == calls.len() => calls.push(json!({ "function": call["function"] })),
                known => {
                    let so_far = &mut calls[known]["function"]["arguments"];
                    let more = call["function"]["arguments"].as_str().expect("text");
                    *so_far = json!(format!("{}{more}", so_far.as_str().expect("text")));
                }
            }
        }
        let tokens = choice["logprobs"]["content"].as_array();
        logprobs.extend(tokens.cloned().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    json!({ "message": message, "calls": calls, "logprobs": logprobs, "reason": reason })
}

/// The same, for an answer in one piece.
fn whole_choice(choice: &Value) -> Value {
    let reply = &choice["message"];
    let mut message = Map::new();
    message.insert(
        "content".to_owned(),
        json!(reply["content"].as_str().unwrap_or("")),
    );
    if let Some(reasoning) = reply.get("reasoning_content") {
        message.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    let calls = reply["tool_calls"].as_array().cloned().unwrap_or_default();
    let calls: Vec<_> = calls
        .iter()
        .map(|call| json!({ "function": call["function"] }))
        .collect();
    let logprobs = choice["logprobs"]["content"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let reason = &choice["finish_reason"];
    json!({ "message": message, "calls": calls, "logprobs": logprobs, "reason": reason })
}

#[tokio::test]
async fn stream_equals_the_whole_answer() {
    let call = |x| {
        format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {{\"x\": {x}}}}}\n</tool_call>")
    };
    let cases = [
        ("Hello, world".to_owned(), json!({})),
        ("  \n".to_owned(), json!({})),
        (
            "Grüße 🦀".to_owned(),
            json!({ "logprobs": true, "top_logprobs": 1 }),
        ),
        (
            "<think>\nhm, <b>\n</think>\n\nHi <b>".to_owned(),
            json!({ "logprobs": true }),
        ),
        ("<think>\nnever ends".to_owned(), json!({})),
        (
            "one two three".to_owned(),
            json!({ "stop": ["three", "two t"], "logprobs": true }),
        ),
        (
            "one two three".to_owned(),
            json!({ "max_tokens": 5, "n": 3, "logprobs": true }),
        ),
        (
            format!("I call.\n{}\n{}", call(1), call(2)),
            json!({ "tools": tools(), "logprobs": true }),
        ),
        (
            format!("\n\n{}", call(1)),
            json!({ "tools": tools(), "logprobs": true }),
        ),
        (
            "<tool_call>\n{\"name\": \"f\", \"argu".to_owned(),
            json!({ "tools": tools() }),
        ),
        (
            "{\"a\": 1}".to_owned(),
            json!({ "response_format": { "type": "json_object" } }),
        ),
    ];
    for (says, more) in cases {
        let server = Harness::saying(&says);
        let chunks = chunks(&streamed(&server, &more).await);
        let mut unstreamed = more.clone();
        unstreamed["stream"] = json!(false);
        let whole = streamed(&server, &unstreamed).await.json();
        for (index, choice) in whole["choices"]
            .as_array()
            .expect("choices")
            .iter()
            .enumerate()
        {
            let expected = whole_choice(choice);
            assert_eq!(joined_chunks(&chunks, index), expected, "{says} {more}");
        }
    }
}

#[tokio::test]
async fn failed_stream_ends_with_the_error() {
    let server = Harness::saying("Hi");
    // No token can continue this grammar, so the stream fails midway.
    let more = json!({ "guided_regex": "Hi+", "bad_words": ["i"], "max_tokens": 9 });
    let reply = streamed(&server, &more).await;
    let chunks = chunks(&reply);
    let last = chunks.last().expect("a chunk");
    assert_eq!(last["error"]["type"], "server_error", "{last}");
    assert!(last["error"]["message"].is_string());
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
}
