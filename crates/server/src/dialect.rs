//! Which dialect a path speaks, and how that one words errors.

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::error::{ApiError, ErrorKind};
use crate::frames;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Also of everything that is nobody's dialect.
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    pub fn of(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }

    /// An error as the dialect's clients read it, in a response or in the midst of a stream.
    pub fn error(self, error: &ApiError) -> Value {
        let ApiError {
            kind,
            message,
            param,
            code,
            retry_after: _,
        } = error;
        match self {
            Self::OpenAi => json!({ "error": {
                "message": message,
                "type": openai_type(*kind),
                "param": param,
                "code": code,
            }}),
            Self::Anthropic => json!({ "type": "error", "error": {
                "type": anthropic_type(*kind),
                "message": message,
            }}),
            Self::Ollama => json!({ "error": message }),
        }
    }

    /// The same as the last frame of a stream that cannot go on.
    pub fn error_frame(self, error: &ApiError) -> Bytes {
        let spoken = self.error(error);
        match self {
            Self::OpenAi => frames::event(None, &spoken),
            Self::Anthropic => frames::event(Some("error"), &spoken),
            Self::Ollama => frames::line(&spoken),
        }
    }
}

fn openai_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unauthenticated => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::RateLimited => "rate_limit_error",
        ErrorKind::Internal => "server_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::InvalidRequest
        | ErrorKind::NotFound
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Timeout
        | ErrorKind::Conflict
        | ErrorKind::TooLarge
        | ErrorKind::UnsupportedMedia => "invalid_request_error",
    }
}

fn anthropic_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unauthenticated => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::NotFound => "not_found_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::RateLimited => "rate_limit_error",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Internal => "api_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::InvalidRequest
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Conflict
        | ErrorKind::UnsupportedMedia => "invalid_request_error",
    }
}

/// Writes the body of every response that is an [`ApiError`].
pub async fn speak(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        return write(dialect, &error, response);
    }
    match rejected(&response) {
        Some(kind) => {
            let (parts, body) = response.into_parts();
            let why = to_bytes(body, LONGEST_REASON).await.unwrap_or_default();
            let error = ApiError::new(kind, String::from_utf8_lossy(&why));
            let response = Response::from_parts(parts, Body::empty());
            write(dialect, &error, response)
        }
        None => response,
    }
}

/// Which the clients of OpenAI and Anthropic heed; they repeat a 408 and a 409 otherwise.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Of what axum says when it cannot read a path or a query.
const LONGEST_REASON: usize = 4096;

/// Whether the response is a refusal of axum's own, which are plain text.
fn rejected(response: &Response) -> Option<ErrorKind> {
    let kind = response.headers().get(CONTENT_TYPE)?;
    if !kind.as_bytes().starts_with(b"text/plain") {
        return None;
    }
    match response.status() {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => {
            Some(ErrorKind::InvalidRequest)
        }
        StatusCode::PAYLOAD_TOO_LARGE => Some(ErrorKind::TooLarge),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Some(ErrorKind::UnsupportedMedia),
        _ => None,
    }
}

/// Keeps the headers that other layers gave the response.
fn write(dialect: Dialect, error: &ApiError, mut response: Response) -> Response {
    let (spoken, body) = Json(dialect.error(error)).into_response().into_parts();
    *response.status_mut() = error.kind.status();
    *response.body_mut() = body;
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.extend(spoken.headers);
    if error.is_final() {
        headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
    }
    if let Some(wait) = error.retry_after {
        let seconds = wait.as_secs_f64().ceil() as u64;
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

#[cfg(test)]
mod tests {
    use axum::http::header::VARY;

    use super::*;
    use crate::testing::Harness;

    #[test]
    fn what_was_ended_on_purpose_is_not_to_be_repeated() {
        for (code, repeated) in [
            ("request_cancelled", false),
            ("request_timeout", false),
            ("model_not_found", true),
        ] {
            let error = ApiError::new(ErrorKind::Conflict, "ended").code(code);
            let response = write(Dialect::OpenAi, &error, Response::new(Body::empty()));
            let header = response.headers().get(SHOULD_RETRY);
            assert_eq!(header.is_none(), repeated, "{code}");
        }
    }

    #[tokio::test]
    async fn what_axum_refuses_is_said_in_the_dialect_of_its_place() {
        let server = Harness::saying("hello");
        for path in ["/v1/models/%ff", "/v1/responses/%ff"] {
            let reply = server.get(path).await;
            assert_eq!(reply.status(), StatusCode::BAD_REQUEST, "{path}");
            let error = &reply.json()["error"];
            assert_eq!(error["type"], "invalid_request_error", "{path}");
            let message = error["message"].as_str().expect("text");
            assert!(message.contains("UTF-8"), "{message}");
        }
    }

    #[test]
    fn headers_stay_with_all_their_values() {
        let mut response = StatusCode::OK.into_response();
        let values = ["origin", "accept"].map(HeaderValue::from_static);
        for value in &values {
            response.headers_mut().append(VARY, value.clone());
        }
        let error = ApiError::overloaded("later");
        let written = write(Dialect::OpenAi, &error, response);
        assert_eq!(written.status(), StatusCode::SERVICE_UNAVAILABLE);
        let headers = written.headers();
        assert!(headers.get_all(VARY).iter().eq(&values));
        assert_eq!(headers[RETRY_AFTER], "1");
        assert_eq!(headers[CONTENT_TYPE], "application/json");
    }
}
