//! Memory after a burst of clients. A process of its own: other tests would disturb the measurement.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

#[path = "../../src/testing/scripted.rs"]
#[allow(dead_code, reason = "the crate's own tests use more of it")]
mod scripted;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_server::config::{Config, ModelConfig};
use loquat_server::{Server, resident_bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use scripted::{MODEL, Scripted};

const CLIENTS: usize = 256;
/// The weights of a small model. The fake one has none, and the server's tables would count too much.
const WEIGHTS: usize = 64 << 20;

/// Only a hang takes longer.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Large bodies at once, and the size of each.
const LARGE_CLIENTS: usize = 8;
const LARGE_BODY: usize = 24 << 20;

/// A prompt of 8 KiB, answered.
async fn converse(address: SocketAddr) {
    let body = serde_json::json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "word ".repeat(1600) }],
        "max_tokens": 8,
    });
    let answer = post(address, &body.to_string()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A body of many messages, refused or answered.
async fn send_large(address: SocketAddr, body: Arc<str>) {
    let answer = post(address, &body).await;
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}

fn large_body() -> Arc<str> {
    let message = r#"{"role":"user","content":"word word word word"},"#;
    let messages = message.repeat(LARGE_BODY / message.len());
    let messages = messages.trim_end_matches(',');
    format!(r#"{{"model":"{MODEL}","messages":[{messages}]}}"#).into()
}

async fn post(address: SocketAddr, body: &str) -> String {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("a server");
    stream.write_all(body.as_bytes()).await.expect("a server");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    answer
}

fn resident() -> u64 {
    resident_bytes().expect("Linux reports it")
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_returns_to_idle_level() {
    let _weights = vec![1_u8; WEIGHTS];
    let model = Scripted {
        context: 1 << 16,
        ..Scripted::new("hello")
    };
    let mut config = Config {
        models: vec![ModelConfig::new(MODEL, "nowhere")],
        ..Config::default()
    };
    config.server.port = 0;
    config.limits.header_timeout = TIMEOUT;
    let server = Server::bind(config, Arc::new(model)).await.expect("a port");
    let address = server.address();
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(server.serve(async { _ = stopped.await }));

    let large = large_body();
    converse(address).await;
    loquat_server::trim_memory();
    let idle = resident();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| tokio::spawn(converse(address)))
        .collect();
    for client in clients {
        client.await.expect("an answer");
    }
    let clients: Vec<_> = (0..LARGE_CLIENTS)
        .map(|_| tokio::spawn(send_large(address, large.clone())))
        .collect();
    for client in clients {
        client.await.expect("an answer");
    }
    // The server trims by itself, once it is idle.
    let deadline = Instant::now() + TIMEOUT;
    let busy = resident();
    while resident() > idle + idle / 10 {
        let now = resident();
        assert!(
            Instant::now() < deadline,
            "{idle} bytes before, {busy} then, {now} after"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!(
        "{idle} bytes before, {busy} at the end of the load, {} after",
        resident()
    );
    drop(stop);
    served.await.expect("no panic");
}
