//! Many requests and connections.

use std::time::Duration;

use crate::scripted::Scripted;
use crate::test_server::{TestServer, chat};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_requests_are_answered_in_full() {
    let model = Scripted {
        delay: Duration::from_millis(1),
        ..Scripted::new("all the words that there are")
    };
    let server = TestServer::start(model).await;
    let mut wires = Vec::new();
    for index in 0..32 {
        let mut client = server.connect().await;
        client.post(CHAT, &chat(index % 2 == 0)).await;
        wires.push(client);
    }
    for (index, client) in wires.iter_mut().enumerate() {
        let response = client.response().await;
        assert_eq!(response.status, 200, "{response:?}");
        match index % 2 {
            0 => assert!(response.body.ends_with("data: [DONE]\n\n"), "{response:?}"),
            _ => assert_eq!(
                response.json()["choices"][0]["message"]["content"],
                "all the words that there are"
            ),
        }
    }
    server.is_healthy_and_idle().await;
}

/// Both ends are in this process, which may be limited to 1,024 open files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_do_not_block_requests() {
    let server = TestServer::start(Scripted::new("hello")).await;
    let mut idle = Vec::new();
    for _ in 0..idle_connections() {
        idle.push(server.connect().await);
    }
    let mut client = server.connect().await;
    client.post(CHAT, &chat(true)).await;
    assert_eq!(client.response().await.status, 200);
    // Idle connections are served too.
    for client in idle.iter_mut().step_by(100) {
        client.get("/health").await;
        assert_eq!(client.response().await.status, 200);
    }
    drop(idle);
    server.is_healthy_and_idle().await;
}

fn idle_connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(256);
    // Two ends each; other tests run at the same time.
    1000.min(files / 4)
}
