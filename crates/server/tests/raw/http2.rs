//! HTTP/2, known beforehand.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::scripted::Scripted;
use crate::world::{KEY, World, chat, config, talker};

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

async fn connect(world: &World, window: Option<u32>) -> Client {
    let stream = TcpStream::connect(world.address)
        .await
        .expect("a connection");
    handshake(stream, window).await
}

pub async fn ask(client: &mut Client, path: &str, body: &Value) -> Response<Incoming> {
    let request = Request::post(format!("http://localhost{path}"))
        .header("x-api-key", KEY)
        .body(Full::from(body.to_string()))
        .expect("a request");
    client.ready().await.expect("a connection");
    client.send_request(request).await.expect("an answer")
}

#[tokio::test]
async fn many_streams_of_one_connection_are_answered() {
    let world = World::start(Scripted::new("hello")).await;
    let client = connect(&world, None).await;
    let asked = (0..32).map(|index| {
        let mut client = client.clone();
        tokio::spawn(async move { ask(&mut client, CHAT, &chat(index % 2 == 0)).await })
    });
    let asked: Vec<_> = asked.collect();
    for answer in asked {
        let answer = answer.await.expect("no panic");
        assert_eq!(answer.status(), 200);
        assert!(answer.headers().contains_key("x-request-id"));
        answer.collect().await.expect("a whole body");
    }
    world.is_well().await;
}

#[tokio::test]
async fn a_stream_that_is_reset_cancels_only_itself() {
    let world = World::start(talker()).await;
    let mut client = connect(&world, None).await;
    let mut stays = ask(&mut client, CHAT, &chat(true)).await;
    let leaves = ask(&mut client, CHAT, &chat(true)).await;
    world.until("both run", |load| load.running == 2).await;
    drop(leaves);
    world.until("one is gone", |load| load.running == 1).await;
    stays.frame().await.expect("more").expect("a frame");
    // One that has no answer yet, likewise.
    let mut other = client.clone();
    let asking = tokio::spawn(async move { ask(&mut other, CHAT, &chat(false)).await });
    world.until("both run", |load| load.running == 2).await;
    asking.abort();
    world.until("one is gone", |load| load.running == 1).await;
    drop((stays, client));
    world.is_well().await;
}

#[tokio::test]
async fn a_stream_that_is_not_read_is_ended_and_its_neighbours_are_not() {
    let mut config = config();
    config.limits.write_timeout = Duration::from_millis(200);
    let world = World::with(talker(), config).await;
    let mut client = connect(&world, Some(1000)).await;
    let unread = ask(&mut client, CHAT, &chat(true)).await;
    let mut read = ask(&mut client, CHAT, &chat(true)).await;
    let reading = tokio::spawn(async move {
        let mut frames = 0;
        while let Some(Ok(_)) = read.frame().await {
            frames += 1;
        }
        frames
    });
    world.until("both run", |load| load.running == 2).await;
    world.until("one is ended", |load| load.running == 1).await;
    drop(unread);
    assert!(!reading.is_finished());
    drop(client);
    reading.abort();
    world.is_well().await;
}

#[tokio::test]
async fn a_stop_lets_streams_end() {
    let model = Scripted {
        delay: Duration::from_millis(5),
        ..Scripted::new("a few more words")
    };
    let mut world = World::start(model).await;
    let mut client = connect(&world, None).await;
    let answer = ask(&mut client, CHAT, &chat(true)).await;
    world.until("it runs", |load| load.running == 1).await;
    world.tell_to_stop();
    let mut refused = 0;
    while client.ready().await.is_ok() && refused == 0 {
        let answer = ask(&mut client, CHAT, &chat(false)).await;
        refused += usize::from(answer.status() == 503);
    }
    assert_eq!(refused, 1, "new work is refused while old work ends");
    let body = answer.collect().await.expect("a whole body").to_bytes();
    assert!(body.ends_with(b"data: [DONE]\n\n"), "{body:?}");
    drop(client);
    world.stopped().await;
}
