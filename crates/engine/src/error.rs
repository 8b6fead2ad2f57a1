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
    /// The prompt has no token.
    #[error("`prompt` is empty; it must hold at least one token")]
    EmptyPrompt,

    /// A parameter has a value outside its range.
    #[error("`{field}` is {found}; it must be {expected}")]
    OutOfRange {
        /// The parameter's name.
        field: &'static str,
        /// Its value.
        found: String,
        /// The range, for display.
        expected: String,
    },

    /// A token id is not in the vocabulary.
    #[error("`{field}` contains token {token}; the vocabulary has {vocab_size} tokens")]
    OutOfVocabulary {
        /// The parameter that has it.
        field: &'static str,
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },

    /// Prompt and answer together are longer than the context.
    #[error(
        "a prompt of {prompt} tokens and `max_tokens` of {max_tokens} do not fit the context of \
         {max_context}"
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the answer at most.
        max_tokens: usize,
        /// The longest sequence.
        max_context: usize,
    },

    /// The request needs more KV memory than the session has.
    #[error(
        "the request needs KV memory for {needed} tokens; the session has {capacity}, for contexts \
         of up to {max_context}"
    )]
    NeverFits {
        /// Tokens of the prompt and the answer.
        needed: usize,
        /// Tokens that fit.
        capacity: usize,
        /// The longest sequence.
        max_context: usize,
    },

    /// The session cannot do what a parameter asks for.
    #[error("`{field}` cannot be served: {why}")]
    Unsupported {
        /// The parameter's name.
        field: &'static str,
        /// What the session lacks.
        why: &'static str,
    },

    /// Too many requests wait.
    #[error("the queue is full; try again later")]
    QueueFull,

    /// The request waited in the queue for longer than it may.
    #[error("the request waited {waited:?} for KV memory; try again later")]
    QueueTimeout {
        /// How long it waited.
        waited: Duration,
    },

    /// The first token took longer than it may.
    #[error("the first token took longer than {waited:?}; try again later")]
    FirstTokenTimeout {
        /// How long the request waited.
        waited: Duration,
    },

    /// The session refused or failed the request.
    #[error(transparent)]
    Session(#[from] SessionError),

    /// The model's logits leave no token to choose.
    #[error("the model gave no candidate token: every logit is NaN or minus infinity")]
    NoCandidate,

    /// The request's constraint failed.
    #[error("the request's constraint failed: {0}")]
    Constraint(#[from] ConstraintError),

    /// A panic ended this request only.
    #[error("a bug while {doing}: {message}")]
    Panicked {
        /// What the engine was doing, for display.
        doing: &'static str,
        /// The panic's message.
        message: String,
    },

    /// The engine ended after a failure; no request will succeed.
    #[error("the engine failed and must be restarted: {0}")]
    Dead(EngineFailure),

    /// The engine was shut down while the request waited or ran.
    #[error("the engine was shut down")]
    ShutDown,

    /// The system refused a thread.
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
            Self::Session(
                SessionError::InvalidMedia { .. }
                | SessionError::MediaTooLarge { .. }
                | SessionError::MediaRange { .. }
                | SessionError::UnknownAdapter(_)
                | SessionError::AdapterScale { .. }
                | SessionError::AdapterConflict { .. }
                | SessionError::InvalidAdapter(_),
            ) => Blame::Request,
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
