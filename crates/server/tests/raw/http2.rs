//! HTTP/2 with prior knowledge.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::scripted::{MODEL, Scripted, hold_steps};
use crate::test_server::{KEY, TIMEOUT, TestServer, chat, config, long_reply};

const CHAT: &str = "/v1/chat/completions";

pub type Client = SendRequest<Full<Bytes>>;

pub async fn handshake<S>(stream: S, window: Option<u32>) -> Client
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (client, connection) = Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .expect("a handshake");
    tokio::spawn(connection);
    client
}

async fn connect(server: &TestServer, window: Option<u32>) -> Client {
    let stream = TcpStream::connect(server.address)
        .await
        .expect("a connection");
    handshake(stream, window).await
}

pub async fn send(client: &mut Client, path: &str, body: &Value) -> Response<Incoming> {
    let request = Request::post(format!("http://localhost{path}"))
        .header("x-api-key", KEY)
        .body(Full::from(body.to_string()))
        .expect("a request");
    client.ready().await.expect("a connection");
    client.send_request(request).await.expect("an answer")
}

#[tokio::test]
async fn one_connection_serves_many_streams() {
    let server = TestServer::start(Scripted::new("hello")).await;
    let client = connect(&server, None).await;
    let requests = (0..32).map(|index| {
        let mut client = client.clone();
        tokio::spawn(async move { send(&mut client, CHAT, &chat(index % 2 == 0)).await })
    });
    let requests: Vec<_> = requests.collect();
    for answer in requests {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status(), 200);
        assert!(answer.headers().contains_key("x-request-id"));
        answer.collect().await.expect("a whole body");
    }
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn reset_cancels_only_its_stream() {
    let server = TestServer::start(long_reply()).await;
    let mut client = connect(&server, None).await;
    let mut stays = send(&mut client, CHAT, &chat(true)).await;
    let leaves = send(&mut client, CHAT, &chat(true)).await;
    server.until("both run", |load| load.running == 2).await;
    drop(leaves);
    server.until("one is gone", |load| load.running == 1).await;
    stays.frame().await.expect("more").expect("a frame");
    // So does a stream without an answer yet.
    let mut other = client.clone();
    let asking = tokio::spawn(async move { send(&mut other, CHAT, &chat(false)).await });
    server.until("both run", |load| load.running == 2).await;
    asking.abort();
    server.until("one is gone", |load| load.running == 1).await;
    drop((stays, client));
    server.is_healthy_and_idle().await;
}

#[tokio::test]
async fn unread_stream_is_ended_alone() {
    let mut config = config();
    config.limits.write_timeout = Duration::from_secs(1);
    let server = TestServer::with(long_reply(), config).await;
    // On a busy machine the reader may stall too: try again.
    let began = Instant::now();
    while !is_ended_alone(&server).await {
        assert!(began.elapsed() < TIMEOUT, "the other stream ends as well");
    }
}

/// Whether of two streams only the one that is not read is ended.
async fn is_ended_alone(server: &TestServer) -> bool {
    let mut client = connect(server, Some(1000)).await;
    let unread = send(&mut client, CHAT, &chat(true)).await;
    let mut read = send(&mut client, CHAT, &chat(true)).await;
    let reading = tokio::spawn(async move { while let Some(Ok(_)) = read.frame().await {} });
    server
        .until("one is ended", |load| load.generating < 2)
        .await;
    let is_alone = server.load().generating == 1 && !reading.is_finished();
    drop((unread, client));
    reading.abort();
    server.is_healthy_and_idle().await;
    is_alone
}

#[tokio::test]
async fn shutdown_lets_streams_end() {
    let model = Scripted::new("a few more words");
    let hold = Arc::clone(&model.hold);
    let mut server = TestServer::start(model).await;
    let held = hold_steps(&hold);
    let mut client = connect(&server, None).await;
    let mut streaming = client.clone();
    let answer = tokio::spawn(async move { send(&mut streaming, CHAT, &chat(true)).await });
    server.until("it runs", |load| load.generating == 1).await;
    server.request_stop();
    let mut refused = 0;
    let tokenize = json!({ "model": MODEL, "prompt": "la" });
    while client.ready().await.is_ok() && refused == 0 {
        let answer = send(&mut client, "/tokenize", &tokenize).await;
        refused += usize::from(answer.status() == 503);
    }
    assert_eq!(refused, 1, "new work is refused while old work ends");
    drop(held);
    let answer = answer.await.expect("no panic");
    let body = answer.collect().await.expect("a whole body").to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"), "{body:?}");
    drop(client);
    server.stopped().await;
}
