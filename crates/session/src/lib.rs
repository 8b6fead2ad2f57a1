//! The contract between the engine and a compute backend: tokens and media in; tokens, logits or
//! hidden states out, for a batch of sequences.
//!
//! A session owns the weights and all KV state on its device. No tensor type crosses this
//! seam, so a backend may be eager, hand-written or compiled. The modules `limits`, `loading`,
//! `recurrent_state`, `sequences`, `tower` and `transfer` are shared code for backends, not part of the contract. Scheduling,
//! sampling, text and files belong to other crates; nothing here blocks on I/O or knows JSON.
#![deny(missing_docs)]

use std::ops::Range;

mod adapter;
mod backend;
mod batch;
mod capabilities;
pub mod conformance;
mod draw;
mod error;
mod kv_format;
mod kv_groups;
pub mod limits;
pub mod loading;
pub mod media;
mod plan;
pub mod recurrent_state;
mod sampled_positions;
pub mod sequences;
mod tail_layout;
pub mod tower;
pub mod transfer;

pub use adapter::{AdapterId, AdapterLimits, AppliedAdapter};
pub use backend::{
    Backend, Device, DeviceKind, MemoryBudget, ModelSource, Precision, Probe, SessionOptions,
};
pub use batch::{Emit, MediaSpan, Row, RowOutput, Span, StepBatch, StepOutput};
pub use capabilities::{Capabilities, HeldMemory, MediaInputs, Memory, PrefixCopy};
pub use draw::Draw;
pub use error::{MemoryBound, OpenError, SessionError};
pub use kv_format::{KvElementFormat, KvFormat, KvFormatError};
pub use kv_groups::{KvGroup, KvGroups, LayerGroups, MAX_KV_GROUPS};
pub use loquat_spec::{Grid, Reach};
pub use loquat_weights::AdapterWeights;
pub use media::{
    Media, MediaHandle, MediaId, MediaLayout, Picture, PositionGrid, Tiling, View, ViewLayout,
};
pub use plan::{BackendTraits, Plan};

/// Names a sequence inside the session that made it. Never reused within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A model on a device. Owned by one thread; every method is called from there.
///
/// A session never panics on bad input. A refused call is a typed error that names the field
/// and leaves everything as it was.
pub trait Session: Send {
    /// What this session can do; constant for its lifetime.
    fn capabilities(&self) -> &Capabilities;

    /// Reads counters; changes nothing.
    fn memory(&self) -> Memory;

    /// Copies an adapter to the device. Sequences are unchanged. The caller owns the adapter and
    /// must [unload](Session::unload_adapter) it.
    ///
    /// Refuses an adapter of another model, one that changes weights which the session cannot
    /// adapt, and one beyond the session's [limits](Capabilities::adapters).
    fn load_adapter(&mut self, _adapter: &AdapterWeights) -> Result<AdapterId, SessionError> {
        Err(SessionError::Unsupported("adapters"))
    }

    /// Frees an adapter. Refused while a sequence has it.
    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        Err(SessionError::UnknownAdapter(adapter))
    }

    /// Makes an empty sequence. The caller owns it and must [`release`](Session::release) it.
    fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.create_adapted(&[])
    }

    /// Makes an empty sequence with adapters, whose changes add up. Their order does not matter.
    /// The caller owns the sequence. Forks, exports and imports keep the adapters.
    fn create_adapted(&mut self, adapters: &[AppliedAdapter]) -> Result<SequenceId, SessionError>;

    /// Tokens the sequence holds.
    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError>;

    /// The longest length up to `at_most` at which the sequence can be forked or truncated now.
    /// Its own length always can, and the length before its last row until the next one.
    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError>;

    /// The memory that the sequences hold together; changes nothing.
    fn held(&self, sequences: &[SequenceId]) -> Result<HeldMemory, SessionError>;

    /// Makes a sequence that holds the first `len` tokens of `source`, sharing their state.
    /// `source` is unchanged, and neither sees what the other does afterwards. The caller owns
    /// the result.
    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError>;

    /// Removes the sequence's tokens from `len` on. If the session can only cut at snapshots, `len`
    /// must be a length that [`reusable`](Session::reusable) returns; likewise for `fork`.
    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError>;

    /// Ends the sequence and frees what only it held. The id is invalid afterwards.
    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError>;

    /// Computes the features of a picture, of a video's frames or of raw embeddings. They stay on
    /// the device until the last reference is released; the caller owns the first one. Sequences
    /// are unchanged.
    ///
    /// Refuses media that the session does not take, that do not have the sizes the model reads,
    /// or for which there is no memory.
    fn encode(&mut self, _media: &Media) -> Result<MediaHandle, SessionError> {
        Err(SessionError::Unsupported("media"))
    }

    /// Adds a reference, which the caller owns.
    fn retain_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        Err(SessionError::UnknownMedia(media))
    }

    /// Drops a reference; the last frees the features. Sequences whose rows have read them keep
    /// what they computed.
    fn release_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        Err(SessionError::UnknownMedia(media))
    }

    /// The features, to compare them with a reference: `[level][position][hidden]`, of which level
    /// 0 enters the text model's stream and the others are added after its first layers. Changes
    /// nothing.
    fn media_features(&self, media: MediaId) -> Result<Vec<f32>, SessionError> {
        Err(SessionError::UnknownMedia(media))
    }

    /// Appends each row's tokens and media to its sequence and fills `output`, one entry per row in the
    /// batch's order, replacing what it held.
    ///
    /// A row that is refused (see [`RowOutput::error`]) leaves its sequence's tokens as they were
    /// and does not affect the others. What a row emits does not change its sequence. A row that
    /// emits a token is refused if its logits are not numbers; logits and hidden states are returned
    /// as they are. `Err` means that the device failed: the sequences of the batch must then be
    /// released.
    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError>;

    /// The sequence's state as bytes that [`import`](Session::import) of a session over the
    /// same model and KV format accepts if it has the same adapters loaded. Changes nothing.
    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError>;

    /// Makes a sequence from exported bytes. The caller owns it.
    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError>;

    /// Identifies the bytes of [`export_range`](Session::export_range) and
    /// [`export_tail`](Session::export_tail): equal for sessions, also of other processes, that
    /// compute the same keys and values for the same tokens and adapters, and store them alike.
    /// Refused if ranges cannot be exported; the error says why. Changes nothing.
    fn range_fingerprint(&self) -> Result<u64, SessionError> {
        Err(SessionError::Unsupported("exporting ranges of sequences"))
    }

    /// Appends the keys and values of some positions to `out`: always as many bytes per position,
    /// without a header or a checksum, which are the caller's. If the session can only cut at
    /// [snapshots](PrefixCopy::AtSnapshots), ranges leave out what belongs to the tail. Adjacent ranges
    /// one after another are one. Refused for prompts with media that are read as a whole. Changes
    /// nothing else.
    fn export_range(
        &self,
        _sequence: SequenceId,
        _range: Range<usize>,
        _out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        Err(SessionError::Unsupported("exporting ranges of sequences"))
    }

    /// Appends where the media of some positions are, in a few bytes for each picture, to follow the
    /// bytes of [`export_range`](Session::export_range). Nothing without media.
    fn export_range_media(
        &self,
        _sequence: SequenceId,
        _range: Range<usize>,
        _out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        Err(SessionError::Unsupported("exporting ranges of sequences"))
    }

    /// Appends `tokens` positions to a sequence, whose positions so far and adapters must be those
    /// before the exported range: its bytes, then those of its media. They are not checked beyond
    /// their length and the places of media.
    ///
    /// If the session can only cut at snapshots, the sequence must be empty or imported so far, and
    /// can then only be extended by ranges, completed with [`import_tail`](Session::import_tail) or
    /// released.
    fn import_range(
        &mut self,
        _sequence: SequenceId,
        _tokens: usize,
        _bytes: &[u8],
    ) -> Result<(), SessionError> {
        Err(SessionError::Unsupported("importing ranges of sequences"))
    }

    /// Appends a part of a tail to `out`: what the token after the first `len` needs besides the
    /// ranges, which are recurrent states and the keys and values that windows free. Only for
    /// sessions that can only cut at snapshots, and for lengths that
    /// [`reusable`](Session::reusable) returns. The part begins at byte `part.start`, which is 0 or
    /// what earlier calls appended, and ends at `part.end`, or earlier at the end of the tail, or
    /// where the tail can be cut, but not before it begins. Returns whether it is the last one.
    /// Changes nothing else.
    fn export_tail(
        &self,
        _sequence: SequenceId,
        _len: usize,
        _part: Range<usize>,
        _out: &mut Vec<u8>,
    ) -> Result<bool, SessionError> {
        Err(SessionError::Unsupported("exporting tails of sequences"))
    }

    /// Adds the next parts of a tail to a sequence that consists of imported ranges up to its
    /// length. Returns whether the sequence is complete, and like any
    /// other. A complete one can be cut only at its end. The bytes are not checked beyond their
    /// length.
    fn import_tail(&mut self, _sequence: SequenceId, _bytes: &[u8]) -> Result<bool, SessionError> {
        Err(SessionError::Unsupported("importing tails of sequences"))
    }
}
