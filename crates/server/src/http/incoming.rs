//! Bodies on their way in.

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

use crate::app::App;
use crate::config::Limits;
use crate::error::{ApiError, ErrorKind};

/// The layer that reads a body whole before its handler runs, within the limits of size and
/// time. It stands behind the one that asks for keys: strangers' bodies are not read.
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
    // What the client says itself is believed when it is too much.
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
    let room = limits.body_bytes.saturating_mul(AT_ONCE);
    let mut body = Limited::new(body, limits.body_bytes);
    let mut whole = all.begin();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            if error.is::<LengthLimitError>() {
                too_large(limits)
            } else {
                ApiError::new(
                    ErrorKind::InvalidRequest,
                    "the request's body ended before it was whole, or is not framed as HTTP asks",
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
        "the request's body is larger than the {} bytes that this server takes",
        limits.body_bytes
    );
    ApiError::new(ErrorKind::TooLarge, what).code("request_too_large")
}

/// Memory for so many bodies of the largest size, however many requests send theirs.
const AT_ONCE: usize = 8;

/// The bytes of all bodies that were received and not yet parsed. What is merely announced does
/// not count, so that nobody takes others' room without sending anything.
#[derive(Debug, Clone, Default)]
pub struct Bodies(Arc<AtomicUsize>);

/// One of them, which counts until it is dropped.
struct Whole {
    bytes: Vec<u8>,
    all: Bodies,
}

impl Bodies {
    fn begin(&self) -> Whole {
        Whole {
            bytes: Vec::new(),
            all: self.clone(),
        }
    }
}

impl Whole {
    /// Refuses at once where there is no room: if unfinished bodies waited for each other, all of
    /// them would wait in vain.
    fn add(&mut self, part: &[u8], room: usize) -> Result<(), ApiError> {
        let more = |held: usize| held.checked_add(part.len()).filter(|held| *held <= room);
        let counted = self.all.0.fetch_update(Relaxed, Relaxed, more);
        counted.map_err(|_| {
            let what = "the bodies of other requests take all the memory there is for them";
            ApiError::overloaded(what).code("too_many_bodies")
        })?;
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

impl AsRef<[u8]> for Whole {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.bytes.len(), Relaxed);
    }
}

/// A body that is left to the connection where it was not read to its end.
pub struct Followed {
    /// None when it was.
    body: Option<Incoming>,
    rest: Rest,
}

/// What nobody read of a body, once its reader is gone.
#[derive(Clone, Default)]
pub struct Rest(Arc<Mutex<Option<Incoming>>>);

/// A rest this short is skipped, if it comes soon, so that the connection can go on.
const SHORT: u64 = 64 << 10;
const SOON: Duration = Duration::from_millis(100);

impl Rest {
    /// Whether the request's end was reached, by whoever read it or here. To read from a client
    /// that asks first whether it should send would be to say yes.
    pub async fn skip(self, asks_first: bool) -> bool {
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
        is_short && !asks_first && matches!(timeout(SOON, skip).await, Ok(Ok(())))
    }
}

impl Followed {
    pub fn new(body: Incoming) -> (Self, Rest) {
        let rest = Rest::default();
        let followed = Self {
            body: Some(body),
            rest: rest.clone(),
        };
        (followed, rest)
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        *self.rest.0.lock().unwrap_or_else(PoisonError::into_inner) = body;
    }
}

impl HttpBody for Followed {
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
