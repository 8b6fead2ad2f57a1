//! Streams of JSON over HTTP: server-sent events, and a line each.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;

/// How long a stream of events may be silent before a comment keeps proxies from closing it.
const QUIET: Duration = Duration::from_secs(15);
const PING: &[u8] = b": ping\n\n";

/// What ends OpenAI's streams.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// `data: …`, under a name where the dialect names its events.
pub fn event<T: Serialize>(name: Option<&str>, data: &T) -> Bytes {
    let mut frame = BytesMut::with_capacity(256);
    if let Some(name) = name {
        frame.put_slice(b"event: ");
        frame.put_slice(name.as_bytes());
        frame.put_u8(b'\n');
    }
    frame.put_slice(b"data: ");
    write(&mut frame, data);
    frame.put_slice(b"\n\n");
    frame.freeze()
}

/// One line of JSON.
pub fn line<T: Serialize>(data: &T) -> Bytes {
    let mut frame = BytesMut::with_capacity(256);
    write(&mut frame, data);
    frame.put_u8(b'\n');
    frame.freeze()
}

/// Our wire types have string keys and finite numbers, so that nothing fails to serialize.
fn write<T: Serialize>(frame: &mut BytesMut, data: &T) {
    if let Err(error) = serde_json::to_writer(frame.writer(), data) {
        tracing::error!("a frame does not serialize: {error}");
    }
}

/// A response of server-sent events.
pub fn events(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    respond("text/event-stream; charset=utf-8", kept_alive(frames))
}

/// A response of lines of JSON.
pub fn lines(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    respond("application/x-ndjson", frames)
}

/// Marks a response that goes out as it is made.
#[derive(Debug, Clone, Copy)]
pub struct Streamed;

fn respond(kind: &'static str, frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(frames.map(Ok::<_, Infallible>)));
    response.extensions_mut().insert(Streamed);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // What nginx would otherwise hold back until it has a buffer's worth.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn kept_alive(frames: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> {
    stream::unfold(Box::pin(frames), |mut frames| async move {
        let frame = match tokio::time::timeout(QUIET, frames.next()).await {
            Ok(frame) => frame?,
            Err(_) => Bytes::from_static(PING),
        };
        Some((frame, frames))
    })
}
