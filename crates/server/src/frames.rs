//! Streams of JSON: server-sent events, and lines.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;

/// After this silence a comment keeps proxies from closing the stream.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// A comment, which clients ignore.
pub const PING: Bytes = Bytes::from_static(b": ping\n\n");

/// The last frame of OpenAI's streams.
pub const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A server-sent event, with a name if the dialect names events.
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

/// Wire types have string keys and finite numbers, so serialization does not fail.
fn write<T: Serialize>(frame: &mut BytesMut, data: &T) {
    if let Err(error) = serde_json::to_writer(frame.writer(), data) {
        tracing::error!("cannot serialize a frame: {error}");
    }
}

/// A response of server-sent events.
pub fn events(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    respond("text/event-stream; charset=utf-8", with_pings(frames))
}

/// A response of lines of JSON.
pub fn lines(frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    respond("application/x-ndjson", frames)
}

/// Marks a streamed response.
#[derive(Debug, Clone, Copy)]
pub struct Streamed;

fn respond(kind: &'static str, frames: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(frames.map(Ok::<_, Infallible>)));
    response.extensions_mut().insert(Streamed);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Turns off nginx's buffering.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn with_pings(frames: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> {
    stream::unfold(Box::pin(frames), |mut frames| async move {
        let frame = match tokio::time::timeout(PING_INTERVAL, frames.next()).await {
            Ok(frame) => frame?,
            Err(_) => PING,
        };
        Some((frame, frames))
    })
}
