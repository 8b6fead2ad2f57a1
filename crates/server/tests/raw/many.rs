//! Many at once.

use std::time::Duration;

use crate::scripted::Scripted;
use crate::world::{World, chat};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_at_once_are_each_answered_in_full() {
    let model = Scripted {
        delay: Duration::from_millis(1),
        ..Scripted::new("all the words that there are")
    };
    let world = World::start(model).await;
    let mut wires = Vec::new();
    for index in 0..32 {
        let mut wire = world.connect().await;
        wire.post(CHAT, &chat(index % 2 == 0)).await;
        wires.push(wire);
    }
    for (index, wire) in wires.iter_mut().enumerate() {
        let response = wire.response().await;
        assert_eq!(response.status, 200, "{response:?}");
        match index % 2 {
            0 => assert!(response.body.ends_with("data: [DONE]\n\n"), "{response:?}"),
            _ => assert_eq!(
                response.json()["choices"][0]["message"]["content"],
                "all the words that there are"
            ),
        }
    }
    world.is_well().await;
}

/// Both ends live in this process, which may have no more than 1,024 files open; a machine that
/// allows more is asked for more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_in_nobodys_way() {
    let world = World::start(Scripted::new("hello")).await;
    let mut idle = Vec::new();
    for _ in 0..idle_connections() {
        idle.push(world.connect().await);
    }
    let mut wire = world.connect().await;
    wire.post(CHAT, &chat(true)).await;
    assert_eq!(wire.response().await.status, 200);
    // Those that waited are served as well.
    for wire in idle.iter_mut().step_by(100) {
        wire.get("/health").await;
        assert_eq!(wire.response().await.status, 200);
    }
    drop(idle);
    world.is_well().await;
}

fn idle_connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(256);
    // Two ends each, and other tests at the same time.
    1000.min(files / 4)
}
