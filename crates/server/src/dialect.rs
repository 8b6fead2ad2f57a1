//! Which dialect a path speaks, and how that one words errors.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::RETRY_AFTER;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::app::App;
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
pub async fn speak(State(_app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<ApiError>() else {
        return response;
    };
    let mut spoken = (error.kind.status(), Json(dialect.error(&error))).into_response();
    if let Some(wait) = error.retry_after {
        let seconds = wait.as_secs_f64().ceil() as u64;
        spoken
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    let headers = std::mem::take(response.headers_mut());
    for (name, value) in headers {
        if let Some(name) = name
            && !spoken.headers().contains_key(&name)
        {
            spoken.headers_mut().insert(name, value);
        }
    }
    spoken
}
