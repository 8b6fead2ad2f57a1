//! Bodies that are too long, too slow or invalid.

use std::time::{Duration, Instant};

use loquat_server::Config;
use tokio::io::AsyncWriteExt;

use crate::http_client::request;
use crate::scripted::Scripted;
use crate::test_server::{TIMEOUT, TestServer, chat, config};

const CHAT: &str = "/v1/chat/completions";

fn small() -> Config {
    let mut config = config();
    config.limits.body_bytes = 10_000;
    config
}

fn chunked() -> Vec<u8> {
    request("POST", CHAT, &[("transfer-encoding", "chunked")], b"")
}

fn sized(length: usize) -> Vec<u8> {
    let length = length.to_string();
    request("POST", CHAT, &[("content-length", &length)], b"")
}

#[tokio::test]
async fn invalid_bodies_are_refused() {
    let server = TestServer::with(Scripted::new("hello"), small()).await;
    let cases: &[(&[u8], &str)] = &[
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "object"),
        (b"{\"model\": \"\xff\xfe\"}", "not valid JSON"),
        (b"{\"model\": \"\\ud800\"}", "not valid JSON"),
        (&[b'['; 5000], "not valid JSON"),
        (b"{\"model\": 1e999}", "not valid JSON"),
    ];
    for (body, reason) in cases {
        let mut client = server.connect().await;
        client.send(&[&sized(body.len())[..], body].concat()).await;
        let response = client.response().await;
        assert_eq!(response.status, 400, "{response:?}");
        let message = response.json()["error"]["message"].to_string();
        assert!(message.contains(reason), "{message}");
        // The whole body was read, so the connection stays open.
        client.get("/health").await;
        assert_eq!(client.response().await.status, 200);
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn oversized_body_is_refused() {
    let server = TestServer::with(Scripted::new("hello"), small()).await;
    let chunk = [b"800\r\n".as_slice(), &[b' '; 0x800], b"\r\n"].concat();
    let endless: Vec<u8> = [chunked(), chunk.repeat(1000)].concat();
    let huge = [&chunked()[..], b"7fffffff\r\n", &[b' '; 20_000]].concat();
    let whole = [sized(5_000_000), vec![b' '; 5_000_000]].concat();
    for sent in [sized(10_001), sized(usize::MAX >> 1), whole, endless, huge] {
        let mut client = server.connect().await;
        client.send(&sent).await;
        let response = client.response().await;
        assert_eq!(response.status, 413, "{response:?}");
        assert_eq!(response.json()["error"]["type"], "invalid_request_error");
        assert_eq!(response.header("connection"), Some("close"));
        client.ends().await;
    }
    let mut client = server.connect().await;
    let length = [("content-length", "10001")];
    client
        .send(&request("POST", "/v1/messages", &length, b""))
        .await;
    let response = client.response().await;
    assert_eq!(response.json()["error"]["type"], "request_too_large");
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn bad_chunks_close_the_connection() {
    let server = TestServer::with(Scripted::new("hello"), small()).await;
    for chunks in [
        "fffffffffffffffff\r\n",
        "-1\r\n",
        "zz\r\n",
        "1\r\nabc\r\n0\r\n\r\n",
        "0\r\nbad trailer\r\n\r\n",
    ] {
        let mut client = server.connect().await;
        client
            .send(&[&chunked()[..], chunks.as_bytes()].concat())
            .await;
        if let Some(response) = client.try_response().await {
            assert_eq!(response.status, 400, "{chunks:?}: {response:?}");
        }
        client.ends().await;
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn incomplete_body_times_out() {
    let mut config = small();
    config.limits.body_timeout = Duration::from_secs(1);
    let server = TestServer::with(Scripted::new("hello"), config).await;
    for head in [sized(100), chunked()] {
        let mut client = server.connect().await;
        client.send(&[&head[..], b"5\r\n{\"mod"].concat()).await;
        let response = client.response().await;
        assert_eq!(response.status, 408, "{response:?}");
        client.ends().await;
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn expect_continue_is_answered() {
    let server = TestServer::with(Scripted::new("hello"), small()).await;
    let body = chat(false).to_string();
    let ask = |length: usize| {
        let length = length.to_string();
        let headers = [("expect", "100-continue"), ("content-length", &length)];
        request("POST", CHAT, &headers, b"")
    };
    let mut client = server.connect().await;
    client.send(&ask(body.len())).await;
    assert_eq!(client.head().await.expect("a response").status, 100);
    client.send(body.as_bytes()).await;
    assert_eq!(client.response().await.status, 200);
    // An oversized body is refused before it is sent.
    client.send(&ask(1 << 30)).await;
    assert_eq!(client.response().await.status, 413);
    // So is a request without a key.
    let mut client = server.connect().await;
    let stranger = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    client.send(stranger.as_bytes()).await;
    assert_eq!(client.response().await.status, 401);
    server.is_healthy_and_idle().await;
}

/// Retries: the server waits for a moment only, and a busy machine may be slower than that.
async fn eventually(what: &str, succeeds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !succeeds().await {
        assert!(began.elapsed() < TIMEOUT, "{what} in no attempt");
    }
}

/// Most clients write the whole body before they read, and never read if writing fails.
#[tokio::test]
async fn refused_body_is_still_read() {
    let server = TestServer::with(Scripted::new("hello"), small()).await;
    let whole = [sized(3_000_000), vec![b' '; 3_000_000]].concat();
    eventually("all is read", async || {
        let mut client = server.connect().await;
        for part in whole.chunks(100_000) {
            if client.stream.write_all(part).await.is_err() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(client.response().await.status, 413);
        true
    })
    .await;
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn short_unread_body_keeps_the_connection() {
    let server = TestServer::with(Scripted::new("hello"), small()).await;
    let body = vec![b' '; 9000];
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    eventually("three are answered", async || {
        let mut client = server.connect().await;
        for _ in 0..3 {
            client.send(head.as_bytes()).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            client.send(&body).await;
            match client.try_response().await {
                Some(response) => assert_eq!(response.status, 401),
                None => return false,
            }
        }
        true
    })
    .await;
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn total_body_memory_is_limited() {
    const LARGEST: usize = 100_000;
    let mut config = config();
    config.limits.body_bytes = LARGEST;
    let server = TestServer::with(Scripted::new("hello"), config).await;
    // All but the last byte of as many bodies as fit.
    let mut unfinished = Vec::new();
    for _ in 0..8 {
        let mut client = server.connect().await;
        client
            .send(&[sized(LARGEST), vec![b' '; LARGEST - 1]].concat())
            .await;
        unfinished.push(client);
    }
    let padded = format!("{}{}", chat(false), " ".repeat(1000));
    let mut status = 0;
    for _ in 0..1000 {
        let mut client = server.connect().await;
        client
            .send(&[&sized(padded.len())[..], padded.as_bytes()].concat())
            .await;
        let response = client.response().await;
        status = response.status;
        // They may still be arriving.
        if status != 200 {
            assert_eq!(response.header("retry-after"), Some("1"));
            assert_eq!(response.json()["error"]["code"], "too_many_bodies");
            break;
        }
    }
    assert_eq!(status, 503);
    // A finished body frees memory; a body that is only announced uses none.
    let mut one = unfinished.pop().expect("one");
    one.send(b"x").await;
    assert_eq!(one.response().await.status, 400);
    unfinished.truncate(1);
    for _ in 0..20 {
        let mut client = server.connect().await;
        client.send(&sized(LARGEST)).await;
        unfinished.push(client);
    }
    server
        .until("all heads arrived", |load| load.requests == 21)
        .await;
    let mut client = server.connect().await;
    client
        .send(&[&sized(padded.len())[..], padded.as_bytes()].concat())
        .await;
    assert_eq!(client.response().await.status, 200);
    drop(unfinished);
    drop(client);
    server.is_healthy_and_idle().await;
}
