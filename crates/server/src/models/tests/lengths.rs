//! What is too long is refused, before much is done with it where that can be.

use axum::http::StatusCode;
use serde_json::json;

use crate::testing::{Harness, MODEL};

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_in_every_dialect() {
    let server = Harness::saying("hello");
    // More bytes than the context has tokens, times the longest token there is.
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
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
        let said = reply.text();
        assert!(said.contains("bytes is at least"), "{path}: {said}");
    }
}

#[tokio::test]
async fn a_prompt_that_leaves_no_room_is_said_so_without_words_nobody_sent() {
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
    // What is left out goes as far as there is room.
    let body = json!({ "model": MODEL, "prompt": vec![5; 4090] });
    let reply = server.post("/v1/completions", &body).await;
    assert_eq!(reply.json()["usage"]["completion_tokens"], 6);
}
