//! Clients that leave, at every stage.

use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::sleep;

use crate::scripted::{MODEL, Scripted};
use crate::wire::post;
use crate::world::{World, chat, config, talker};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn a_client_that_leaves_before_its_request_is_whole_leaves_nothing() {
    let world = World::start(talker()).await;
    let whole = post(CHAT, &chat(true));
    let head = whole.windows(4).position(|part| part == b"\r\n\r\n");
    let head = head.expect("a head") + 4;
    for cut in [0, 1, 10, head - 2, head, head + 1, whole.len() - 1] {
        let mut wire = world.connect().await;
        wire.send(&whole[..cut]).await;
        if cut >= head {
            world
                .until("the head is read", |load| load.requests == 1)
                .await;
        }
        drop(wire);
        world.until("it is gone", |load| load.requests == 0).await;
    }
    world.is_well().await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_is_served_cancels_what_it_asked_for() {
    let world = World::start(talker()).await;
    for (path, stream) in [
        (CHAT, true),
        (CHAT, false),
        ("/v1/messages", true),
        ("/v1/messages", false),
        ("/api/chat", true),
        ("/api/chat", false),
    ] {
        let mut body = chat(stream);
        body["max_tokens"] = 1000.into();
        if path == "/api/chat" {
            body.as_object_mut()
                .expect("an object")
                .remove("max_tokens");
        }
        let mut wire = world.connect().await;
        wire.post(path, &body).await;
        if stream {
            wire.begins_to_stream().await;
        }
        let running = |load: &loquat_server::Load| load.running == 1;
        world.until(&format!("{path} runs"), running).await;
        drop(wire);
        world.is_well().await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_leaves_it_for_good() {
    let mut config = config();
    config.models[0].parallel = 1;
    let world = World::with(talker(), config).await;
    let mut first = world.connect().await;
    first.post(CHAT, &chat(true)).await;
    first.begins_to_stream().await;
    for stream in [true, false] {
        let mut second = world.connect().await;
        second.post(CHAT, &chat(stream)).await;
        world.until("it waits", |load| load.waiting == 1).await;
        drop(second);
        world
            .until("it is gone", |load| load.waiting == 0 && load.requests == 1)
            .await;
    }
    first.chunk().await.expect("the first goes on");
    drop(first);
    world.is_well().await;
}

#[tokio::test]
async fn a_client_that_closes_its_side_has_left() {
    let world = World::start(talker()).await;
    let mut wire = world.connect().await;
    wire.post(CHAT, &chat(false)).await;
    world.until("it runs", |load| load.running == 1).await;
    wire.stream.shutdown().await.expect("a half-closed socket");
    world.is_well().await;
}

#[tokio::test]
async fn a_client_that_leaves_just_before_the_end_is_counted_once() {
    let words = "a few words";
    let world = World::start(Scripted {
        delay: Duration::from_millis(1),
        ..Scripted::new(words)
    })
    .await;
    let mut wire = world.connect().await;
    wire.post(CHAT, &chat(true)).await;
    let stream = wire.response().await.body;
    let frames = stream.matches("data: ").count();
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    for leave_after in 1..frames {
        let mut wire = world.connect().await;
        wire.post(CHAT, &chat(true)).await;
        wire.head().await.expect("a head");
        let mut seen = 0;
        while seen < leave_after {
            let chunk = wire.chunk().await.expect("frames");
            seen += chunk.matches("data: ").count();
        }
    }
    world.is_well().await;
}

/// hyper looks for the end of a connection only when nothing more is waiting to be read, so that
/// a request sent behind another hides that its client has left. Writing finds it out.
#[tokio::test]
async fn a_client_that_leaves_with_requests_in_a_row_is_found_out() {
    let world = World::start(talker()).await;
    let mut wire = world.connect().await;
    let one = post(CHAT, &chat(true));
    wire.send(&one.repeat(3)).await;
    wire.begins_to_stream().await;
    drop(wire);
    world.is_well().await;
}

#[tokio::test]
async fn an_embedding_that_nobody_waits_for_is_not_made() {
    let world = World::start(talker()).await;
    let mut wire = world.connect().await;
    let inputs = vec!["sing"; 64];
    let body = serde_json::json!({ "model": MODEL, "input": inputs });
    wire.post("/v1/embeddings", &body).await;
    world.until("it runs", |load| load.requests == 1).await;
    drop(wire);
    sleep(Duration::from_millis(10)).await;
    world.is_well().await;
}
