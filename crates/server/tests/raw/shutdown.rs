//! Shutdown.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_server::Server;
use loquat_server::config::Scope;
use tokio::net::TcpStream;

use crate::http_client::{HttpClient, post};
use crate::scripted::{MODEL, Scripted, Stuck, hold_steps};
use crate::test_server::{TIMEOUT, TestServer, chat, config, long_reply};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn running_requests_end_and_new_are_refused() {
    let model = Scripted::new("a few words before the end");
    let hold = Arc::clone(&model.hold);
    let mut server = TestServer::start(model).await;
    let held = hold_steps(&hold);
    let mut streaming = server.connect().await;
    streaming.post(CHAT, &chat(true)).await;
    let mut waiting = server.connect().await;
    waiting.post(CHAT, &chat(false)).await;
    let mut kept = server.connect().await;
    kept.get("/health").await;
    assert_eq!(kept.response().await.status, 200);
    server.until("both run", |load| load.generating == 2).await;

    server.request_stop();
    let began = Instant::now();
    while TcpStream::connect(server.address).await.is_ok() {
        assert!(began.elapsed() < TIMEOUT, "it still listens");
    }
    kept.post(CHAT, &chat(false)).await;
    let response = kept.response().await;
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("connection"), Some("close"));
    assert_eq!(response.header("retry-after"), Some("1"));
    assert_eq!(response.json()["error"]["type"], "overloaded_error");
    kept.ends().await;

    drop(held);
    let answer = waiting.response().await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = streaming.response().await;
    assert!(answer.body.ends_with("data: [DONE]\n\n"), "{answer:?}");
    streaming.ends().await;
    server.stopped().await;
}

async fn rest_of(client: &mut HttpClient) -> String {
    let mut rest = String::new();
    loop {
        match client.chunk().await.expect("a whole stream").as_str() {
            "" => return rest,
            chunk => rest.push_str(chunk),
        }
    }
}

#[tokio::test]
async fn requests_past_the_timeout_are_ended() {
    let mut config = config();
    config.server.shutdown_timeout = Duration::from_millis(100);
    let mut server = TestServer::with(long_reply(), config).await;
    let mut streams = Vec::new();
    for path in [CHAT, "/v1/messages", "/api/chat"] {
        let mut body = chat(true);
        if path == "/v1/messages" {
            body["max_tokens"] = 1000.into();
        }
        let mut client = server.connect().await;
        client.post(path, &body).await;
        client.begins_to_stream().await;
        streams.push(client);
    }
    let mut whole = server.connect().await;
    whole.post(CHAT, &chat(false)).await;
    server.until("all run", |load| load.running == 4).await;

    server.request_stop();
    let response = whole.response().await;
    assert_eq!(response.status, 503, "{response:?}");
    for (client, shape) in streams.iter_mut().zip([
        "data: {\"error\":",
        "event: error\ndata: {\"type\":\"error\"",
        "{\"error\":",
    ]) {
        let rest = rest_of(client).await;
        assert!(rest.contains(shape), "{rest}");
        assert!(rest.contains("the server is stopping"), "{rest}");
        client.ends().await;
    }
    server.stopped().await;
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let mut server = TestServer::start(Scripted::new("hello")).await;
    let _silent = server.connect().await;
    let mut half = server.connect().await;
    half.send(b"GET /health HT").await;
    let mut half_body = server.connect().await;
    let request = post(CHAT, &chat(false));
    half_body.send(&request[..request.len() - 3]).await;
    server
        .until("its head came", |load| load.requests == 1)
        .await;
    drop(half_body);
    let mut kept = server.connect().await;
    kept.get("/health").await;
    assert_eq!(kept.response().await.status, 200);
    server
        .until("nothing runs", |load| load.requests == 0)
        .await;
    server.request_stop();
    kept.ends().await;
    server.stopped().await;
}

#[tokio::test]
async fn loading_model_does_not_delay_shutdown() {
    let (stuck, _let_go) = Stuck::new();
    let mut config = config();
    config.models[0].preload = true;
    let mut server = TestServer::with(stuck, config).await;
    let mut client = server.connect().await;
    loop {
        client.get(&format!("/v1/models/{MODEL}")).await;
        if client.response().await.json()["state"] == "loading" {
            break;
        }
    }
    server.request_stop();
    server.stopped().await;
}

#[tokio::test]
async fn shutdown_waits_only_for_model_requests() {
    let mut config = config();
    config.keys[0].scopes = vec![Scope::Admin];
    config.server.shutdown_timeout = 2 * TIMEOUT;
    config.limits.body_timeout = 2 * TIMEOUT;
    let mut server = TestServer::with(Scripted::new("hello"), config).await;
    let mut operator = server.connect().await;
    let request = post("/admin/v1/cache/clear", &chat(false));
    operator.send(&request[..request.len() - 3]).await;
    server
        .until("its head came", |load| load.requests == 1)
        .await;
    server.request_stop();
    server.stopped().await;
}

/// Set in the process that hangs.
const HANGING: &str = "LOQUAT_TEST_HANGING_SERVER";

/// Neither needs a thread of the server that still runs.
#[cfg(unix)]
#[test]
fn hanging_process_ends_after_its_signals() {
    if std::env::var_os(HANGING).is_some() {
        return serve_until_hung();
    }
    for signals in [&["TERM"][..], &["TERM", "INT"]] {
        let test = std::env::current_exe().expect("this program");
        let mut child = Command::new(test)
            .args([
                "--exact",
                "shutdown::hanging_process_ends_after_its_signals",
            ])
            .arg("--nocapture")
            .env(HANGING, "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.contains(HANGING)), "it serves");
        for signal in signals {
            let id = child.id().to_string();
            let sent = Command::new("kill").args(["-s", signal, &id]).status();
            assert!(sent.expect("kill").success());
        }
        assert!(ends(&mut child), "it still runs after {signals:?}");
    }
}

/// Whether the process ends by itself, with success. One that does not is killed.
fn ends(child: &mut Child) -> bool {
    let began = Instant::now();
    while began.elapsed() < TIMEOUT {
        if let Some(status) = child.try_wait().expect("a child") {
            return status.success();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().expect("a child");
    child.wait().expect("a child");
    false
}

/// A server whose only async thread blocks for ever once it has answered.
fn serve_until_hung() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut config = config();
        config.server.shutdown_timeout = Duration::ZERO;
        let server = Server::bind(config, Arc::new(Scripted::new("hello"))).await;
        let server = server.expect("a port");
        let address = server.address();
        tokio::spawn(async move {
            let mut client = HttpClient::connect(address).await;
            client.get("/health").await;
            assert_eq!(client.response().await.status, 200);
            println!("{HANGING}");
            loop {
                std::thread::park();
            }
        });
        server.run().await.expect("signals");
    });
}
