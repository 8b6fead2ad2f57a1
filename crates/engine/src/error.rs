//! Errors of the engine.

use std::io;
use std::time::Duration;

use loquat_session::SessionError;
use loquat_text::Blame;
use thiserror::Error;

use crate::ConstraintError;

/// Every error of this crate. Messages of errors that blame the system may describe internals: they
/// are for logs, not for clients.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum EngineError {
    #[error("`prompt` is empty; it must hold at least one token")]
    EmptyPrompt,

    #[error("`{field}` is {found}; it must be {expected}")]
    OutOfRange {
        field: &'static str,
        found: String,
        expected: String,
    },

    #[error("`{field}` contains token {token}; the vocabulary has {vocab_size} tokens")]
    OutOfVocabulary {
        field: &'static str,
        token: u32,
        vocab_size: usize,
    },

    #[error(
        "a prompt of {prompt} tokens and `max_tokens` of {max_tokens} do not fit the context of \
         {max_context}"
    )]
    ContextExceeded {
        prompt: usize,
        max_tokens: usize,
        max_context: usize,
    },

    #[error(
        "the request needs KV memory for {needed} tokens; the session has {capacity}, for contexts \
         of up to {max_context}"
    )]
    NeverFits {
        needed: usize,
        capacity: usize,
        max_context: usize,
    },

    #[error("`{field}` cannot be served: {why}")]
    Unsupported {
        field: &'static str,
        why: &'static str,
    },

    #[error("the queue is full; try again later")]
    QueueFull,

    #[error("the request waited {waited:?} for KV memory; try again later")]
    QueueTimeout { waited: Duration },

    #[error("the first token took longer than {waited:?}; try again later")]
    FirstTokenTimeout { waited: Duration },

    #[error(transparent)]
    Session(#[from] SessionError),

    #[error("the model gave no candidate token: every logit is NaN or minus infinity")]
    NoCandidate,

    #[error("the request's constraint failed: {0}")]
    Constraint(#[from] ConstraintError),

    #[error("a bug while {doing}: {message}")]
    Panicked {
        doing: &'static str,
        message: String,
    },

    #[error("the engine failed and must be restarted: {0}")]
    Dead(EngineFailure),

    #[error("the engine was shut down")]
    ShutDown,

    #[error("the engine's thread could not be started: {0}")]
    NoThread(io::ErrorKind),
}

/// Why an engine ended without being shut down.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum EngineFailure {
    /// The session or the engine panicked.
    #[error("{0}")]
    Panicked(String),
    /// The session cannot go on.
    #[error("{0}")]
    Session(SessionError),
    /// Too many consecutive steps failed.
    #[error("{count} consecutive steps failed; the last: {last}")]
    Steps {
        /// How many.
        count: usize,
        /// The last step's error.
        last: SessionError,
    },
    /// A step has been running for this time, and was given up.
    #[error("a step has been running for {} s", .0.as_secs_f32())]
    StepHangs(Duration),
    /// The thread ended without a reason.
    #[error("its thread is gone")]
    ThreadGone,
}

impl EngineError {
    /// Whether the request or the system is at fault.
    pub fn blame(&self) -> Blame {
        match self {
            Self::EmptyPrompt
            | Self::OutOfRange { .. }
            | Self::OutOfVocabulary { .. }
            | Self::ContextExceeded { .. }
            | Self::NeverFits { .. }
            | Self::Unsupported { .. }
            | Self::Constraint(_) => Blame::Request,
            Self::QueueFull
            | Self::QueueTimeout { .. }
            | Self::FirstTokenTimeout { .. }
            | Self::Session(_)
            | Self::NoCandidate
            | Self::Panicked { .. }
            | Self::Dead(_)
            | Self::ShutDown
            | Self::NoThread(_) => Blame::System,
        }
    }

    /// Whether the same request may succeed later, on this engine.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::QueueFull | Self::QueueTimeout { .. } | Self::FirstTokenTimeout { .. } => true,
            Self::Session(error) => error.is_retryable(),
            _ => false,
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
