use std::fmt;

use thiserror::Error;

use loquat_spec::Role;

use crate::{AdapterId, MediaId, SequenceId};

/// Why a session refused a call or a row. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SessionError {
    /// No living sequence has this id.
    #[error("no sequence {}: it was released or never created", .0.0)]
    UnknownSequence(SequenceId),
    /// Two rows of a batch extend the same sequence.
    #[error("sequence {} appears twice in one batch", .0.0)]
    DuplicateSequence(SequenceId),
    /// A row has no tokens.
    #[error("a row must bring at least one token")]
    EmptyRow,
    /// A token id is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// A row emits more positions than it has tokens, or none where it needs one.
    #[error("{positions} positions to emit, but the row has {tokens} tokens")]
    EmitOutOfRange {
        /// Positions to emit.
        positions: usize,
        /// Tokens of the row.
        tokens: usize,
    },
    /// The named parameter of a draw is out of range.
    #[error("`{0}` of a draw is out of range")]
    DrawOutOfRange(&'static str),
    /// A fork or truncation at a length that the sequence does not have.
    #[error("length {len} is beyond the sequence's {available} tokens")]
    LengthOutOfRange {
        /// The length asked for.
        len: usize,
        /// The sequence's length.
        available: usize,
    },
    /// A fork or truncation at a length without a snapshot.
    #[error("no state was kept at length {len}; the nearest below is {reusable}")]
    NoSnapshot {
        /// The length asked for.
        len: usize,
        /// The longest length below it that has one.
        reusable: usize,
    },
    /// A sequence of imported ranges is used before its tail is imported.
    #[error("sequence {} is used before its tail is imported", .0.0)]
    MissingTail(SequenceId),
    /// A sequence would grow past the context.
    #[error("{wanted} tokens exceed the context of {max_context}")]
    ContextExceeded {
        /// The length it would have.
        wanted: usize,
        /// The longest sequence.
        max_context: usize,
    },
    /// A batch has more tokens than a step may have.
    #[error("{tokens} new tokens in one step exceed the limit of {max}")]
    StepTooLarge {
        /// The batch's tokens up to this row.
        tokens: usize,
        /// The limit.
        max: usize,
    },
    /// KV memory is full.
    #[error("{wanted} more tokens of KV wanted, {available} free")]
    KvExhausted {
        /// Tokens the row needs.
        wanted: usize,
        /// Tokens that fit.
        available: usize,
    },
    /// All recurrent states are in use.
    #[error("all {max} recurrent states are in use")]
    StatesExhausted {
        /// How many there are.
        max: usize,
    },
    /// All sequences are in use.
    #[error("all {max} sequences of this session are in use")]
    TooManySequences {
        /// How many there may be.
        max: usize,
    },
    /// No encoded media has this id.
    #[error("no media {}: it was released or never encoded", .0.0)]
    UnknownMedia(MediaId),
    /// A span's range does not fit its media or its sequence.
    #[error("positions {start} to {end} of media with {positions} positions: {why}")]
    MediaRange {
        /// The first position.
        start: usize,
        /// The first that is not in the range.
        end: usize,
        /// Positions of the media.
        positions: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// Media to encode is not what the model's processor makes.
    #[error("`{field}` of the media cannot be encoded: {why}")]
    InvalidMedia {
        /// A field of [`Picture`](crate::Picture) or [`View`](crate::View).
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A view of media has more patches than a view may have.
    #[error("a view of {patches} patches exceeds the limit of {max}")]
    MediaTooLarge {
        /// Of the view.
        patches: usize,
        /// The limit.
        max: usize,
    },
    /// The memory for encoded media is full.
    #[error("{wanted} positions of encoded media wanted, {available} of {capacity} free")]
    MediaExhausted {
        /// Positions of the media.
        wanted: usize,
        /// Positions that fit now.
        available: usize,
        /// Positions that fit when nothing is encoded.
        capacity: usize,
    },
    /// No loaded adapter has this id.
    #[error("no adapter {}: it was unloaded or never loaded", .0.0)]
    UnknownAdapter(AdapterId),
    /// An adapter cannot be unloaded while sequences have it.
    #[error("adapter {} is in use by {sequences} sequences", id.0)]
    AdapterInUse {
        /// The adapter.
        id: AdapterId,
        /// How many have it.
        sequences: usize,
    },
    /// All adapters are in use.
    #[error("{max} adapters are loaded, the most that this session takes")]
    TooManyAdapters {
        /// How many there may be.
        max: usize,
    },
    /// The memory for adapters is full.
    #[error("the adapter needs {wanted} bytes, {available} of {capacity} are free")]
    AdapterMemory {
        /// Bytes of the adapter.
        wanted: u64,
        /// Bytes that are free.
        available: u64,
        /// Bytes for all adapters.
        capacity: u64,
    },
    /// An adapter's rank is above the session's limit.
    #[error("the adapter's rank {rank} exceeds the limit of {max}")]
    AdapterRank {
        /// Of the adapter.
        rank: usize,
        /// The limit.
        max: usize,
    },
    /// An adapter changes weights that the backend cannot adapt, or is of another model.
    #[error("the adapter cannot be loaded: {0}")]
    InvalidAdapter(String),
    /// A sequence's scale for an adapter is not usable.
    #[error("the scale of adapter {} is not usable: {why}", id.0)]
    AdapterScale {
        /// The adapter.
        id: AdapterId,
        /// What is wrong.
        why: &'static str,
    },
    /// A sequence would have too many adapters.
    #[error("{found} adapters for one sequence exceed the limit of {max}")]
    TooManyApplied {
        /// How many it would have.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// Two adapters of a sequence replace the same weight.
    #[error("adapters {} and {} cannot be combined: both replace {role}", first.0, second.0)]
    AdapterConflict {
        /// One of them.
        first: AdapterId,
        /// The other.
        second: AdapterId,
        /// What both replace.
        role: Role,
    },
    /// The logits of a row that emits a token are not numbers.
    #[error("the model computed NaN: its weights or the arithmetic are broken")]
    NotANumber,
    /// The bytes to import are damaged or of another model or KV format; the text says which.
    #[error("not a sequence this session can import: {0}")]
    BadImport(String),
    /// The backend cannot do what is named.
    #[error("`{0}` is not supported by this backend")]
    Unsupported(&'static str),
    /// The device or its library failed.
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
        if let SessionError::MediaExhausted {
            wanted, capacity, ..
        } = self
        {
            return wanted <= capacity;
        }
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
    /// An option is out of range.
    #[error("option `{option}` is {found}, but must be {expected}")]
    Option {
        /// The name of a field of [`SessionOptions`](crate::SessionOptions).
        option: &'static str,
        /// Its value.
        found: String,
        /// The range, for display.
        expected: String,
    },
    /// The backend cannot run on this machine.
    #[error("backend `{backend}` is not available: {why} {remedy}")]
    Unavailable {
        /// The backend's name.
        backend: &'static str,
        /// What is missing.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// The session does not fit into memory.
    #[error("the {what} needs {wanted} bytes, and {bound} {available}")]
    OutOfMemory {
        /// The part that does not fit, for display.
        what: &'static str,
        /// Bytes it needs.
        wanted: u64,
        /// The limit it exceeds.
        bound: MemoryBound,
        /// Bytes the limit allows.
        available: u64,
    },
    /// The device or its library failed.
    #[error("the device failed while the model was loaded: {0}")]
    Device(String),
    /// The weights are damaged or do not match the spec.
    #[error(transparent)]
    Weights(#[from] loquat_weights::WeightsError),
}

/// Which limit a session's memory exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBound {
    /// The memory of the machine or the device.
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
