//! Request bodies.

use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::time::timeout;

use super::watch::Watch;
use crate::app::App;
use crate::config::Limits;
use crate::error::{ApiError, ErrorKind};

/// The layer that reads a body whole before its handler runs, within the limits of size and
/// time. It runs after authentication: bodies of unauthenticated requests are not read.
pub async fn read_body(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match gather(body, &app.config().limits, &app.bodies).await {
        Ok(bytes) => {
            let request = Request::from_parts(parts, Body::from(bytes));
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn gather(body: Body, limits: &Limits, all: &Bodies) -> Result<Bytes, ApiError> {
    // An announced size that is too large is refused before reading.
    if body.size_hint().lower() > limits.body_bytes as u64 {
        return Err(too_large(limits));
    }
    let whole = timeout(limits.body_timeout, collect(body, limits, all)).await;
    whole.unwrap_or_else(|_| {
        Err(ApiError::new(
            ErrorKind::Timeout,
            "the request's body took too long to arrive",
        ))
    })
}

async fn collect(body: Body, limits: &Limits, all: &Bodies) -> Result<Bytes, ApiError> {
    let room = limits.body_bytes.saturating_mul(MAX_BODIES);
    let mut body = Limited::new(body, limits.body_bytes);
    let mut whole = all.begin();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                too_large(limits)
            } else {
                ApiError::new(
                    ErrorKind::InvalidRequest,
                    "the request's body ended early or has invalid HTTP framing",
                )
            }
        })?;
        if let Ok(part) = frame.into_data() {
            whole.add(&part, room)?;
        }
    }
    Ok(Bytes::from_owner(whole))
}

fn too_large(limits: &Limits) -> ApiError {
    let what = format!(
        "the request's body is larger than this server's limit of {} bytes",
        limits.body_bytes
    );
    ApiError::new(ErrorKind::TooLarge, what).code("request_too_large")
}

/// All unparsed bodies together may take this many times the largest body.
const MAX_BODIES: usize = 8;

/// The bytes of all bodies that were received and not yet parsed. Announced sizes do not count, so
/// that a client cannot reserve memory without sending anything.
#[derive(Debug, Clone, Default)]
pub struct Bodies(Arc<AtomicUsize>);

/// One body, counted until it is dropped.
struct CountedBody {
    bytes: Vec<u8>,
    all: Bodies,
}

impl Bodies {
    fn begin(&self) -> CountedBody {
        CountedBody {
            bytes: Vec::new(),
            all: self.clone(),
        }
    }
}

impl CountedBody {
    /// Refuses at once if there is no room: unfinished bodies that waited for each other would
    /// deadlock.
    fn add(&mut self, part: &[u8], room: usize) -> Result<(), ApiError> {
        let more = |held: usize| held.checked_add(part.len()).filter(|held| *held <= room);
        let counted = self.all.0.fetch_update(Relaxed, Relaxed, more);
        counted.map_err(|_| {
            let what =
                "the bodies of other requests use all memory reserved for bodies; try again later";
            ApiError::overloaded(what).code("too_many_bodies")
        })?;
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedBody {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// A body that returns to the connection if it was not read to its end.
pub struct TrackedBody {
    /// `None` once it was read to its end.
    body: Option<Incoming>,
    rest: UnreadBody,
    watch: Arc<Watch>,
}

/// The unread rest of a body, once its reader is dropped.
#[derive(Clone, Default)]
pub struct UnreadBody(Arc<Mutex<Option<Incoming>>>);

/// A rest this short is read and discarded if it arrives soon, to keep the connection alive.
const SHORT: u64 = 64 << 10;
const SOON: Duration = Duration::from_millis(100);

impl UnreadBody {
    /// Whether the end of the body was reached, by its reader or here. A client that sent
    /// `Expect: 100-continue` would take reading as permission to send.
    pub async fn skip(self, expects_continue: bool) -> bool {
        let rest = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(rest) = rest else {
            return true;
        };
        let is_short = rest.size_hint().upper().is_some_and(|size| size <= SHORT);
        let skip = async {
            let mut rest = rest;
            while let Some(frame) = rest.frame().await {
                frame?;
            }
            Ok::<_, hyper::Error>(())
        };
        is_short && !expects_continue && matches!(timeout(SOON, skip).await, Ok(Ok(())))
    }
}

impl TrackedBody {
    pub fn new(body: Incoming, watch: Arc<Watch>) -> (Self, UnreadBody) {
        if body.is_end_stream() {
            watch.body_read();
        }
        let rest = UnreadBody::default();
        let followed = Self {
            body: Some(body),
            rest: rest.clone(),
            watch,
        };
        (followed, rest)
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.body = None;
            self.watch.body_read();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.body.as_ref().map(HttpBody::size_hint);
        hint.unwrap_or_else(|| SizeHint::with_exact(0))
    }
}
