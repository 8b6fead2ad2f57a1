//! Bodies that are too long, too slow, or not what they should be.

use std::time::Duration;

use loquat_server::Config;
use tokio::io::AsyncWriteExt;

use crate::scripted::Scripted;
use crate::wire::request;
use crate::world::{World, chat, config};

const CHAT: &str = "/v1/chat/completions";

fn small() -> Config {
    let mut config = config();
    config.limits.body_bytes = 10_000;
    config.limits.body_timeout = Duration::from_millis(200);
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
async fn what_is_no_request_is_refused_by_reason() {
    let world = World::with(Scripted::new("hello"), small()).await;
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
        let mut wire = world.connect().await;
        wire.send(&[&sized(body.len())[..], body].concat()).await;
        let response = wire.response().await;
        assert_eq!(response.status, 400, "{response:?}");
        let message = response.json()["error"]["message"].to_string();
        assert!(message.contains(reason), "{message}");
        // It was read whole, so that the connection can go on.
        wire.get("/health").await;
        assert_eq!(wire.response().await.status, 200);
    }
    world.is_well().await;
}

#[tokio::test]
async fn too_large_a_body_is_refused_however_it_comes() {
    let world = World::with(Scripted::new("hello"), small()).await;
    let chunk = [b"800\r\n".as_slice(), &[b' '; 0x800], b"\r\n"].concat();
    let endless: Vec<u8> = [chunked(), chunk.repeat(1000)].concat();
    let huge = [&chunked()[..], b"7fffffff\r\n", &[b' '; 20_000]].concat();
    let whole = [sized(5_000_000), vec![b' '; 5_000_000]].concat();
    for sent in [sized(10_001), sized(usize::MAX >> 1), whole, endless, huge] {
        let mut wire = world.connect().await;
        wire.send(&sent).await;
        let response = wire.response().await;
        assert_eq!(response.status, 413, "{response:?}");
        assert_eq!(response.json()["error"]["type"], "invalid_request_error");
        assert_eq!(response.header("connection"), Some("close"));
        wire.ends().await;
    }
    let mut wire = world.connect().await;
    let length = [("content-length", "10001")];
    wire.send(&request("POST", "/v1/messages", &length, b""))
        .await;
    let response = wire.response().await;
    assert_eq!(response.json()["error"]["type"], "request_too_large");
    world.is_well().await;
}

#[tokio::test]
async fn bad_chunks_end_the_connection() {
    let world = World::with(Scripted::new("hello"), small()).await;
    for chunks in [
        "fffffffffffffffff\r\n",
        "-1\r\n",
        "zz\r\n",
        "1\r\nabc\r\n0\r\n\r\n",
        "0\r\nbad trailer\r\n\r\n",
    ] {
        let mut wire = world.connect().await;
        wire.send(&[&chunked()[..], chunks.as_bytes()].concat())
            .await;
        if let Some(response) = wire.try_response().await {
            assert_eq!(response.status, 400, "{chunks:?}: {response:?}");
        }
        wire.ends().await;
    }
    world.is_well().await;
}

#[tokio::test]
async fn half_a_body_is_waited_for_only_so_long() {
    let world = World::with(Scripted::new("hello"), small()).await;
    for sent in [sized(100), chunked()] {
        let mut wire = world.connect().await;
        wire.send(&sent).await;
        wire.send(b"5\r\n{\"mod").await;
        let response = wire.response().await;
        assert_eq!(response.status, 408, "{response:?}");
        wire.ends().await;
    }
    world.is_well().await;
}

#[tokio::test]
async fn who_asks_before_sending_is_told() {
    let world = World::with(Scripted::new("hello"), small()).await;
    let body = chat(false).to_string();
    let ask = |length: usize| {
        let length = length.to_string();
        let headers = [("expect", "100-continue"), ("content-length", &length)];
        request("POST", CHAT, &headers, b"")
    };
    let mut wire = world.connect().await;
    wire.send(&ask(body.len())).await;
    assert_eq!(wire.head().await.expect("a word").status, 100);
    wire.send(body.as_bytes()).await;
    assert_eq!(wire.response().await.status, 200);
    // Too much is refused before it is sent.
    wire.send(&ask(1 << 30)).await;
    assert_eq!(wire.response().await.status, 413);
    // So are strangers.
    let mut wire = world.connect().await;
    let stranger = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    wire.send(stranger.as_bytes()).await;
    assert_eq!(wire.response().await.status, 401);
    world.is_well().await;
}

/// Most clients write all they have before they read, and never read when writing fails.
#[tokio::test]
async fn a_refused_body_can_be_sent_to_its_end() {
    let world = World::with(Scripted::new("hello"), small()).await;
    let mut wire = world.connect().await;
    let whole = [sized(3_000_000), vec![b' '; 3_000_000]].concat();
    for part in whole.chunks(100_000) {
        let sent = wire.stream.write_all(part).await;
        sent.expect("a connection that takes it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(wire.response().await.status, 413);
    world.is_well().await;
}

#[tokio::test]
async fn a_short_body_that_nobody_wants_does_not_end_the_connection() {
    let world = World::with(Scripted::new("hello"), small()).await;
    let mut wire = world.connect().await;
    for _ in 0..3 {
        let body = vec![b' '; 9000];
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        wire.send(request.as_bytes()).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        wire.send(&body).await;
        assert_eq!(wire.response().await.status, 401);
    }
    world.is_well().await;
}

#[tokio::test]
async fn there_is_an_end_to_what_all_bodies_take() {
    const LARGEST: usize = 100_000;
    let mut config = config();
    config.limits.body_bytes = LARGEST;
    let world = World::with(Scripted::new("hello"), config).await;
    // All but the last byte of as many as there is memory for.
    let mut unfinished = Vec::new();
    for _ in 0..8 {
        let mut wire = world.connect().await;
        wire.send(&[sized(LARGEST), vec![b' '; LARGEST - 1]].concat())
            .await;
        unfinished.push(wire);
    }
    let padded = format!("{}{}", chat(false), " ".repeat(1000));
    let mut status = 0;
    for _ in 0..1000 {
        let mut wire = world.connect().await;
        wire.send(&[&sized(padded.len())[..], padded.as_bytes()].concat())
            .await;
        let response = wire.response().await;
        status = response.status;
        // They may take a while to arrive.
        if status != 200 {
            assert_eq!(response.header("retry-after"), Some("1"));
            assert_eq!(response.json()["error"]["code"], "too_many_bodies");
            break;
        }
    }
    assert_eq!(status, 503);
    // What ends makes room; what was announced and not sent never took any.
    let mut one = unfinished.pop().expect("one");
    one.send(b"x").await;
    assert_eq!(one.response().await.status, 400);
    unfinished.truncate(1);
    for _ in 0..20 {
        let mut wire = world.connect().await;
        wire.send(&sized(LARGEST)).await;
        unfinished.push(wire);
    }
    world
        .until("all their heads came", |load| load.requests == 21)
        .await;
    let mut wire = world.connect().await;
    wire.send(&[&sized(padded.len())[..], padded.as_bytes()].concat())
        .await;
    assert_eq!(wire.response().await.status, 200);
    drop(unfinished);
    drop(wire);
    world.is_well().await;
}
