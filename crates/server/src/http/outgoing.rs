//! Answers on their way out.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Keeps something until the response's body has ended or was dropped.
pub fn hold<T: Send + Unpin + 'static>(response: Response, held: T) -> Response {
    response.map(|body| Body::new(Held { body, _held: held }))
}

struct Held<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer that can be ended from outside. hyper asks for the next part only when the client
/// has taken the last; of an HTTP/2 stream whose window is shut the socket knows nothing.
#[derive(Debug)]
pub struct Slot {
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    /// Gone when it was ended.
    body: Option<Body>,
    /// When the last part was given out, unless the next was asked for since.
    given: Option<Instant>,
}

/// The body that hyper sees.
pub struct Outgoing {
    slot: Arc<Slot>,
}

impl Outgoing {
    pub fn new(body: Body) -> (Self, Arc<Slot>) {
        let slot = Arc::new(Slot {
            state: Mutex::new(SlotState {
                body: Some(body),
                given: None,
            }),
        });
        let shared = Arc::clone(&slot);
        (Self { slot }, shared)
    }
}

impl Slot {
    /// Dropping the body cancels what it comes from.
    pub fn end_when_untaken(&self, limit: Duration, now: Instant) {
        let mut state = self.lock();
        let untaken = state
            .given
            .is_some_and(|given| now.saturating_duration_since(given) >= limit);
        if untaken {
            state.body = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = self.slot.lock();
        let Some(body) = &mut state.body else {
            let unread = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Poll::Ready(Some(Err(axum::Error::new(unread))));
        };
        let polled = Pin::new(body).poll_frame(context);
        state.given = matches!(polled, Poll::Ready(Some(Ok(_)))).then(Instant::now);
        polled
    }

    fn is_end_stream(&self) -> bool {
        let state = self.slot.lock();
        state.body.as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.slot.lock();
        state
            .body
            .as_ref()
            .map_or_else(SizeHint::new, HttpBody::size_hint)
    }
}
