mod thinking;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::lower::lower;
use super::request::CountRequest;
use crate::testing::{self, Harness, MODEL, Scripted};
use crate::unknown_fields::FieldPolicy;
use crate::wire::{IGNORED_HEADER, JsonBody};

const CALL: &str =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>";

/// A request with these fields.
fn request(fields: Value) -> Value {
    let mut request = json!({
        "model": MODEL,
        "max_tokens": 200,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    let fields = fields.as_object().cloned().unwrap_or_default();
    for (name, value) in fields {
        request[name] = value;
    }
    request
}

fn tools() -> Value {
    json!([{
        "name": "add",
        "description": "adds",
        "input_schema": { "type": "object", "properties": { "a": { "type": "integer" } } },
    }])
}

async fn create_message(reply: &str, fields: Value) -> Value {
    let server = Harness::saying(reply);
    let reply = server.post("/v1/messages", &request(fields)).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    reply.json()
}

fn conversation(body: &Value) -> CountRequest {
    let read = JsonBody::<CountRequest>::read(body.to_string().as_bytes(), FieldPolicy::Lenient);
    read.expect("a request").value
}

#[test]
fn conversations_are_rendered() {
    let user = |text: &str| format!("<|im_start|>user\n{text}<|im_end|>\n");
    let use_add = json!({ "type": "tool_use", "id": "t1", "name": "add", "input": { "a": 1 } });
    let call = json!({ "role": "assistant", "content": [
        { "type": "thinking", "thinking": "hm", "signature": "unsigned" },
        { "type": "redacted_thinking", "data": "xyz" },
        { "type": "text", "text": "adding" },
        use_add,
    ]});
    let result = |fields: Value| {
        let mut block = json!({ "type": "tool_result", "tool_use_id": "t1" });
        for (name, value) in fields.as_object().cloned().unwrap_or_default() {
            block[name] = value;
        }
        json!({ "role": "user", "content": [block, { "type": "text", "text": "so?" }] })
    };
    let called = "<|im_start|>assistant\nadding<tool_call>{\"name\": \"add\", \"arguments\": \
                  {\"a\": 1}}</tool_call><|im_end|>\n";
    let tool = |text: &str| format!("<|im_start|>tool\n{text}<|im_end|>\n");
    let cases = [
        (
            json!({ "messages": [{ "role": "user", "content": "hi" }] }),
            user("hi"),
        ),
        (
            json!({
                "system": [{ "type": "text", "text": "be kind", "cache_control": { "type": "ephemeral" } }],
                "messages": [{ "role": "user", "content": [{ "type": "text", "text": "hi" }] }],
            }),
            format!("<|im_start|>system\nbe kind<|im_end|>\n{}", user("hi")),
        ),
        // Adjacent messages of one role are joined.
        (
            json!({ "messages": [
                { "role": "user", "content": "a" },
                { "role": "user", "content": [{ "type": "text", "text": "b" }] },
            ]}),
            user("a\nb"),
        ),
        (
            json!({ "messages": [
                { "role": "user", "content": "1?" }, call, result(json!({ "content": "2" })),
            ]}),
            format!("{}{called}{}{}", user("1?"), tool("2"), user("so?")),
        ),
        (
            json!({ "messages": [
                { "role": "user", "content": "1?" },
                call,
                result(json!({
                    "is_error": true,
                    "content": [{ "type": "text", "text": "no" }],
                })),
            ]}),
            format!("{}{called}{}{}", user("1?"), tool("Error: no"), user("so?")),
        ),
        (
            json!({ "messages": [
                { "role": "user", "content": "1?" }, call, result(json!({})),
            ]}),
            format!("{}{called}{}{}", user("1?"), tool(""), user("so?")),
        ),
    ];
    let chat = testing::chat();
    for (mut body, expected) in cases {
        body["model"] = json!(MODEL);
        let lowered = lower(conversation(&body), &chat).expect("a conversation");
        let rendered = chat.render(&lowered.request, false).expect("rendered");
        assert_eq!(rendered, expected, "{body}");
    }
}

#[tokio::test]
async fn invalid_fields_are_named() {
    let block = |block: Value| json!({ "messages": [{ "role": "user", "content": [block] }] });
    let cases = [
        (json!({ "messages": [] }), "`messages` is empty"),
        (json!({ "max_tokens": null }), "`max_tokens` is missing"),
        (json!({ "max_tokens": 0 }), "`max_tokens`"),
        (json!({ "temperature": 1.5 }), "from 0 to 1"),
        (json!({ "container": "c" }), "`container` is not supported"),
        (json!({ "mesages": 1 }), "`mesages` is not a known field"),
        (
            block(json!({ "type": "image", "source": { "type": "url", "url": "http://a/b" } })),
            "`messages[0].content[0].source.url` is a remote address, and this server fetches nothing",
        ),
        (
            block(json!({ "type": "document" })),
            "`document` is not supported",
        ),
        (
            block(json!({ "type": "text" })),
            "`messages[0].content[0].text` is missing",
        ),
        (
            block(json!({ "type": "tool_use", "id": "1", "name": "f", "input": {} })),
            "`assistant`",
        ),
        (
            block(json!({ "type": "tool_result", "tool_use_id": "x", "content": "1" })),
            "`messages[0].content[0].tool_use_id` is `x`",
        ),
        (
            json!({ "messages": [
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": "1", "name": "f", "input": {} },
                ]},
            ]}),
            "`messages` must end with an assistant message without tool calls",
        ),
        (
            json!({ "tool_choice": { "type": "any" } }),
            "`tools` is empty",
        ),
        (
            json!({ "tools": tools(), "tool_choice": { "type": "tool", "name": "sub" } }),
            "`sub`",
        ),
        (
            json!({ "thinking": { "type": "enabled", "budget_tokens": 200 } }),
            "`thinking.budget_tokens` is 200",
        ),
        (
            json!({ "output_config": { "format": {
                "type": "json_schema", "schema": { "type": "nothing" },
            }}}),
            "`output_config.format`",
        ),
        (json!({ "stop_sequences": [""] }), "`stop_sequences`"),
        (json!({ "speculative.n_max": -1 }), "`speculative.n_max`"),
    ];
    let server = Harness::saying("hello");
    for (fields, expected) in cases {
        let body = request(fields);
        let reply = server.post("/v1/messages", &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{body}");
        let error = reply.json();
        assert_eq!(error["type"], "error", "{body}");
        assert_eq!(error["error"]["type"], "invalid_request_error", "{body}");
        let message = error["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{body}: {message}");
    }
    let mut config = Harness::config();
    config.server.strict_model_names = true;
    let server = Harness::with(Scripted::new("hello"), config);
    let unknown = request(json!({ "model": "other" }));
    let reply = server.post("/v1/messages", &unknown).await;
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
    assert_eq!(reply.json()["error"]["type"], "not_found_error");
}

#[tokio::test]
async fn reply_has_its_stop_reason() {
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    let thinking = json!({ "type": "thinking", "thinking": "hm", "signature": "unsigned" });
    let add = |id: &Value| json!({ "type": "tool_use", "id": id, "name": "add", "input": { "a": 1, "b": [2] } });
    let cases = [
        ("Hello.", json!({}), text("Hello."), "end_turn", json!(null)),
        (
            "Hello.",
            json!({ "max_tokens": 3 }),
            text("Hel"),
            "max_tokens",
            json!(null),
        ),
        (
            "Hello. Bye.",
            json!({ "stop_sequences": ["never", " Bye"] }),
            text("Hello."),
            "stop_sequence",
            json!(" Bye"),
        ),
        (
            "<think>hm</think>\n\nYes.",
            json!({}),
            json!([thinking, text("Yes.")[0]]),
            "end_turn",
            json!(null),
        ),
        (
            "<think>hm</think>\n\nYes.",
            json!({ "thinking": { "type": "adaptive", "display": "omitted" } }),
            json!([
                { "type": "thinking", "thinking": "", "signature": "unsigned" },
                text("Yes.")[0],
            ]),
            "end_turn",
            json!(null),
        ),
        // A call that was cut is omitted.
        (
            CALL,
            json!({ "tools": tools(), "max_tokens": 40 }),
            json!([]),
            "max_tokens",
            json!(null),
        ),
    ];
    for (reply, fields, content, stop_reason, stop_sequence) in cases {
        let message = create_message(reply, fields.clone()).await;
        assert_eq!(message["content"], content, "{reply} {fields}");
        assert_eq!(message["stop_reason"], stop_reason, "{reply} {fields}");
        assert_eq!(message["stop_sequence"], stop_sequence, "{reply} {fields}");
        assert_eq!(message["role"], "assistant");
        assert_eq!(message["model"], MODEL);
        assert!(
            message["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("msg_"))
        );
    }
    let message = create_message(&format!("So:\n{CALL}"), json!({ "tools": tools() })).await;
    assert_eq!(message["stop_reason"], "tool_use");
    assert_eq!(message["content"][0]["type"], "text");
    assert_eq!(message["content"][1], add(&message["content"][1]["id"]));
}

#[tokio::test]
async fn usage_separates_cached_tokens() {
    let server = Harness::saying("Hello.");
    let body = request(json!({}));
    let first = server.post("/v1/messages", &body).await.json()["usage"].clone();
    let counted = request(json!({ "max_tokens": null }));
    let count = server.post("/v1/messages/count_tokens", &counted).await;
    let count = count.json()["input_tokens"].clone();
    assert_eq!(first["input_tokens"], count);
    assert_eq!(first["cache_read_input_tokens"], 0);
    assert_eq!(first["output_tokens"], "Hello.".len() + 1);
    let second = server.post("/v1/messages", &body).await.json()["usage"].clone();
    let sum = |usage: &Value, names: [&str; 2]| -> u64 {
        names.iter().filter_map(|name| usage[*name].as_u64()).sum()
    };
    let names = ["input_tokens", "cache_read_input_tokens"];
    assert_eq!(Some(sum(&second, names)), count.as_u64());
    assert!(
        second["cache_read_input_tokens"].as_u64() > Some(0),
        "{second}"
    );
}

/// The Vercel AI SDK rejects `"citations": null`.
#[tokio::test]
async fn text_blocks_have_no_citations() {
    let server = Harness::saying(&format!("<think>hm</think>\n\nOk{CALL}"));
    for stream in [false, true] {
        let body = request(json!({ "stream": stream, "tools": tools() }));
        let reply = server.post("/v1/messages", &body).await;
        let text = reply.text();
        assert!(text.contains(r#""type":"text""#), "{text}");
        assert!(!text.contains("citations"), "{text}");
    }
}

#[tokio::test]
async fn stream_events_are_complete_and_ordered() {
    let server = Harness::saying(&format!("<think>hm</think>\n\nOk{CALL}"));
    let body = request(json!({ "stream": true, "tools": tools() }));
    let reply = server.post("/v1/messages", &body).await;
    let mut events: Vec<(String, Value)> = Vec::new();
    for (name, data) in reply.events() {
        assert_eq!(name.as_deref(), data["type"].as_str());
        let name = name.unwrap_or_default();
        // Deltas are joined: their size depends on the tokenizer.
        let text = ["text", "thinking", "partial_json"]
            .iter()
            .find_map(|field| data["delta"][*field].as_str());
        match (events.last_mut(), text) {
            (Some((last, whole)), Some(text)) if *last == name && whole.is_string() => {
                *whole = json!(format!("{}{text}", whole.as_str().unwrap_or_default()));
            }
            (_, Some(text)) => events.push((name, json!(text))),
            (_, None) => events.push((name, data)),
        }
    }
    let names: Vec<_> = events.iter().map(|(name, _)| name.as_str()).collect();
    let block = [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ];
    let thinking = [block[0], block[1], "content_block_delta", block[2]];
    let expected: Vec<&str> = [&["message_start", "ping"][..], &thinking, &block, &block]
        .concat()
        .into_iter()
        .chain(["message_delta", "message_stop"])
        .collect();
    assert_eq!(names, expected);
    assert_eq!(events[0].1["message"]["content"], json!([]));
    assert_eq!(events[0].1["message"]["stop_reason"], json!(null));
    assert_eq!(events[2].1["content_block"]["type"], "thinking");
    assert_eq!(events[3].1, "hm");
    let signed = json!({ "type": "signature_delta", "signature": "unsigned" });
    assert_eq!(events[4].1["delta"], signed);
    assert_eq!(events[6].1["index"], 1);
    assert_eq!(events[7].1, "Ok");
    let start = &events[9].1["content_block"];
    assert_eq!(
        (&start["name"], &start["input"]),
        (&json!("add"), &json!({}))
    );
    let input: Value =
        serde_json::from_str(events[10].1.as_str().unwrap_or_default()).expect("JSON");
    assert_eq!(input, json!({ "a": 1, "b": [2] }));
    let end = &events[12].1;
    assert_eq!(
        end["delta"],
        json!({ "stop_reason": "tool_use", "stop_sequence": null })
    );
    assert!(end["usage"]["output_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn ignored_fields_are_listed() {
    let server = Harness::saying("Hello.");
    let body = request(json!({
        "metadata": { "user_id": "1" },
        "system": [{ "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } }],
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": "a", "cache_control": { "type": "ephemeral" } },
        ]}, { "role": "assistant", "content": [
            { "type": "tool_use", "id": "1", "name": "f", "input": {}, "caller": { "type": "direct" } },
        ]}, { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "1" }] }],
    }));
    let reply = server.post("/v1/messages", &body).await;
    let ignored = reply.response.headers().get(IGNORED_HEADER);
    let ignored = ignored.and_then(|ignored| ignored.to_str().ok());
    assert_eq!(ignored, Some("metadata, cache_control, caller"));
}

#[tokio::test]
async fn failed_stream_ends_with_the_error() {
    let model = Scripted {
        delay: std::time::Duration::from_millis(5),
        ..Scripted::new(&"a".repeat(1000))
    };
    let server = Harness::with(model, Harness::config());
    let in_flight = server.app.in_flight.clone();
    let body = request(json!({ "stream": true, "max_tokens": 2000 }));
    let cancel = async {
        loop {
            let list = in_flight.list();
            if let Some(entry) = list.first() {
                break entry.cancel();
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let (reply, ()) = tokio::join!(server.post("/v1/messages", &body), cancel);
    let mut events = reply.events();
    let (last, _) = events.pop().expect("an event");
    assert_eq!(last.as_deref(), Some("message_stop"));
    let (name, data) = events.pop().expect("an event");
    assert_eq!(name.as_deref(), Some("error"));
    assert_eq!(data["type"], "error");
    assert!(data["error"]["message"].is_string());
}

#[tokio::test]
async fn trailing_assistant_turn_is_continued() {
    let server = Harness::saying("Hello you!");
    let body = request(json!({ "messages": [
        { "role": "user", "content": "hi" }, { "role": "assistant", "content": "Hel" },
    ]}));
    let reply = server.post("/v1/messages", &body).await.json();
    assert_eq!(reply["content"][0]["text"], "lo you!", "{reply}");
}
