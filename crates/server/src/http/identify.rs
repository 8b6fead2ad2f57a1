//! The outermost layer: gives every request an id, and logs it when it ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::X_CONTENT_TYPE_OPTIONS;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use hyper::body::{Frame, SizeHint};
use tracing::{Instrument, Span};

use crate::app::App;
use crate::caller::{Caller, Notes};
use crate::error::ApiError;
use crate::frames::Streamed;
use crate::metrics::SocketClock;
use crate::telemetry;
use crate::wire::write_ignored_header;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// The most tokens of a reply, if the request's limit exceeds the room that its prompt leaves.
pub const MAX_TOKENS_HEADER: HeaderName = HeaderName::from_static("x-loquat-max-tokens");
/// The model that serves a request for an unknown one.
pub const MODEL_HEADER: HeaderName = HeaderName::from_static("x-loquat-model");
/// `joined` if the template does not take the request's later system messages, and they were joined
/// with the first.
pub const SYSTEM_HEADER: HeaderName = HeaderName::from_static("x-loquat-system");
/// Longer ids are replaced.
const LONGEST_ID: usize = 128;

/// Sets a request's id and caller.
pub async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let caller = caller(&app, &request);
    let span = telemetry::request_span(&request, &caller);
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut line = AccessLogLine {
        method: request.method().clone(),
        path: request.uri().path().into(),
        status: None,
        caller: caller.clone(),
        span: span.clone(),
    };
    request.extensions_mut().insert(caller);
    let response = next.run(request).instrument(span.clone()).await;

    let streamed = response.extensions().get::<Streamed>().is_some();
    if let (Some(clock), false) = (&line.caller.clock, streamed) {
        clock.forget();
    }
    let status = response.status();
    line.status = Some(status);
    telemetry::answered(&span, status);
    let route = route.as_ref().map_or("none", MatchedPath::as_str);
    app.metrics.answered(route, &line.method, status);
    let mut response = set_id(response, &line.caller.request_id);
    let notes = &line.caller.notes;
    write_ignored_header(
        &mut response,
        notes.take_ignored(),
        &line.path,
        &app.ignored,
    );
    let headers = response.headers_mut();
    write_notes(headers, notes);
    headers
        .entry(X_CONTENT_TYPE_OPTIONS)
        .or_insert(HeaderValue::from_static("nosniff"));
    response.map(|body| Body::new(LoggedBody { body, line }))
}

fn caller(app: &App, request: &Request) -> Caller {
    let request_id = valid_id(request.headers());
    let request_id = request_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string().into());
    let mut caller = Caller::new(request_id);
    let limit = app.config().limits.request_timeout;
    caller.deadline = limit.and_then(|limit| caller.received.checked_add(limit));
    caller.clock = request.extensions().get::<Arc<SocketClock>>().cloned();
    caller
}

/// The client's own id if it is valid in a header and in a log.
fn valid_id(headers: &HeaderMap) -> Option<Arc<str>> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let valid = (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic());
    valid.then(|| id.into())
}

/// Names what differs from the request.
fn write_notes(headers: &mut HeaderMap, notes: &Notes) {
    if let Some(limit) = notes.max_tokens() {
        headers.insert(MAX_TOKENS_HEADER, HeaderValue::from(limit));
    }
    if let Some(Ok(model)) = notes.substitute().map(HeaderValue::from_str) {
        headers.insert(MODEL_HEADER, model);
    }
    if notes.joins_system() {
        headers.insert(SYSTEM_HEADER, HeaderValue::from_static("joined"));
    }
}

fn set_id(mut response: Response, request_id: &str) -> Response {
    if let Ok(id) = HeaderValue::from_str(request_id) {
        let headers = response.headers_mut();
        headers.insert(ANTHROPIC_REQUEST_ID, id.clone());
        headers.insert(REQUEST_ID, id);
    }
    response
}

/// The access log line, written on drop.
struct AccessLogLine {
    method: Method,
    path: Box<str>,
    /// `None` if the client left before there was a status.
    status: Option<StatusCode>,
    caller: Caller,
    /// Has the request's id.
    span: Span,
}

impl Drop for AccessLogLine {
    fn drop(&mut self) {
        let Self {
            method,
            path,
            status,
            caller,
            span,
        } = self;
        let status = status.map_or(0, |status| status.as_u16());
        let seconds = caller.received.elapsed().as_secs_f64();
        let key = caller.notes.key.get();
        let model = caller.notes.model.get();
        // Polled every few seconds; not interesting unless they fail.
        let routine = path.starts_with("/health") || matches!(&**path, "/metrics" | "/stats");
        if routine && status == 200 {
            tracing::debug!(parent: &*span, %method, path, status, seconds, key, "request");
            return;
        }
        let generated = caller.notes.generated.lock();
        let generated = generated.unwrap_or_else(PoisonError::into_inner);
        let generated = generated.as_ref();
        tracing::info!(
            parent: &*span,
            %method,
            path,
            status,
            seconds,
            key,
            model,
            outcome = generated.map(|all| all.outcome.as_str()),
            finish_reason = generated.and_then(|all| all.finish_reason),
            prompt_tokens = generated.map(|all| all.usage.prompt_tokens),
            cached_tokens = generated.map(|all| all.usage.cached_tokens),
            tokens = generated.map(|all| all.usage.completion_tokens),
            first_token_seconds = generated.and_then(|all| Some(all.first_token?.as_secs_f64())),
            "request"
        );
    }
}

/// A body that runs in the request's span and whose panic ends only this response.
struct LoggedBody {
    body: Body,
    /// Dropped after the body, whose end completes the line.
    line: AccessLogLine,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let _entered = this.line.span.enter();
        let body = Pin::new(&mut this.body);
        // A body that panicked is not polled again.
        catch_unwind(AssertUnwindSafe(|| body.poll_frame(context))).unwrap_or_else(|panic| {
            let what = panic_message(&*panic);
            tracing::error!("a response was aborted: {what}");
            let error = std::io::Error::other("the response was aborted");
            Poll::Ready(Some(Err(axum::Error::new(error))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The layer that turns a handler's panic into an error response.
pub async fn catch_panics(request: Request, next: Next) -> Response {
    let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    answered.unwrap_or_else(|panic| {
        let what = format!("a handler panicked: {}", panic_message(&*panic));
        ApiError::internal(&what).into_response()
    })
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::testing::Harness;

    #[tokio::test]
    async fn valid_ids_return_and_others_are_replaced() {
        let server = Harness::saying("hello");
        let long = "x".repeat(LONGEST_ID + 1);
        for (sent, kept) in [
            ("req-1", true),
            (&long[1..], true),
            (&long[..], false),
            ("two words", false),
            ("", false),
            ("\u{e9}", false),
        ] {
            let request = Request::get("/v1/nothing").header(REQUEST_ID, sent);
            let reply = server.send(request.body(Body::empty()).unwrap()).await;
            let headers = reply.response.headers();
            let given = headers[REQUEST_ID].to_str().unwrap();
            assert_eq!(given == sent, kept, "{sent:?} became {given:?}");
            assert_eq!(headers[ANTHROPIC_REQUEST_ID], given);
            assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }

    #[tokio::test]
    async fn panic_becomes_error_in_dialect() {
        use axum::middleware::{from_fn, from_fn_with_state};
        use http_body_util::BodyExt;
        use tower::ServiceExt;

        let app = Harness::saying("hello").app;
        let router = axum::Router::<Arc<App>>::new()
            .route("/v1/messages", axum::routing::get(|| async { broken() }))
            .layer(from_fn(catch_panics))
            .layer(from_fn_with_state(
                Arc::clone(&app),
                crate::dialect::render_errors,
            ))
            .with_state(app);
        let request = Request::get("/v1/messages").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["type"], "api_error");
    }

    fn broken() -> StatusCode {
        panic!("broken on purpose")
    }
}
