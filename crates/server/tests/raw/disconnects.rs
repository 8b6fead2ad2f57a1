//! Clients that disconnect, at every stage.

use std::net::Shutdown;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::http_client::{HttpClient, post, request};
use crate::scripted::{MODEL, Scripted, hold_steps};
use crate::test_server::{TestServer, chat, config, long_reply};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn disconnect_during_request_leaves_no_load() {
    let server = TestServer::start(long_reply()).await;
    let whole = post(CHAT, &chat(true));
    let head = whole.windows(4).position(|part| part == b"\r\n\r\n");
    let head = head.expect("a head") + 4;
    for cut in [0, 1, 10, head - 2, head, head + 1, whole.len() - 1] {
        let mut client = server.connect().await;
        client.send(&whole[..cut]).await;
        if cut >= head {
            server
                .until("the head is read", |load| load.requests == 1)
                .await;
        }
        drop(client);
        server.until("it is gone", |load| load.requests == 0).await;
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn disconnect_cancels_the_request() {
    let server = TestServer::start(long_reply()).await;
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
        let mut client = server.connect().await;
        client.post(path, &body).await;
        if stream {
            client.begins_to_stream().await;
        }
        let running = |load: &loquat_server::Load| load.running == 1;
        server.until(&format!("{path} runs"), running).await;
        drop(client);
        server.is_healthy_and_idle().await;
    }
}

#[tokio::test]
async fn disconnect_leaves_the_queue() {
    let mut config = config();
    config.models[0].parallel = 1;
    let server = TestServer::with(long_reply(), config).await;
    let mut first = server.connect().await;
    first.post(CHAT, &chat(true)).await;
    first.begins_to_stream().await;
    for stream in [true, false] {
        let mut second = server.connect().await;
        second.post(CHAT, &chat(stream)).await;
        server.until("it waits", |load| load.waiting == 1).await;
        drop(second);
        server
            .until("it is gone", |load| load.waiting == 0 && load.requests == 1)
            .await;
    }
    first.chunk().await.expect("the first goes on");
    drop(first);
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn half_closed_client_gets_its_answer() {
    let model = Scripted::new("a few words for a client that reads on");
    let hold = Arc::clone(&model.hold);
    let server = TestServer::start(model).await;
    for stream in [false, true] {
        let held = hold_steps(&hold);
        let mut client = server.connect().await;
        client.post(CHAT, &chat(stream)).await;
        server.until("it runs", |load| load.generating == 1).await;
        let closed = client.stream.shutdown().await;
        closed.expect("a half-closed socket");
        drop(held);
        let mut answer = client.response().await;
        if answer.status == 100 {
            answer = client.response().await;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.contains("on"), "{answer:?}");
        if stream {
            assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
        }
        client.ends().await;
        server.is_healthy_and_idle().await;
    }
}

/// The end of the connection arrives with the request, before anything of it is read.
#[tokio::test]
async fn half_close_right_behind_a_request_is_answered() {
    let server = TestServer::start(Scripted::new("hello")).await;
    let mut long = chat(false);
    long["messages"][0]["content"] = "la ".repeat(100_000).into();
    for (request, status) in [
        (request("GET", "/health", &[], b""), 200),
        (post(CHAT, &chat(false)), 200),
        (post(CHAT, &chat(true)), 200),
        // Longer than the context.
        (post(CHAT, &long), 400),
    ] {
        let mut client = std::net::TcpStream::connect(server.address).expect("a connection");
        std::io::Write::write_all(&mut client, &request).expect("the kernel has room for it");
        client
            .shutdown(Shutdown::Write)
            .expect("a half-closed socket");
        client.set_nonblocking(true).expect("a socket for tokio");
        let mut client = HttpClient::over(TcpStream::from_std(client).expect("a socket"));
        let mut answer = client.response().await;
        if answer.status == 100 {
            answer = client.response().await;
        }
        assert_eq!(answer.status, status, "{answer:?}");
        client.ends().await;
        server.is_healthy_and_idle().await;
    }
}

/// It may be half a request.
#[tokio::test]
async fn half_close_within_a_body_ends_the_request() {
    let server = TestServer::start(long_reply()).await;
    let mut client = server.connect().await;
    let request = post(CHAT, &chat(false));
    client.send(&request[..request.len() - 3]).await;
    server
        .until("its head came", |load| load.requests == 1)
        .await;
    let closed = client.stream.shutdown().await;
    closed.expect("a half-closed socket");
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn disconnect_near_the_end_counts_once() {
    let words = "a few words";
    let server = TestServer::start(Scripted::new(words)).await;
    let mut client = server.connect().await;
    client.post(CHAT, &chat(true)).await;
    let stream = client.response().await.body;
    let frames = stream.matches("data: ").count();
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    for leave_after in 1..frames {
        let mut client = server.connect().await;
        client.post(CHAT, &chat(true)).await;
        client.head().await.expect("a head");
        let mut seen = 0;
        while seen < leave_after {
            let chunk = client.chunk().await.expect("frames");
            seen += chunk.matches("data: ").count();
        }
    }
    server.is_healthy_and_idle().await;
}

/// hyper detects a closed connection only when nothing is left to read, so a pipelined request
/// hides it. Writing detects it.
#[tokio::test]
async fn disconnect_with_pipelined_requests_is_detected() {
    let server = TestServer::start(long_reply()).await;
    let mut client = server.connect().await;
    let one = post(CHAT, &chat(true));
    client.send(&one.repeat(3)).await;
    client.begins_to_stream().await;
    drop(client);
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn disconnect_cancels_embeddings() {
    let model = Scripted::new("unheard");
    let held = hold_steps(&model.hold);
    let server = TestServer::start(model).await;
    let mut client = server.connect().await;
    let inputs = vec!["sing"; 64];
    let body = serde_json::json!({ "model": MODEL, "input": inputs });
    client.post("/v1/embeddings", &body).await;
    server.until("it runs", |load| load.requests == 1).await;
    drop(client);
    server.until("it is gone", |load| load.requests == 0).await;
    drop(held);
    server.is_healthy_and_idle().await;
}
