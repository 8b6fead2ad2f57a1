//! Time and room are not without end.

use std::time::{Duration, Instant};

use loquat_server::Config;
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::time::sleep;

use crate::scripted::{MODEL, Scripted};
use crate::wire::{Wire, post};
use crate::world::{PATIENCE, World, chat, config, talker};

const CHAT: &str = "/v1/chat/completions";
const SHORT: Duration = Duration::from_millis(200);

fn limited(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

#[tokio::test]
async fn slow_headers_are_cut_off() {
    let config = limited(|config| config.limits.header_timeout = SHORT);
    let world = World::with(Scripted::new("hello"), config).await;
    let whole = post(CHAT, &chat(false));
    for start in ["", "GET", "GET /health HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n"] {
        let mut wire = world.connect().await;
        wire.send(start.as_bytes()).await;
        wire.ends().await;
    }
    // A byte now and then does not help; nor does having been served.
    let mut wire = world.connect().await;
    wire.send(&whole).await;
    assert_eq!(wire.response().await.status, 200);
    let began = Instant::now();
    for byte in &whole {
        wire.send(&[*byte]).await;
        sleep(Duration::from_millis(20)).await;
        if began.elapsed() > 3 * SHORT {
            break;
        }
    }
    wire.ends().await;
    world.is_well().await;
}

#[tokio::test]
async fn idle_connections_live_longer_than_slow_headers_and_not_for_ever() {
    let config = limited(|config| {
        config.limits.header_timeout = SHORT;
        config.limits.idle_timeout = 4 * SHORT;
    });
    let world = World::with(Scripted::new("hello"), config).await;
    let mut wire = world.connect().await;
    for _ in 0..2 {
        wire.post(CHAT, &chat(false)).await;
        assert_eq!(wire.response().await.status, 200);
        wire.is_silent_for(2 * SHORT).await;
    }
    wire.ends().await;
    world.is_well().await;
}

/// The socket's buffers take megabytes, so that the frames must be long ones.
fn verbose() -> Vec<u8> {
    let mut body = chat(true);
    body["logprobs"] = true.into();
    body["top_logprobs"] = 20.into();
    post(CHAT, &body)
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_left() {
    let config = limited(|config| config.limits.write_timeout = SHORT);
    let model = Scripted {
        context: 60_000,
        ..Scripted::new(&"la ".repeat(18_000))
    };
    let world = World::with(model, config).await;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let stream = socket.connect(world.address).await.expect("a connection");
    let mut wire = Wire::over(stream);
    wire.send(&verbose()).await;
    world.until("it runs", |load| load.running == 1).await;
    world.is_well().await;
    drop(wire);
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_ended_and_told() {
    let config = limited(|config| config.limits.request_timeout = Some(SHORT));
    let world = World::with(talker(), config).await;
    let mut wire = world.connect().await;
    wire.post(CHAT, &chat(false)).await;
    let response = wire.response().await;
    assert_eq!(response.status, 408, "{response:?}");
    wire.post(CHAT, &chat(true)).await;
    let stream = wire.response().await.body;
    let last = stream
        .trim_end()
        .rsplit("\n\n")
        .find(|frame| *frame != "data: [DONE]");
    let last = last.expect("frames").trim_start_matches("data: ");
    let error: serde_json::Value = serde_json::from_str(last).expect("a frame");
    assert_eq!(error["error"]["code"], "request_timeout", "{stream}");
    world.is_well().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_told_at_once() {
    let config = limited(|config| config.limits.connections = 3);
    let world = World::with(Scripted::new("hello"), config).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut wire = world.connect().await;
        wire.get("/health").await;
        assert_eq!(wire.response().await.status, 200);
        held.push(wire);
    }
    let mut wire = world.connect().await;
    wire.get("/health").await;
    let response = wire.response().await;
    assert_eq!(response.status, 503);
    assert_eq!(response.header("retry-after"), Some("1"));
    wire.ends().await;
    drop(held);
    // The places are free again.
    let began = Instant::now();
    loop {
        let mut wire = world.connect().await;
        wire.get("/health").await;
        match wire.response().await.status {
            200 => break,
            _ => assert!(began.elapsed() < PATIENCE, "no place became free"),
        }
        sleep(Duration::from_millis(10)).await;
    }
    world.is_well().await;
}

#[tokio::test]
async fn a_key_counts_a_request_until_its_stream_has_ended() {
    let config = limited(|config| config.keys[0].concurrent = Some(1));
    let world = World::with(talker(), config).await;
    let mut first = world.connect().await;
    first.post(CHAT, &chat(true)).await;
    first.begins_to_stream().await;
    let mut second = world.connect().await;
    let tokenize = json!({ "model": MODEL, "prompt": "la" });
    second.post("/tokenize", &tokenize).await;
    let response = second.response().await;
    assert_eq!(response.status, 429, "{response:?}");
    assert_eq!(response.header("retry-after"), Some("1"));
    drop(first);
    world.until("it is over", |load| load.admitted == 0).await;
    second.post("/tokenize", &tokenize).await;
    assert_eq!(second.response().await.status, 200);
    drop(second);
    world.is_well().await;
}
