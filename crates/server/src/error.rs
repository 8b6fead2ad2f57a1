//! What goes wrong with a request, before a dialect gives it its shape.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use loquat_chat::ChatError;
use loquat_engine::EngineError;

/// A refusal or a failure. As a response it has its status and no body: the dialect of the path
/// writes that (`dialect::speak`), so that refusals of every layer read alike.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub kind: ErrorKind,
    /// For the client: one or two sentences that say what would be right.
    pub message: String,
    /// Which field of the request, as a path: `messages[0].content`.
    pub param: Option<String>,
    /// For programs: `context_length_exceeded`, `model_not_found`…
    pub code: Option<&'static str>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    InvalidRequest,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    Timeout,
    Conflict,
    TooLarge,
    UnsupportedMedia,
    RateLimited,
    Internal,
    /// No room now, or the server is stopping; worth another try.
    Overloaded,
}

impl ErrorKind {
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict => StatusCode::CONFLICT,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMedia => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl ApiError {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// The request's field is not what it should be.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(ErrorKind::InvalidRequest, message)
        }
    }

    /// A field of the dialect that is not implemented.
    pub fn unsupported(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        let message = format!("`{param}` is not supported: {why}");
        Self {
            code: Some("unsupported_parameter"),
            ..Self::invalid(param, message)
        }
    }

    /// Something of ours broke. What it was goes to the log, under the request's id.
    pub fn internal(error: &dyn std::fmt::Display) -> Self {
        tracing::error!("{error}");
        Self::new(
            ErrorKind::Internal,
            "the server failed to answer; its log says why, under this request's id",
        )
    }

    pub fn overloaded(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(ErrorKind::Overloaded, message)
        }
    }

    /// With a dialect's own names for fields that the layers below call otherwise.
    pub fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        for (theirs, ours) in names {
            self.message = self
                .message
                .replace(&format!("`{theirs}`"), &format!("`{ours}`"));
            if self.param.as_deref() == Some(*theirs) {
                self.param = Some((*ours).to_owned());
            }
        }
        self
    }

    /// Whether the same request would only come to the same end: somebody cancelled it, or it
    /// takes longer than it may.
    pub fn is_final(&self) -> bool {
        matches!(self.code, Some("request_cancelled" | "request_timeout"))
    }

    pub fn code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.kind.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::EmptyPrompt => Self::invalid("prompt", message),
            EngineError::ContextExceeded { .. } | EngineError::NeverFits { .. } => {
                Self::new(ErrorKind::InvalidRequest, message).code("context_length_exceeded")
            }
            EngineError::OutOfRange { field, .. }
            | EngineError::OutOfVocabulary { field, .. }
            | EngineError::Unsupported { field, .. } => Self::invalid(field, message),
            EngineError::QueueFull
            | EngineError::QueueTimeout { .. }
            | EngineError::FirstTokenTimeout { .. } => Self::overloaded(message),
            EngineError::ShutDown => Self::overloaded("the server is stopping"),
            EngineError::Constraint(_) => Self::new(ErrorKind::InvalidRequest, message),
            EngineError::Session(_)
            | EngineError::NoCandidate
            | EngineError::Panicked { .. }
            | EngineError::Dead(_)
            | EngineError::NoThread(_) => Self::internal(&message),
        }
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        if error.blame() == loquat_text::Blame::System {
            return Self::internal(&error);
        }
        let message = error.to_string();
        let param = match &error {
            ChatError::NoMessages => "messages".to_owned(),
            ChatError::Arguments { message, call, .. } => {
                format!("messages[{message}].tool_calls[{call}].function.arguments")
            }
            ChatError::NoTools | ChatError::UnknownTool { .. } => "tool_choice".to_owned(),
            ChatError::ToolName { index, .. } => format!("tools[{index}].function.name"),
            ChatError::ToolParameters { index } => format!("tools[{index}].function.parameters"),
            ChatError::ReservedVariable { .. } => "chat_template_kwargs".to_owned(),
            ChatError::Unsupported { field, .. } => (*field).to_owned(),
            ChatError::Grammar { field, .. } => field.clone(),
            ChatError::NoTemplate | ChatError::Text(_) => {
                return Self::new(ErrorKind::InvalidRequest, message);
            }
        };
        Self::invalid(param, message)
    }
}
