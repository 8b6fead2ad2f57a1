//! Bodies on their way in.

use std::pin::Pin;
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
    match gather(body, &app.config().limits).await {
        Ok(bytes) => {
            let request = Request::from_parts(parts, Body::from(bytes));
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
}

async fn gather(body: Body, limits: &Limits) -> Result<Bytes, ApiError> {
    // What the client says itself is believed when it is too much.
    if body.size_hint().lower() > limits.body_bytes as u64 {
        return Err(too_large(limits));
    }
    let whole = Limited::new(body, limits.body_bytes).collect();
    match timeout(limits.body_timeout, whole).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(limits)),
        Ok(Err(_)) => Err(ApiError::new(
            ErrorKind::InvalidRequest,
            "the request's body ended before it was whole, or is not framed as HTTP asks",
        )),
        Err(_) => Err(ApiError::new(
            ErrorKind::Timeout,
            "the request's body took too long to arrive",
        )),
    }
}

fn too_large(limits: &Limits) -> ApiError {
    let what = format!(
        "the request's body is larger than the {} bytes that this server takes",
        limits.body_bytes
    );
    ApiError::new(ErrorKind::TooLarge, what).code("request_too_large")
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
