//! The dialect over HTTP, and the lowering of its requests.

mod chat;
mod embed;
mod generate;
mod lowering;
mod models;

use axum::http::StatusCode;
use serde_json::Value;

use crate::testing::{Harness, Reply};

/// Sends a request that succeeds.
async fn post(server: &Harness, path: &str, body: &Value) -> Reply {
    let reply = server.post(path, body).await;
    assert_eq!(reply.status(), StatusCode::OK, "{body}: {}", reply.text());
    reply
}

/// Sends a request that is refused; the message contains `named`.
async fn refused(server: &Harness, path: &str, body: &Value, named: &str) {
    let reply = server.post(path, body).await;
    assert_eq!(
        reply.status(),
        StatusCode::BAD_REQUEST,
        "{body}: {}",
        reply.text()
    );
    let json = reply.json();
    let message = json["error"].as_str().expect("Ollama's shape");
    assert!(message.contains(named), "{body}: {message}");
}

fn ignored(reply: &Reply) -> Option<&str> {
    let header = reply.response.headers().get(crate::wire::IGNORED_HEADER);
    header.map(|value| value.to_str().expect("text"))
}
