//! How streams end that do not finish.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::testing::{Harness, MODEL, Reply, Scripted};

/// A stream that an operator cancels after its first words.
async fn cancelled(path: &'static str, body: Value) -> (Arc<Harness>, Reply) {
    let model = Scripted {
        delay: Duration::from_millis(5),
        ..Scripted::new(&"word ".repeat(500))
    };
    let server = Arc::new(Harness::with(model, Harness::config()));
    let streaming = tokio::spawn({
        let server = Arc::clone(&server);
        async move { server.post(path, &body).await }
    });
    let delivered = || {
        let entries = server.app.in_flight.list();
        let tokens =
            |entry: &Arc<crate::in_flight::Entry>| entry.completion_tokens.load(Ordering::Relaxed);
        entries.first().map_or(0, tokens)
    };
    while delivered() < 10 {
        assert!(!streaming.is_finished(), "{path} ends early");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.app.in_flight.list()[0].cancel();
    (server, streaming.await.expect("a reply"))
}

fn messages() -> Value {
    json!([{ "role": "user", "content": "hi" }])
}

#[tokio::test]
async fn openai_sends_usage_error_and_done() {
    for (path, prompt) in [
        ("/v1/chat/completions", ("messages", messages())),
        ("/v1/completions", ("prompt", json!("hi"))),
    ] {
        let mut body = json!({
            "stream": true, "max_tokens": 2000, "ignore_eos": true, "stream_options": { "include_usage": true },
        });
        body[prompt.0] = prompt.1;
        let (_, reply) = cancelled(path, body).await;
        assert!(reply.text().ends_with("data: [DONE]\n\n"), "{path}");
        let events = reply.events();
        let [.., (_, usage), (_, error)] = events.as_slice() else {
            panic!("{path}: {}", reply.text());
        };
        assert!(
            usage["usage"]["completion_tokens"].as_u64() >= Some(10),
            "{usage}"
        );
        assert!(
            usage["usage"]["prompt_tokens"].as_u64() > Some(0),
            "{usage}"
        );
        assert_eq!(error["error"]["type"], "server_error", "{path}");
        assert_eq!(error["error"]["code"], "request_cancelled", "{path}");
    }
}

#[tokio::test]
async fn openai_sends_usage_only_if_requested() {
    let body = json!({ "messages": messages(), "stream": true, "max_tokens": 2000 });
    let (_, reply) = cancelled("/v1/chat/completions", body).await;
    assert!(!reply.text().contains("usage"), "{}", reply.text());
    assert!(reply.text().ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn anthropic_closes_block_and_message() {
    let body = json!({
        "model": MODEL, "messages": messages(), "stream": true, "max_tokens": 2000,
    });
    let (_, reply) = cancelled("/v1/messages", body).await;
    let events = reply.events();
    let names: Vec<_> = events
        .iter()
        .filter_map(|(name, _)| name.as_deref())
        .collect();
    let last = [
        "content_block_stop",
        "message_delta",
        "error",
        "message_stop",
    ];
    assert!(names.ends_with(&last), "{names:?}");
    let of = |name: &str| {
        let mut all = events.iter();
        let found = all.find(|(found, _)| found.as_deref() == Some(name));
        found.expect("an event").1.clone()
    };
    let usage = &of("message_delta")["usage"];
    assert!(usage["output_tokens"].as_u64() >= Some(10), "{usage}");
    assert_eq!(of("error")["error"]["type"], "api_error");
}

#[tokio::test]
async fn ollama_counts_tokens_before_the_error() {
    let body = json!({ "model": MODEL, "messages": messages() });
    let (_, reply) = cancelled("/api/chat", body).await;
    let lines = reply.lines();
    let [.., counts, error] = lines.as_slice() else {
        panic!("{}", reply.text());
    };
    assert!(counts["eval_count"].as_u64() >= Some(10), "{counts}");
    assert_eq!(counts["done"], false);
    assert!(error["error"].is_string(), "{error}");
    assert_eq!(error["done"], true);
}

#[tokio::test]
async fn llama_cpp_sends_counts_error_and_last_chunk() {
    // The other prompt is cancelled with it.
    let prompts = json!([[5, 5, 5], [5, 5, 5, 5]]);
    let body = json!({ "prompt": prompts, "stream": true, "n_predict": 2000, "ignore_eos": true });
    let (_, reply) = cancelled("/completion", body).await;
    let events = reply.events();
    let [.., (_, first), (_, second), (_, error), (_, last)] = events.as_slice() else {
        panic!("{}", reply.text());
    };
    for (index, counts) in [first, second].into_iter().enumerate() {
        assert_eq!(counts["index"], index, "{counts}");
        assert_eq!(counts["stop"], false, "{counts}");
        assert_eq!(counts["tokens_evaluated"], 3 + index, "{counts}");
        assert!(counts["tokens_predicted"].as_u64() >= Some(5), "{counts}");
    }
    assert_eq!(error["error"]["code"], "request_cancelled");
    assert_eq!(
        (&last["stop"], &last["content"]),
        (&json!(true), &json!(""))
    );
}

/// Its turn comes after the stream has begun.
#[tokio::test]
async fn refused_later_prompt_is_server_error() {
    let server = Harness::saying("hello");
    let mut prompts = vec!["<|im_start|>assistant\n".to_owned(); 40];
    prompts.push("a".repeat(5000));
    for path in ["/v1/completions", "/completion"] {
        let mut body = json!({ "prompt": prompts });
        let whole = server.post(path, &body).await;
        assert_eq!(whole.status(), StatusCode::BAD_REQUEST, "{path}");
        body["stream"] = true.into();
        let streamed = server.post(path, &body).await;
        assert_eq!(streamed.status(), StatusCode::OK, "{path}");
        let events = streamed.events();
        let error = events
            .iter()
            .find_map(|(_, event)| event["error"].as_object());
        let error = error.unwrap_or_else(|| panic!("{path}: {}", streamed.text()));
        assert_eq!(error["type"], "server_error", "{path}");
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
        let last = match path {
            "/completion" => events.last().is_some_and(|(_, last)| last["stop"] == true),
            _ => streamed.text().ends_with("data: [DONE]\n\n"),
        };
        assert!(last, "{path}: {}", streamed.text());
    }
}

#[tokio::test]
async fn failed_response_keeps_partial_output() {
    let body = json!({ "input": "hi", "stream": true, "max_output_tokens": 2000 });
    let (server, reply) = cancelled("/v1/responses", body).await;
    let events = reply.events();
    let (name, failed) = events.last().expect("events");
    assert_eq!(name.as_deref(), Some("response.failed"));
    let response = &failed["response"];
    assert_eq!(response["status"], "failed");
    let item = &response["output"][0];
    assert_eq!(item["status"], "incomplete");
    let text = item["content"][0]["text"].as_str().expect("text");
    assert!(text.starts_with("word word"), "{text}");
    assert!(response["usage"]["output_tokens"].as_u64() >= Some(10));
    assert_eq!(response["error"]["code"], "server_error");

    let id = response["id"].as_str().expect("an id");
    let stored = server.get(&format!("/v1/responses/{id}")).await.json();
    assert_eq!(stored["output"], response["output"]);
}

#[tokio::test]
async fn late_stream_is_a_timeout_error() {
    let mut config = Harness::config();
    config.limits.request_timeout = Some(Duration::from_millis(200));
    let model = Scripted {
        delay: Duration::from_millis(5),
        ..Scripted::new(&"word ".repeat(500))
    };
    let server = Harness::with(model, config);
    let body = json!({ "prompt": "hi", "stream": true, "max_tokens": 2000, "ignore_eos": true });
    let reply = server.post("/v1/completions", &body).await;
    // On a slow machine the request is late before it streams.
    let error = if reply.status().is_success() {
        reply.events().pop().expect("events").1["error"].clone()
    } else {
        reply.json()["error"].clone()
    };
    assert_eq!(error["type"], "timeout_error", "{}", reply.text());
    assert_eq!(error["code"], "request_timeout");
}

/// The command line prints the library's reply.
#[tokio::test]
async fn server_and_library_agree_on_a_reply() {
    let call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let says = [
        "Hi".to_owned(),
        "<think>\n\n</think>\n\nHi".to_owned(),
        "<think>\n Hm.\n</think>\n\nHi".to_owned(),
        format!("<think>Hm.</think>\n\n{call}"),
        format!("\n{call}"),
        format!("I see.\n{call}"),
    ];
    for text in says {
        let server = Harness::saying(&text);
        let body = json!({
            "messages": messages(),
            "tools": [{ "type": "function", "function": { "name": "f", "parameters": {} } }],
        });
        let reply = server.post("/v1/chat/completions", &body).await.json();
        let message = &reply["choices"][0]["message"];
        let lease = server.app.models.lease(MODEL).await.expect("the model");
        let chat = lease.model.chat("hi").tools(vec![loquat::Tool {
            name: "f".to_owned(),
            description: None,
            parameters: json!({}),
            strict: false,
        }]);
        let library = chat.reply_async().await.expect("a reply");
        let field = |name: &str| message[name].as_str().unwrap_or_default();
        assert_eq!(field("reasoning_content"), library.reasoning, "{text:?}");
        assert_eq!(field("content"), library.text, "{text:?}");
        let calls = message["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(calls, library.tool_calls.len(), "{text:?}");
    }
}

#[tokio::test]
async fn server_and_library_agree_on_the_limit() {
    let server = Harness::saying("Hi");
    let lease = server.app.models.lease(MODEL).await.expect("the model");
    let body = json!({ "messages": messages(), "max_tokens": 32_000 });
    let reply = server.post("/v1/chat/completions", &body).await;
    let header = reply.response.headers()["x-loquat-max-tokens"].to_str();
    let answer = lease.model.chat("hi").max_tokens(32_000).stream();
    let limit = answer.expect("an answer").max_tokens();
    assert_eq!(header.expect("a number"), limit.to_string());
}

/// The request forbids what its own format requires.
#[tokio::test]
async fn stuck_constraint_in_stream_is_server_error() {
    let server = Harness::saying("ab");
    let grammar = r#"root ::= "ab""#;
    let format = json!({ "type": "json_schema", "name": "x", "schema": { "const": "ab" } });
    let messages = messages();
    for (path, body, kind) in [
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "grammar": grammar }),
            "\"type\":\"server_error\"",
        ),
        (
            "/v1/completions",
            json!({ "prompt": "hi", "grammar": grammar }),
            "\"type\":\"server_error\"",
        ),
        (
            "/completion",
            json!({ "prompt": "hi", "grammar": grammar }),
            "\"type\":\"server_error\"",
        ),
        (
            "/v1/responses",
            json!({ "input": "hi", "text": { "format": format }, "reasoning": { "effort": "none" } }),
            "\"code\":\"server_error\"",
        ),
        (
            "/v1/messages",
            json!({ "model": MODEL, "max_tokens": 99, "messages": messages,
                "thinking": { "type": "disabled" },
                "output_config": { "format": { "type": "json_schema", "schema": format["schema"] } } }),
            "\"type\":\"api_error\"",
        ),
    ] {
        let mut body = body;
        body["bad_words"] = json!(["b"]);
        let whole = server.post(path, &body).await;
        assert_eq!(
            whole.status(),
            StatusCode::BAD_REQUEST,
            "{path}: {}",
            whole.text()
        );
        body["stream"] = true.into();
        let streamed = server.post(path, &body).await;
        assert_eq!(streamed.status(), StatusCode::OK, "{path}");
        let text = streamed.text();
        assert!(text.contains(kind), "{path}: {text}");
        assert!(!text.contains("invalid"), "{path}: {text}");
    }
}
