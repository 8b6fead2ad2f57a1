//! Errors of requests, before a dialect renders them.

use std::fmt::Display;
use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use loquat_chat::ChatError;
use loquat_engine::{EngineError, EngineFailure};
use loquat_session::SessionError;

use crate::field::{Field, FieldPath};

/// A refusal or a failure. As a response it has a status and no body: the dialect of the path
/// renders the body (`dialect::render_errors`), so that errors of every layer read alike.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    pub kind: ErrorKind,
    /// What is wrong, then what to do.
    pub message: String,
    /// The request field that is wrong.
    pub param: Option<FieldPath>,
    /// For programs: `context_length_exceeded`, `model_not_found`…
    pub code: Option<&'static str>,
    /// When to retry.
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
    /// Ended by an operator.
    Cancelled,
    TooLarge,
    UnsupportedMedia,
    RateLimited,
    Internal,
    /// No capacity now, or the server is stopping. A retry may succeed.
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
            Self::Conflict | Self::Cancelled => StatusCode::CONFLICT,
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

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// A wrong field. The message is its name, followed by the problem.
    pub fn invalid(field: impl Into<FieldPath>, problem: impl Display) -> Self {
        let field = field.into();
        Self::bad_request(format!("`{field}` {problem}")).param(field)
    }

    /// A field of the dialect that is not implemented.
    pub fn unsupported(field: impl Into<FieldPath>, reason: impl Display) -> Self {
        let problem = format!("is not supported: {reason}");
        Self::invalid(field, problem).code("unsupported_parameter")
    }

    /// A failure of the server. The log has the cause, under the request's id.
    pub fn internal(error: &dyn Display) -> Self {
        tracing::error!("{error}");
        Self::new(
            ErrorKind::Internal,
            "internal server error; the server's log has the cause, under this request's id",
        )
    }

    pub fn overloaded(message: impl Into<String>) -> Self {
        Self {
            retry_after: Some(Duration::from_secs(1)),
            ..Self::new(ErrorKind::Overloaded, message)
        }
    }

    /// Replaces field names of the lower layers by the dialect's own.
    pub fn renamed(mut self, names: impl IntoIterator<Item = (FieldPath, FieldPath)>) -> Self {
        for (from, to) in names {
            let message = &self.message;
            self.message = message.replace(&format!("`{from}`"), &format!("`{to}`"));
            if self.param.as_ref() == Some(&from) {
                self.param = Some(to);
            }
        }
        self
    }

    /// The error of a stream that has begun. Its request was accepted, so the failure is the server's,
    /// even if the request's own constraint cannot continue.
    pub fn in_stream(self) -> Self {
        match self.kind {
            ErrorKind::InvalidRequest => Self {
                kind: ErrorKind::Internal,
                ..self
            },
            _ => self,
        }
    }

    /// Whether a retry would end the same way: the request was cancelled or took too long.
    pub fn is_final(&self) -> bool {
        matches!(self.code, Some("request_cancelled" | "request_timeout"))
    }

    pub fn code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    pub fn param(self, field: impl Into<FieldPath>) -> Self {
        Self {
            param: Some(field.into()),
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
            EngineError::EmptyPrompt => Self::bad_request(message).param(Field::Prompt),
            EngineError::ContextExceeded { .. } | EngineError::NeverFits { .. } => {
                Self::bad_request(message).code("context_length_exceeded")
            }
            EngineError::OutOfRange { field, .. }
            | EngineError::OutOfVocabulary { field, .. }
            | EngineError::Unsupported { field, .. } => {
                Self::bad_request(message).param(FieldPath::verbatim(field))
            }
            EngineError::QueueFull
            | EngineError::QueueTimeout { .. }
            | EngineError::FirstTokenTimeout { .. } => Self::overloaded(message),
            EngineError::Dead(EngineFailure::Session(SessionError::WeightsChanged(_))) => {
                Self::overloaded(
                    "the model's files changed while it was loaded; it is loaded again for the \
                     next request",
                )
                .code("model_files_changed")
            }
            EngineError::ShutDown => Self::overloaded("the server is stopping"),
            EngineError::Constraint(_) => Self::bad_request(message),
            EngineError::Dead(EngineFailure::StepHangs(_)) => {
                let message = "the model did not respond and is being restarted; try again later";
                Self::overloaded(message).code("model_restarted")
            }
            EngineError::Session(
                SessionError::InvalidMedia { .. }
                | SessionError::MediaTooLarge { .. }
                | SessionError::MediaRange { .. }
                | SessionError::AdapterScale { .. }
                | SessionError::AdapterConflict { .. },
            ) => Self::bad_request(message),
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
            ChatError::NoMessages | ChatError::NothingToContinue => Field::Messages.into(),
            ChatError::Arguments { message, call, .. } => {
                let calls = Field::Messages.index(*message).field(Field::ToolCalls);
                let function = calls.index(*call).field(Field::Function);
                function.field(Field::Arguments)
            }
            ChatError::NoTools | ChatError::UnknownTool { .. } => Field::ToolChoice.into(),
            ChatError::ToolName { index, .. } => function_of(*index).field(Field::Name),
            ChatError::ToolParameters { index } => function_of(*index).field(Field::Parameters),
            ChatError::ReservedVariable { .. } => Field::ChatTemplateKwargs.into(),
            ChatError::Unsupported { field, .. } => FieldPath::verbatim(*field),
            ChatError::Grammar { field, .. }
            | ChatError::Media { field, .. }
            | ChatError::MediaUnsupported { field, .. } => FieldPath::verbatim(field),
            ChatError::MediaTooLong { field, .. } => {
                let error = Self::bad_request(message).param(FieldPath::verbatim(field));
                return error.code("context_length_exceeded");
            }
            ChatError::NoTemplate | ChatError::Text(_) => return Self::bad_request(message),
        };
        Self::bad_request(message).param(param)
    }
}

fn function_of(tool: usize) -> FieldPath {
    Field::Tools.index(tool).field(Field::Function)
}
