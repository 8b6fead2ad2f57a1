//! Time and connection limits.

use std::time::{Duration, Instant};

use loquat_server::Config;
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::time::sleep;

use crate::http_client::{HttpClient, post};
use crate::scripted::{MODEL, Scripted};
use crate::test_server::{TIMEOUT, TestServer, chat, config, long_reply};

const CHAT: &str = "/v1/chat/completions";
/// Long enough for a busy machine, short enough to wait for.
const SHORT: Duration = Duration::from_secs(1);

fn limited(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

/// A connection that has been answered. On a busy machine the header timeout may pass first.
async fn answered(server: &TestServer) -> HttpClient {
    let began = Instant::now();
    loop {
        let mut client = server.connect().await;
        client.post(CHAT, &chat(false)).await;
        if let Some(response) = client.try_response().await {
            assert_eq!(response.status, 200, "{response:?}");
            return client;
        }
        assert!(began.elapsed() < TIMEOUT, "no request is in time");
    }
}

#[tokio::test]
async fn slow_headers_time_out() {
    let config = limited(|config| config.limits.header_timeout = SHORT);
    let server = TestServer::with(Scripted::new("hello"), config).await;
    let whole = post(CHAT, &chat(false));
    let mut clients = Vec::new();
    for start in ["", "GET", "GET /health HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n"] {
        let mut client = server.connect().await;
        client.send(start.as_bytes()).await;
        clients.push(client);
    }
    for mut client in clients {
        client.ends().await;
    }
    // Single bytes do not extend it; nor does an earlier request.
    let mut client = answered(&server).await;
    let began = Instant::now();
    for byte in &whole {
        client.send(&[*byte]).await;
        sleep(Duration::from_millis(20)).await;
        if began.elapsed() > 3 * SHORT {
            break;
        }
    }
    client.ends().await;
    server.until("it is gone", |load| load.requests == 0).await;
}

#[tokio::test]
async fn idle_connections_outlive_header_timeout() {
    let config = limited(|config| config.limits.header_timeout = SHORT);
    let server = TestServer::with(Scripted::new("hello"), config).await;
    let mut client = answered(&server).await;
    client.is_silent_for(SHORT * 3 / 2).await;
    client.post(CHAT, &chat(false)).await;
    assert_eq!(client.response().await.status, 200);
    client.is_silent_for(SHORT * 3 / 2).await;
}

#[tokio::test]
async fn idle_connections_time_out() {
    let config = limited(|config| config.limits.idle_timeout = SHORT);
    let server = TestServer::with(Scripted::new("hello"), config).await;
    let mut client = answered(&server).await;
    client.ends().await;
    server.is_healthy_and_idle().await;
}

/// Long frames, which fill the socket's buffers of several megabytes.
fn verbose() -> Vec<u8> {
    let mut body = chat(true);
    body["logprobs"] = true.into();
    body["top_logprobs"] = 20.into();
    post(CHAT, &body)
}

#[tokio::test]
async fn stalled_reader_is_disconnected() {
    let config = limited(|config| config.limits.write_timeout = SHORT);
    let model = Scripted {
        context: 60_000,
        ..Scripted::new(&"la ".repeat(18_000))
    };
    let server = TestServer::with(model, config).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let stream = socket.connect(server.address).await.expect("a connection");
    let mut client = HttpClient::over(stream);
    client.send(&verbose()).await;
    // It reads no further.
    assert_eq!(client.head().await.expect("a head").status, 200);
    server.is_healthy_and_idle().await;
    drop(client);
}

#[tokio::test]
async fn slow_request_times_out() {
    let config = limited(|config| config.limits.request_timeout = Some(SHORT));
    let server = TestServer::with(long_reply(), config).await;
    let mut client = server.connect().await;
    client.post(CHAT, &chat(false)).await;
    let response = client.response().await;
    assert_eq!(response.status, 408, "{response:?}");
    client.post(CHAT, &chat(true)).await;
    let stream = client.response().await.body;
    let last = stream
        .trim_end()
        .rsplit("\n\n")
        .find(|frame| *frame != "data: [DONE]");
    let last = last.expect("frames").trim_start_matches("data: ");
    let error: serde_json::Value = serde_json::from_str(last).expect("a frame");
    assert_eq!(error["error"]["code"], "request_timeout", "{stream}");
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn excess_connections_are_refused() {
    let config = limited(|config| config.limits.connections = 3);
    let server = TestServer::with(Scripted::new("hello"), config).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut client = server.connect().await;
        client.get("/health").await;
        assert_eq!(client.response().await.status, 200);
        held.push(client);
    }
    let mut client = server.connect().await;
    client.get("/health").await;
    let response = client.response().await;
    assert_eq!(response.status, 503);
    assert_eq!(response.header("retry-after"), Some("1"));
    client.ends().await;
    drop(held);
    // The connections are free again.
    let began = Instant::now();
    loop {
        let mut client = server.connect().await;
        client.get("/health").await;
        match client.response().await.status {
            200 => break,
            _ => assert!(began.elapsed() < TIMEOUT, "no connection became free"),
        }
        sleep(Duration::from_millis(10)).await;
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn key_limit_lasts_until_stream_end() {
    let config = limited(|config| config.keys[0].concurrent = Some(1));
    let server = TestServer::with(long_reply(), config).await;
    let mut first = server.connect().await;
    first.post(CHAT, &chat(true)).await;
    first.begins_to_stream().await;
    let mut second = server.connect().await;
    let tokenize = json!({ "model": MODEL, "prompt": "la" });
    second.post("/tokenize", &tokenize).await;
    let response = second.response().await;
    assert_eq!(response.status, 429, "{response:?}");
    assert_eq!(response.header("retry-after"), Some("1"));
    drop(first);
    server.until("it is over", |load| load.admitted == 0).await;
    second.post("/tokenize", &tokenize).await;
    assert_eq!(second.response().await.status, 200);
    drop(second);
    server.is_healthy_and_idle().await;
}
