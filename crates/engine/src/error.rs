//! What can go wrong between a request and its last event, and who has to mend it.

use std::time::Duration;

use loquat_session::SessionError;
use loquat_text::Blame;
use thiserror::Error;

use crate::ConstraintError;

/// Every error of this crate.
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

    #[error("`{field}` names token {token}; the vocabulary has {vocab_size}, counted from 0")]
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
        "the request needs room for {wanted} tokens of KV; the session has {capacity} in all, for \
         contexts of up to {max_context}"
    )]
    NeverFits {
        wanted: usize,
        capacity: usize,
        max_context: usize,
    },

    #[error("`{field}` cannot be served: {why}")]
    Unsupported {
        field: &'static str,
        why: &'static str,
    },

    #[error("too busy to take the request; try again later")]
    QueueFull,

    #[error("no room was found for the request within {waited:?}; try again later")]
    QueueTimeout { waited: Duration },

    #[error("the first token did not come within {waited:?}; try again later")]
    FirstTokenTimeout { waited: Duration },

    #[error(transparent)]
    Session(#[from] SessionError),

    #[error("the model gave nothing to choose from: every logit is NaN or minus infinity")]
    NoCandidate,

    #[error("the request's constraint cannot go on: {0}")]
    Constraint(#[from] ConstraintError),

    #[error("a bug while {doing}: {message}")]
    Panicked {
        doing: &'static str,
        message: String,
    },

    #[error("the engine is dead and has to be started anew: {reason}")]
    Dead { reason: String },

    #[error("the engine was shut down")]
    ShutDown,

    #[error("the engine's thread could not be started: {0}")]
    NoThread(String),
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
            | Self::Dead { .. }
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

/// What a panic said, as far as it said anything.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}
