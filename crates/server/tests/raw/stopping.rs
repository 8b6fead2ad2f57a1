//! The end, in order.

use std::time::{Duration, Instant};

use loquat_server::config::Scope;
use tokio::net::TcpStream;

use crate::scripted::{MODEL, Scripted, Stuck};
use crate::wire::{Wire, post};
use crate::world::{World, chat, config, talker};

const CHAT: &str = "/v1/chat/completions";

/// Says something for about as long as a test may take.
fn brief() -> Scripted {
    Scripted {
        delay: Duration::from_millis(10),
        ..Scripted::new("a few more words before the end")
    }
}

#[tokio::test]
async fn what_runs_may_end_and_what_comes_is_refused() {
    let mut world = World::start(brief()).await;
    let mut streaming = world.connect().await;
    streaming.post(CHAT, &chat(true)).await;
    streaming.begins_to_stream().await;
    let mut waiting = world.connect().await;
    waiting.post(CHAT, &chat(false)).await;
    let mut kept = world.connect().await;
    kept.get("/health").await;
    assert_eq!(kept.response().await.status, 200);
    world.until("both run", |load| load.running == 2).await;

    world.tell_to_stop();
    let began = Instant::now();
    while TcpStream::connect(world.address).await.is_ok() {
        assert!(began.elapsed() < Duration::from_secs(1), "it still listens");
    }
    kept.post(CHAT, &chat(false)).await;
    let response = kept.response().await;
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("connection"), Some("close"));
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.json()["error"]["type"], "overloaded_error");
    kept.ends().await;

    let answer = waiting.response().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let rest = rest_of(&mut streaming).await;
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
    streaming.ends().await;
    world.stopped().await;
}

async fn rest_of(wire: &mut Wire) -> String {
    let mut rest = String::new();
    loop {
        match wire.chunk().await.expect("a whole stream").as_str() {
            "" => return rest,
            chunk => rest.push_str(chunk),
        }
    }
}

#[tokio::test]
async fn what_takes_too_long_is_told_why_it_ends() {
    let mut config = config();
    config.server.shutdown_timeout = Duration::from_millis(100);
    let mut world = World::with(talker(), config).await;
    let mut streams = Vec::new();
    for path in [CHAT, "/v1/messages", "/api/chat"] {
        let mut body = chat(true);
        if path == "/v1/messages" {
            body["max_tokens"] = 1000.into();
        }
        let mut wire = world.connect().await;
        wire.post(path, &body).await;
        wire.begins_to_stream().await;
        streams.push(wire);
    }
    let mut whole = world.connect().await;
    whole.post(CHAT, &chat(false)).await;
    world.until("all run", |load| load.running == 4).await;

    world.tell_to_stop();
    let response = whole.response().await;
    assert_eq!(response.status, 503, "{response:?}");
    for (wire, shape) in streams.iter_mut().zip([
        "data: {\"error\":",
        "event: error\ndata: {\"type\":\"error\"",
        "{\"error\":",
    ]) {
        let rest = rest_of(wire).await;
        assert!(rest.contains(shape), "{rest}");
        assert!(rest.contains("the server is stopping"), "{rest}");
        wire.ends().await;
    }
    world.stopped().await;
}

#[tokio::test]
async fn idle_and_half_open_connections_do_not_hold_it_up() {
    let mut world = World::start(brief()).await;
    let _silent = world.connect().await;
    let mut half = world.connect().await;
    half.send(b"GET /health HT").await;
    let mut half_body = world.connect().await;
    let request = post(CHAT, &chat(false));
    half_body.send(&request[..request.len() - 3]).await;
    world
        .until("its head came", |load| load.requests == 1)
        .await;
    drop(half_body);
    let mut kept = world.connect().await;
    kept.get("/health").await;
    assert_eq!(kept.response().await.status, 200);
    world.until("nothing runs", |load| load.requests == 0).await;
    world.tell_to_stop();
    kept.ends().await;
    world.stopped().await;
}

#[tokio::test]
async fn a_model_that_is_loading_does_not_hold_it_up() {
    let (stuck, _let_go) = Stuck::new();
    let mut config = config();
    config.models[0].preload = true;
    let mut world = World::with(stuck, config).await;
    let mut wire = world.connect().await;
    loop {
        wire.get(&format!("/v1/models/{MODEL}")).await;
        if wire.response().await.json()["state"] == "loading" {
            break;
        }
    }
    world.tell_to_stop();
    world.stopped().await;
}

#[tokio::test]
async fn only_what_uses_models_is_waited_for() {
    let mut config = config();
    config.keys[0].scopes = vec![Scope::Admin];
    config.server.shutdown_timeout = Duration::from_secs(60);
    config.limits.body_timeout = Duration::from_secs(60);
    let mut world = World::with(brief(), config).await;
    let mut operator = world.connect().await;
    let request = post("/admin/v1/cache/clear", &chat(false));
    operator.send(&request[..request.len() - 3]).await;
    world
        .until("its head came", |load| load.requests == 1)
        .await;
    world.tell_to_stop();
    world.stopped().await;
}
