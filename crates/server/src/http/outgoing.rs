//! Response bodies.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

use super::watch::Watch;
use crate::frames;

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

/// A response body that can be ended from outside. hyper polls for the next frame only when the
/// client has taken the last; the socket does not notice a closed HTTP/2 window.
#[derive(Debug)]
pub struct BodySlot {
    state: Mutex<BodySlotState>,
}

#[derive(Debug)]
struct BodySlotState {
    /// `None` once it was ended.
    body: Option<Body>,
    /// When the last frame was returned, unless hyper has polled since.
    returned_at: Option<Instant>,
}

/// The body that hyper sees.
pub struct Outgoing {
    slot: Arc<BodySlot>,
    /// Of a stream of events, which may have comments between them.
    pings: Option<Arc<Watch>>,
}

impl Outgoing {
    pub fn new(body: Body, pings: Option<Arc<Watch>>) -> (Self, Arc<BodySlot>) {
        let slot = Arc::new(BodySlot {
            state: Mutex::new(BodySlotState {
                body: Some(body),
                returned_at: None,
            }),
        });
        let shared = Arc::clone(&slot);
        (Self { slot, pings }, shared)
    }
}

impl BodySlot {
    /// Dropping the body cancels the request.
    pub fn end_if_unread(&self, limit: Duration, now: Instant) {
        let mut state = self.lock();
        let unread = state
            .returned_at
            .is_some_and(|returned_at| now.saturating_duration_since(returned_at) >= limit);
        if unread {
            state.body = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BodySlotState> {
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
        let mut polled = Pin::new(body).poll_frame(context);
        let wants_ping = || self.pings.as_ref().is_some_and(|watch| watch.wants_ping());
        if polled.is_pending() && wants_ping() {
            polled = Poll::Ready(Some(Ok(Frame::data(frames::PING))));
        }
        state.returned_at = matches!(polled, Poll::Ready(Some(Ok(_)))).then(Instant::now);
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
