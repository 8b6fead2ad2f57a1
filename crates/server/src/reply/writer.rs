//! Renders a reply in one dialect, as a stream or in one piece.

use axum::Json;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt, stream};
use loquat_engine::Usage;
use serde::Serialize;

use super::{ActiveReply, ChoiceDelta};
use crate::error::ApiError;
use crate::frames;
use crate::wire::with_ignored_header;

/// A dialect's form of a reply.
pub trait ReplyWriter: Send + 'static {
    /// The reply in one piece.
    type Answer: Serialize;
    /// Whether frames are lines of JSON; otherwise they are server-sent events.
    const LINES: bool = false;

    /// The first frames of a stream.
    fn start(&mut self) -> Bytes {
        Bytes::new()
    }

    /// Consumes a delta and returns its frames.
    fn write(&mut self, delta: ChoiceDelta) -> Bytes;

    /// The last frames, after every choice has ended.
    fn finish(&mut self) -> Bytes {
        Bytes::new()
    }

    /// The last frames of a stream that failed: the usage of what was delivered, the error, and the
    /// dialect's end of a stream.
    fn fail(&mut self, error: &ApiError, usage: Usage) -> Bytes;

    /// The whole reply, after its last delta.
    fn into_answer(self) -> Result<Self::Answer, ApiError>;
}

/// Answers with the reply, as a stream or in one piece. `ignored` are fields that had no effect.
pub async fn respond<W: ReplyWriter>(
    reply: ActiveReply,
    writer: W,
    streams: bool,
    ignored: &[&'static str],
) -> Result<Response, ApiError> {
    let response = if !streams {
        Json(collect(reply, writer).await?).into_response()
    } else if W::LINES {
        frames::lines(stream(reply, writer))
    } else {
        frames::events(stream(reply, writer))
    };
    Ok(with_ignored_header(response, ignored))
}

/// Waits for the whole reply.
async fn collect<W: ReplyWriter>(
    mut reply: ActiveReply,
    mut writer: W,
) -> Result<W::Answer, ApiError> {
    while let Some(delta) = reply.next().await {
        writer.write(delta?);
    }
    writer.into_answer()
}

/// The frames of the reply as it is generated. Dropping the stream cancels the reply.
fn stream<W: ReplyWriter>(
    reply: ActiveReply,
    mut writer: W,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let start = writer.start();
    let rest = stream::unfold(Some((reply, writer)), |active| async {
        let (mut reply, mut writer) = active?;
        let (frames, ended) = match reply.next().await {
            Some(Ok(delta)) => (writer.write(delta), false),
            Some(Err(error)) => (writer.fail(&error.in_stream(), reply.usage()), true),
            None => (writer.finish(), true),
        };
        Some((frames, (!ended).then_some((reply, writer))))
    });
    // Not every token completes a frame.
    let frames = stream::once(std::future::ready(start)).chain(rest);
    frames.filter(|frame| std::future::ready(!frame.is_empty()))
}

/// Collects server-sent events. Of a reply in one piece it collects none.
#[derive(Default)]
pub struct EventFrames {
    enabled: bool,
    frames: BytesMut,
}

impl EventFrames {
    pub fn new(enabled: bool) -> Self {
        Self {
            enabled,
            frames: BytesMut::new(),
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    pub fn push<T: Serialize>(&mut self, name: Option<&str>, data: &T) {
        if self.enabled {
            self.frames.extend_from_slice(&frames::event(name, data));
        }
    }

    /// The frames since the last call.
    pub fn take(&mut self) -> Bytes {
        self.frames.split().freeze()
    }
}
