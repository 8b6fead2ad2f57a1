use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{ignored, post, refused};
use crate::testing::{Harness, MODEL, Scripted};

const CHAT: &str = "/api/chat";

fn request(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    let fields = more.as_object().expect("an object").clone();
    body.as_object_mut().expect("an object").extend(fields);
    body
}

/// The joined lines of a stream, after checking their form.
fn joined(lines: &[Value]) -> (String, String, Vec<Value>) {
    let (mut content, mut thinking, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["done"], index + 1 == lines.len(), "{line}");
        assert_eq!(line["message"]["role"], "assistant");
        assert!(line["created_at"].as_str().expect("a time").ends_with('Z'));
        content += line["message"]["content"].as_str().expect("text");
        thinking += line["message"]["thinking"].as_str().unwrap_or("");
        calls.extend(
            line["message"]["tool_calls"]
                .as_array()
                .cloned()
                .unwrap_or_default(),
        );
    }
    (content, thinking, calls)
}

#[tokio::test]
async fn replies_stream_by_default() {
    let server = Harness::saying("<think>well</think>Hello you!");
    let streamed = post(&server, CHAT, &request(json!({}))).await;
    let kind = &streamed.response.headers()["content-type"];
    assert_eq!(kind, "application/x-ndjson");
    let lines = streamed.lines();
    assert!(lines.len() > 3);
    let (content, thinking, calls) = joined(&lines);
    assert_eq!(
        (content.as_str(), thinking.as_str()),
        ("Hello you!", "well")
    );
    assert!(calls.is_empty());
    let last = lines.last().expect("a last line");
    assert_eq!(last["message"]["content"], "");
    for line in &lines[..lines.len() - 1] {
        assert!(line.get("done_reason").is_none() && line.get("eval_count").is_none());
    }

    let whole = post(&server, CHAT, &request(json!({ "stream": false })))
        .await
        .json();
    assert_eq!(whole["message"]["content"], "Hello you!");
    assert_eq!(whole["message"]["thinking"], "well");
    for answer in [last, &whole] {
        assert_eq!(answer["done_reason"], "stop");
        let tokens = "<think>well</think>Hello you!".len() as u64;
        let count = answer["eval_count"].as_u64().expect("a count");
        assert!(count > 5 && count <= tokens + 1, "{count}");
        assert!(answer["prompt_eval_count"].as_u64() > Some(3));
        let durations = ["total", "load", "prompt_eval", "eval"];
        let [total, load, prompt, eval] = durations.map(|name| {
            answer[format!("{name}_duration")]
                .as_u64()
                .expect("nanoseconds")
        });
        assert!(total >= load + prompt + eval, "{answer}");
        assert!(prompt > 0 && eval > 0);
    }
}

#[tokio::test]
async fn calls_have_object_arguments() {
    let says =
        r#"Let me see.<tool_call>{"name": "add", "arguments": {"a": 1, "b": [2]}}</tool_call>"#;
    let server = Harness::saying(says);
    let tools = json!([{ "type": "function", "function": {
        "name": "add",
        "description": "adds",
        "parameters": { "type": "object", "properties": { "a": { "type": "integer" } } },
    }}]);
    for stream in [true, false] {
        let body = request(json!({ "tools": tools, "stream": stream }));
        let reply = post(&server, CHAT, &body).await;
        let (content, _, calls) = joined(&reply.lines());
        assert_eq!(content.trim(), "Let me see.");
        let [call] = calls.as_slice() else {
            panic!("{calls:?}");
        };
        let arguments = json!({ "a": 1, "b": [2] });
        let function = json!({ "index": 0, "name": "add", "arguments": arguments });
        assert_eq!(call["function"], function);
        assert!(call["id"].is_string());

        // Sent back as clients do.
        let body = request(json!({ "tools": tools, "stream": false, "messages": [
            { "role": "user", "content": "add" },
            { "role": "assistant", "content": content, "tool_calls": calls },
            { "role": "tool", "tool_name": "add", "content": "3" },
        ]}));
        post(&server, CHAT, &body).await;
    }
}

#[tokio::test]
async fn cut_call_is_omitted() {
    let server =
        Harness::saying(r#"<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>"#);
    let tools = json!([{ "function": { "name": "add" } }]);
    let options = json!({ "num_predict": 30 });
    let body = request(json!({ "tools": tools, "stream": false, "options": options }));
    let answer = post(&server, CHAT, &body).await.json();
    assert_eq!(answer["done_reason"], "length");
    assert!(answer["message"].get("tool_calls").is_none(), "{answer}");
}

#[tokio::test]
async fn num_predict_and_logprobs_apply() {
    let server = Harness::saying("Hello you!");
    let body = request(json!({
        "stream": false, "logprobs": true, "top_logprobs": 2,
        "options": { "num_predict": 4, "num_ctx": 1000 },
    }));
    let reply = post(&server, CHAT, &body).await;
    assert_eq!(ignored(&reply), Some("options.num_ctx"));
    let answer = reply.json();
    assert_eq!(answer["done_reason"], "length");
    assert_eq!(answer["eval_count"], 4);
    let found = answer["logprobs"].as_array().expect("tokens");
    assert_eq!(found.len(), 4);
    let text: String = found
        .iter()
        .filter_map(|token| token["token"].as_str())
        .collect();
    assert_eq!(text, answer["message"]["content"]);
    assert_eq!(found[0]["top_logprobs"].as_array().map(Vec::len), Some(2));

    let all =
        request(json!({ "stream": false, "options": { "num_predict": -1, "stop": ["you"] } }));
    let answer = post(&server, CHAT, &all).await.json();
    assert_eq!(answer["message"]["content"], "Hello ");
    assert_eq!(answer["done_reason"], "stop");
}

#[tokio::test]
async fn reply_ends_with_the_context() {
    let model = Scripted {
        context: 96,
        ..Scripted::new(&"and so on ".repeat(50))
    };
    let server = Harness::with(model, Harness::config());
    for predict in [json!(-2), json!(100_000)] {
        let options = json!({ "num_predict": predict });
        let body = request(json!({ "stream": false, "options": options }));
        let answer = post(&server, CHAT, &body).await.json();
        assert_eq!(answer["done_reason"], "length");
        let count = |name: &str| answer[name].as_u64().expect("a count");
        assert_eq!(count("prompt_eval_count") + count("eval_count"), 96);
    }
}

#[tokio::test]
async fn answers_follow_their_format() {
    let server = Harness::saying(r#"Sure: {"name": "x"}"#);
    let schema = json!({
        "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
        "additionalProperties": false,
    });
    for format in [json!("json"), schema] {
        let body = request(json!({ "stream": false, "format": format, "think": false,
            "options": { "num_predict": 200 } }));
        let answer = post(&server, CHAT, &body).await.json();
        let content = answer["message"]["content"].as_str().expect("text");
        assert!(content.trim_start().starts_with('{'), "{content}");
    }
}

#[tokio::test]
async fn empty_chat_loads_and_unloads() {
    let server = Harness::saying("hello");
    let state = || server.app.models.status()[0].state.name();
    assert_eq!(state(), "unloaded");
    for messages in [Value::Null, json!([])] {
        let body = json!({ "model": MODEL, "messages": messages });
        let answer = post(&server, CHAT, &body).await.json();
        assert_eq!(answer["done_reason"], "load");
        assert_eq!(answer["done"], true);
        assert_eq!(
            answer["message"],
            json!({ "role": "assistant", "content": "" })
        );
        assert_eq!(state(), "ready");
    }
    let body = json!({ "model": MODEL, "messages": [], "keep_alive": 0 });
    let answer = post(&server, CHAT, &body).await.json();
    assert_eq!(answer["done_reason"], "unload");
    while state() != "unloaded" {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    // A model that is not loaded is not affected when it is loaded again.
    post(&server, CHAT, &body).await;
    assert_eq!(state(), "unloaded");
    post(&server, CHAT, &request(json!({}))).await;
    tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    assert_eq!(state(), "ready");
}

#[tokio::test]
async fn latest_tag_is_accepted() {
    let server = Harness::saying("hello");
    let name = format!("{MODEL}:latest");
    let body = request(json!({ "model": name, "stream": false }));
    let answer = post(&server, CHAT, &body).await.json();
    assert_eq!(answer["model"], name);
    let mut config = Harness::config();
    config.server.strict_model_names = true;
    let server = Harness::with(Scripted::new("hello"), config);
    for name in ["other", "other:latest", "tiny:7b"] {
        let reply = server.post(CHAT, &request(json!({ "model": name }))).await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND, "{name}");
        assert!(reply.json()["error"].is_string());
    }
}

#[tokio::test]
async fn unsupported_fields_are_named() {
    let server = Harness::saying("hello");
    let message = |more: Value| {
        let mut message = json!({ "role": "user", "content": "x" });
        let fields = more.as_object().expect("an object").clone();
        message.as_object_mut().expect("an object").extend(fields);
        json!({ "messages": [message] })
    };
    let tool = |kind: &str| json!({ "tools": [{ "type": kind, "function": { "name": "f" } }] });
    let cases = [
        (
            message(json!({ "images": ["aGk="] })),
            "messages[0].images[0]",
        ),
        (message(json!({ "role": "robot" })), "messages[0].role"),
        (message(json!({ "contnt": "kind" })), "contnt"),
        (json!({ "messages": "hi" }), "messages"),
        (tool("retrieval"), "tools[0].type"),
        (json!({ "format": "xml" }), "format"),
        (json!({ "think": "hard" }), "think"),
        (json!({ "keep_alive": "soon" }), "keep_alive"),
        (json!({ "truncate": true }), "truncate"),
        (json!({ "shift": true }), "shift"),
        (json!({ "speculative.n_max": 0 }), "speculative.n_max"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (
            json!({ "logprobs": true, "top_logprobs": 21 }),
            "top_logprobs",
        ),
        (
            json!({ "options": { "num_ctx": 1_000_000 } }),
            "options.num_ctx",
        ),
        (json!({ "options": { "num_ctz": 1 } }), "options.num_ctz"),
        (
            json!({ "options": { "repeat_penalty": -1 } }),
            "`options.repeat_penalty`",
        ),
        (json!({ "options": { "top_p": 7 } }), "`options.top_p`"),
        (json!({ "mesages": "red" }), "mesages"),
        (
            message(json!({ "content": "long ".repeat(2000) })),
            "context",
        ),
    ];
    for (more, named) in cases {
        refused(&server, CHAT, &request(more), named).await;
    }
}

#[tokio::test]
async fn trailing_assistant_message_is_continued() {
    let server = Harness::saying("Hello you!");
    let messages = json!([
        { "role": "user", "content": "hi" }, { "role": "assistant", "content": "Hel" },
    ]);
    let body = request(json!({ "messages": messages, "stream": false }));
    let reply = post(&server, CHAT, &body).await.json();
    assert_eq!(reply["message"]["content"], "lo you!");
}
