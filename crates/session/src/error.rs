use std::fmt;

use thiserror::Error;

use crate::SequenceId;

/// Why a session refused a call or a row. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    #[error("no sequence {}: it was released or never created", .0.0)]
    UnknownSequence(SequenceId),
    #[error("sequence {} appears twice in one batch", .0.0)]
    DuplicateSequence(SequenceId),
    #[error("a row must bring at least one token")]
    EmptyRow,
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange { token: u32, vocab_size: usize },
    #[error("{positions} positions to emit, but the row has {tokens} tokens")]
    EmitOutOfRange { positions: usize, tokens: usize },
    #[error("`{0}` of a draw is out of range")]
    DrawOutOfRange(&'static str),
    #[error("length {len} is beyond the sequence's {available} tokens")]
    LengthOutOfRange { len: usize, available: usize },
    #[error("no state was kept at length {len}; the nearest below is {reusable}")]
    NoSnapshot { len: usize, reusable: usize },
    #[error("{wanted} tokens exceed the context of {max_context}")]
    ContextExceeded { wanted: usize, max_context: usize },
    #[error("{tokens} new tokens in one step exceed the limit of {max}")]
    StepTooLarge { tokens: usize, max: usize },
    #[error("{wanted} more tokens of KV wanted, {available} free")]
    KvExhausted { wanted: usize, available: usize },
    #[error("all {max} recurrent states are in use")]
    StatesExhausted { max: usize },
    #[error("all {max} sequences of this session are in use")]
    TooManySequences { max: usize },
    #[error("the model computed NaN: its weights or the arithmetic are broken")]
    NotANumber,
    #[error("not a sequence this session can import: {0}")]
    BadImport(String),
    #[error("`{0}` is not supported by this backend")]
    Unsupported(&'static str),
    #[error("the device failed: {0}")]
    Device(String),
    /// The weights that the session reads in place are lost, and with them what it computed.
    #[error("the model's files are not what was loaded: {0}")]
    WeightsChanged(String),
}

impl SessionError {
    /// Whether every later call would fail too: the model must be opened again.
    pub fn is_fatal(&self) -> bool {
        matches!(self, SessionError::WeightsChanged(_))
    }

    /// Whether the same call could succeed once other sequences are gone.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            SessionError::KvExhausted { .. }
                | SessionError::StatesExhausted { .. }
                | SessionError::TooManySequences { .. }
        )
    }
}

/// Why a model could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("option `{option}` is {found}, but must be {expected}")]
    Option {
        option: &'static str,
        found: String,
        expected: String,
    },
    #[error("backend `{backend}` is not available: {why} {remedy}")]
    Unavailable {
        backend: &'static str,
        why: String,
        remedy: String,
    },
    #[error("the {what} needs {wanted} bytes, and {bound} {available}")]
    OutOfMemory {
        what: &'static str,
        wanted: u64,
        bound: MemoryBound,
        available: u64,
    },
    #[error("the device failed while the model was loaded: {0}")]
    Device(String),
    #[error(transparent)]
    Weights(#[from] loquat_weights::WeightsError),
}

/// Which limit a session's memory exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBound {
    Machine,
    /// [`SessionOptions::memory`](crate::SessionOptions::memory).
    Budget,
}

impl fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Machine => "this machine has",
            Self::Budget => "option `memory` allows",
        })
    }
}
