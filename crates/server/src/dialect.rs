//! The dialect of a path, and how it renders errors.

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
    /// Also for paths of no dialect.
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    pub fn from_path(path: &str) -> Self {
        if path == "/v1/messages" || path.starts_with("/v1/messages/") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }

    /// The error in the dialect's format, for a response or a stream.
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

    /// The error as a frame of a stream. Ollama's clients read to the line that is `done`.
    pub fn error_frame(self, error: &ApiError) -> Bytes {
        let body = self.error(error);
        match self {
            Self::OpenAi => frames::event(None, &body),
            Self::Anthropic => frames::event(Some("error"), &body),
            Self::Ollama => {
                let mut last = body;
                last["done"] = true.into();
                frames::line(&last)
            }
        }
    }
}

fn openai_type(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unauthenticated => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::RateLimited => "rate_limit_error",
        ErrorKind::Timeout => "timeout_error",
        ErrorKind::Internal | ErrorKind::Cancelled => "server_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::InvalidRequest
        | ErrorKind::NotFound
        | ErrorKind::MethodNotAllowed
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
        ErrorKind::Internal | ErrorKind::Cancelled => "api_error",
        ErrorKind::Overloaded => "overloaded_error",
        ErrorKind::InvalidRequest
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Conflict
        | ErrorKind::UnsupportedMedia => "invalid_request_error",
    }
}

/// Renders every response that is an [`ApiError`].
pub async fn render_errors(request: Request, next: Next) -> Response {
    let dialect = Dialect::from_path(request.uri().path());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        return render(dialect, &error, response);
    }
    match rejection(&response) {
        Some(kind) => {
            let (parts, body) = response.into_parts();
            let reason = to_bytes(body, MAX_REASON_BYTES).await.unwrap_or_default();
            let error = ApiError::new(kind, String::from_utf8_lossy(&reason));
            let response = Response::from_parts(parts, Body::empty());
            render(dialect, &error, response)
        }
        None => response,
    }
}

/// Honoured by the clients of OpenAI and Anthropic, which retry a 408 and a 409 by default.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Of axum's text for a path or query that it cannot parse.
const MAX_REASON_BYTES: usize = 4096;

/// The kind of a refusal by axum itself, which is plain text.
fn rejection(response: &Response) -> Option<ErrorKind> {
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

/// Keeps the headers that other layers set.
fn render(dialect: Dialect, error: &ApiError, mut response: Response) -> Response {
    let (rendered, body) = Json(dialect.error(error)).into_response().into_parts();
    *response.status_mut() = error.kind.status();
    *response.body_mut() = body;
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.extend(rendered.headers);
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
    fn final_errors_forbid_a_retry() {
        for (code, retryable) in [
            ("request_cancelled", false),
            ("request_timeout", false),
            ("model_not_found", true),
        ] {
            let error = ApiError::new(ErrorKind::Conflict, "ended").code(code);
            let response = render(Dialect::OpenAi, &error, Response::new(Body::empty()));
            let header = response.headers().get(SHOULD_RETRY);
            assert_eq!(header.is_none(), retryable, "{code}");
        }
    }

    #[tokio::test]
    async fn axum_rejections_use_the_dialect() {
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
    fn rendering_keeps_repeated_headers() {
        let mut response = StatusCode::OK.into_response();
        let values = ["origin", "accept"].map(HeaderValue::from_static);
        for value in &values {
            response.headers_mut().append(VARY, value.clone());
        }
        let error = ApiError::overloaded("later");
        let rendered = render(Dialect::OpenAi, &error, response);
        assert_eq!(rendered.status(), StatusCode::SERVICE_UNAVAILABLE);
        let headers = rendered.headers();
        assert!(headers.get_all(VARY).iter().eq(&values));
        assert_eq!(headers[RETRY_AFTER], "1");
        assert_eq!(headers[CONTENT_TYPE], "application/json");
    }
}
