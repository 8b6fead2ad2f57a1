//! Prompts that do not fit are refused, before tokenizing if possible.

use axum::http::StatusCode;
use serde_json::json;

use crate::testing::{Harness, MODEL, Scripted};

#[tokio::test]
async fn every_dialect_refuses_oversized_text() {
    let model = Scripted {
        fim: true,
        ..Scripted::new("hello")
    };
    let server = Harness::with(model, Harness::config());
    // More bytes than the context has tokens of the longest kind.
    let text = "word ".repeat(1 << 20);
    let messages = json!([{ "role": "user", "content": text }]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": MODEL, "messages": messages }),
        ),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": [text] }),
        ),
        ("/v1/responses", json!({ "model": MODEL, "input": text })),
        (
            "/v1/messages",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 4 }),
        ),
        ("/v1/embeddings", json!({ "model": MODEL, "input": text })),
        ("/api/chat", json!({ "model": MODEL, "messages": messages })),
        (
            "/api/generate",
            json!({ "model": MODEL, "prompt": text, "raw": true }),
        ),
        (
            "/api/generate",
            json!({ "model": MODEL, "prompt": "hi", "suffix": text }),
        ),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": "hi", "suffix": text }),
        ),
        ("/completion", json!({ "prompt": text })),
        ("/completion", json!({ "prompt": ["hi", text] })),
        (
            "/infill",
            json!({ "input_prefix": text, "input_suffix": "hi" }),
        ),
        (
            "/infill",
            json!({ "input_prefix": "hi", "input_suffix": "hi", "prompt": text }),
        ),
        (
            "/infill",
            json!({ "input_prefix": "hi", "input_suffix": "hi", "input_extra": [{ "text": text }] }),
        ),
        ("/apply-template", json!({ "messages": messages })),
        ("/tokenize", json!({ "prompt": text })),
        ("/tokenize", json!({ "messages": messages })),
        (
            "/v1/messages/count_tokens",
            json!({ "model": MODEL, "messages": messages }),
        ),
        (
            "/v1/chat/completions",
            json!({
                "messages": [{ "role": "user", "content": "hi" }],
                "tools": [{ "type": "function", "function": {
                    "name": "f", "description": text, "parameters": {},
                } }],
            }),
        ),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        let text = reply.text();
        assert!(text.contains("bytes is at least"), "{path}: {text}");
    }
}

#[tokio::test]
async fn text_beyond_any_context_is_refused() {
    let model = Scripted {
        context: 1 << 30,
        ..Scripted::new("hello")
    };
    let server = Harness::with(model, Harness::config());
    let body = json!({ "prompt": "word ".repeat(2 << 20) });
    for path in ["/tokenize", "/v1/completions"] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        assert!(
            reply.text().contains("the limit is 8388608 bytes"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn token_lists_are_limited_before_decoding() {
    let server = Harness::saying("hello");
    let tokens = vec![5; 4097];
    for (path, body) in [
        ("/detokenize", json!({ "tokens": tokens })),
        ("/v1/completions", json!({ "prompt": tokens })),
        ("/v1/completions", json!({ "prompt": [tokens] })),
    ] {
        let reply = server.post(path, &body).await;
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
    }
}

#[tokio::test]
async fn oversized_inputs_are_cut_before_embedding() {
    let server = Harness::saying("hello");
    let body = json!({ "model": MODEL, "input": ["hi", "word ".repeat(1 << 20)] });
    let reply = server.post("/api/embed", &body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert_eq!(reply.response.headers()["x-loquat-truncated"], "1");
}

#[tokio::test]
async fn oversized_prompt_error_names_no_other_field() {
    let server = Harness::saying("hello");
    let text = "a".repeat(4096);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }] }),
        ),
        ("/v1/completions", json!({ "model": MODEL, "prompt": text })),
        (
            "/v1/embeddings",
            json!({ "model": MODEL, "input": "a".repeat(4097) }),
        ),
    ] {
        let reply = server.post(path, &body).await;
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
        let message = error["message"].as_str().expect("text");
        assert!(message.contains("a prompt of 4"), "{path}: {message}");
        assert!(!message.contains("max_tokens"), "{path}: {message}");
    }
    // Without `max_tokens` the reply fills the context.
    let body = json!({ "model": MODEL, "prompt": vec![5; 4090] });
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(reply.json()["usage"]["completion_tokens"], 6);
}

/// Requests for more tokens than the context of 4096 has.
fn greedy_requests() -> [(&'static str, serde_json::Value); 7] {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    [
        (
            "/v1/chat/completions",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 32_000 }),
        ),
        (
            "/v1/completions",
            json!({ "model": MODEL, "prompt": vec![5; 4090], "max_tokens": 32_000 }),
        ),
        (
            "/v1/responses",
            json!({ "model": MODEL, "input": "hi", "max_output_tokens": 32_000 }),
        ),
        (
            "/v1/messages",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 32_000 }),
        ),
        (
            "/api/chat",
            json!({ "model": MODEL, "messages": messages, "stream": false,
                "options": { "num_predict": 32_000 } }),
        ),
        (
            "/completion",
            json!({ "prompt": vec![5; 4090], "n_predict": 32_000 }),
        ),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 32_000 }),
        ),
    ]
}

#[tokio::test]
async fn reply_limit_is_reduced_to_the_room() {
    let model = Scripted {
        fim: true,
        ..Scripted::new("hello")
    };
    let server = Harness::with(model, Harness::config());
    for (path, body) in greedy_requests() {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::OK, "{path} {}", reply.text());
        let limit = reply.response.headers()["x-loquat-max-tokens"].to_str();
        let limit: usize = limit.expect("text").parse().expect("a number");
        assert!((1..4096).contains(&limit), "{path} {limit}");
        if path == "/v1/completions" {
            assert_eq!(limit, 6);
            let choice = &reply.json()["choices"][0];
            assert_eq!(choice["finish_reason"], "length");
        }
    }
    let fitting = json!({ "model": MODEL, "prompt": "hi", "max_tokens": -1 });
    let reply = server.post("/v1/completions", &fitting).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
    assert!(!reply.response.headers().contains_key("x-loquat-max-tokens"));
}

#[tokio::test]
async fn strict_limits_refuses_large_limits() {
    let mut config = Harness::config();
    config.server.strict_limits = true;
    let model = Scripted {
        fim: true,
        ..Scripted::new("hello")
    };
    let server = Harness::with(model, config);
    for (path, body) in greedy_requests() {
        let reply = server.post(path, &body).await;
        // Ollama's clients expect a shorter reply.
        let expected = match path {
            "/api/chat" => StatusCode::OK,
            _ => StatusCode::BAD_REQUEST,
        };
        assert_eq!(reply.status(), expected, "{path} {}", reply.text());
        if ["/completion", "/infill"].contains(&path) {
            assert!(reply.text().contains("`n_predict` of 32000"), "{path}");
        }
    }
    let fitting = json!({ "model": MODEL, "prompt": "hi", "max_tokens": -1 });
    let reply = server.post("/v1/completions", &fitting).await;
    assert_eq!(reply.status(), StatusCode::OK, "{}", reply.text());
}
