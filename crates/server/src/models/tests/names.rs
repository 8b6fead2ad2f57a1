//! Requests find their model by name, alias or pattern, or get the only one.

use axum::http::StatusCode;
use serde_json::json;

use crate::config::ModelConfig;
use crate::http::MODEL_HEADER;
use crate::testing::{Harness, MODEL, Reply, Scripted};

async fn complete(server: &Harness, model: &str) -> Reply {
    let body = json!({ "model": model, "prompt": "hi" });
    server.post("/v1/completions", &body).await
}

#[tokio::test]
async fn only_model_serves_unknown_names() {
    let server = Harness::saying("hello");
    let known = complete(&server, MODEL).await;
    assert!(!known.response.headers().contains_key(MODEL_HEADER));
    let chat = json!([{ "role": "user", "content": "hi" }]);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "hi" })),
        ("/v1/chat/completions", json!({ "messages": chat })),
        ("/v1/responses", json!({ "input": "hi" })),
        ("/v1/messages", json!({ "messages": chat, "max_tokens": 5 })),
        ("/api/chat", json!({ "messages": chat })),
        ("/v1/embeddings", json!({ "input": "hi" })),
    ] {
        let mut body = body;
        body["model"] = json!("claude-opus-4-8");
        let reply = server.post(path, &body).await;
        assert_eq!(reply.status(), StatusCode::OK, "{path} {}", reply.text());
        assert_eq!(reply.response.headers()[MODEL_HEADER], MODEL, "{path}");
    }
    // Descriptions of models are exact.
    let reply = server.get("/v1/models/claude-opus-4-8").await;
    assert_eq!(reply.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn unknown_names_are_refused_if_ambiguous_or_strict() {
    let mut strict = Harness::config();
    strict.server.strict_model_names = true;
    let mut two = Harness::config();
    two.models.push(ModelConfig::new("other", "nowhere"));
    for config in [strict, two] {
        let server = Harness::with(Scripted::new("hello"), config);
        let reply = complete(&server, "unknown").await;
        assert_eq!(reply.status(), StatusCode::NOT_FOUND);
        assert_eq!(reply.json()["error"]["code"], "model_not_found");
    }
}

#[tokio::test]
async fn names_precede_aliases_and_patterns() {
    let mut config = Harness::config();
    config.models[0].aliases = vec!["claude-*".to_owned()];
    let mut other = ModelConfig::new("claude-small", "nowhere");
    other.aliases = vec!["claude-haiku".to_owned()];
    config.models.push(other);
    let server = Harness::with(Scripted::new("hello"), config);
    for (name, expected) in [
        ("claude-opus", MODEL),
        ("claude-small", "claude-small"),
        ("claude-haiku", "claude-small"),
    ] {
        let reply = complete(&server, name).await;
        assert_eq!(reply.json()["model"], expected, "{}", reply.text());
    }
}
