//! Malformed and unusual HTTP.

use std::time::Duration;

use serde_json::json;

use crate::http_client::{post, request};
use crate::scripted::{MODEL, Scripted};
use crate::test_server::{TestServer, chat};

#[tokio::test]
async fn malformed_requests_are_refused() {
    let server = TestServer::start(Scripted::new("hello")).await;
    let many_headers = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(500));
    let long_header = format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(1 << 20));
    let long_path = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    for (sent, statuses) in [
        ("\r\n\r\n\r\nnonsense\r\n\r\n", &[400][..]),
        ("GET / HTTP/9.9\r\n\r\n", &[400]),
        ("GET  / HTTP/1.1\r\n\r\n", &[400]),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n", &[400]),
        ("GET / HTTP/1.1\r\na b: c\r\n\r\n", &[400]),
        ("POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", &[400]),
        (
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            &[400],
        ),
        (
            "POST / HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n",
            &[400],
        ),
        ("\u{16}\u{3}\u{1}\0\u{1}", &[400]),
        (&many_headers, &[431]),
        (&long_header, &[431]),
        (&long_path, &[414, 431]),
    ] {
        let mut client = server.connect().await;
        client.send(sent.as_bytes()).await;
        let beginning = &sent[..sent.len().min(60)];
        let response = client.response().await;
        assert!(
            statuses.contains(&response.status),
            "{beginning:?}: {response:?}"
        );
        client.ends().await;
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn unusual_valid_requests_are_answered() {
    let server = TestServer::start(Scripted::new("hello")).await;
    let get = |method: &str, path: &str| request(method, path, &[], b"");
    for (sent, status) in [
        (get("GET", "http://localhost/health"), 200),
        (get("GET", "http://localhost/v1/nothing"), 404),
        (get("GET", "/health?x=%ff&y"), 200),
        (get("GET", "//health"), 404),
        (get("GET", "/%2e%2e/health"), 404),
        (get("OPTIONS", "*"), 404),
        (get("BREW", "/v1/chat/completions"), 405),
        (get("DELETE", "/v1/chat/completions"), 405),
        (get("TRACE", "/health"), 405),
        (get("CONNECT", "localhost:80"), 404),
        (
            b"\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec(),
            200,
        ),
        (b"GET /health HTTP/1.0\r\n\r\n".to_vec(), 200),
    ] {
        let mut client = server.connect().await;
        client.send(&sent).await;
        let response = client.head().await.expect("an answer");
        let line = String::from_utf8_lossy(&sent[..sent.len().min(60)]).into_owned();
        assert_eq!(response.status, status, "{line:?}");
        assert!(response.header("x-request-id").is_some(), "{line:?}");
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = TestServer::start(Scripted::new("hello")).await;
    let mut client = server.connect().await;
    let tokenize = |text: &str| post("/tokenize", &json!({ "model": MODEL, "prompt": text }));
    let all = [tokenize("a"), tokenize("bb"), tokenize("ccc")].concat();
    client.send(&all).await;
    for count in 1..=3 {
        let response = client.response().await;
        assert_eq!(response.json()["count"], count, "{response:?}");
    }
    // The same, byte by byte.
    for byte in tokenize("dddd") {
        client.send(&[byte]).await;
    }
    assert_eq!(client.response().await.json()["count"], 4);
    // Idle, then used again.
    tokio::time::sleep(Duration::from_millis(50)).await;
    client.post("/v1/chat/completions", &chat(false)).await;
    let response = client.response().await;
    assert_eq!(response.json()["choices"][0]["message"]["content"], "hello");
    server.is_healthy_and_idle().await;
}
