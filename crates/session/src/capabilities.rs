use crate::{AdapterLimits, KvGroups};

/// What a session can do, so that the engine does not guess by the backend's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The backend's name and the device, for display: `cpu (8 threads, avx512-vnni)`.
    pub device: String,
    /// Logits per position.
    pub vocab_size: usize,
    /// Longest sequence.
    pub max_context: usize,
    /// Sequences alive at once.
    pub max_sequences: usize,
    /// New tokens in one step, over all rows.
    pub max_step_tokens: usize,
    /// Rows can emit logits, which samplers and constraints need.
    pub logits: bool,
    /// Values of a hidden state. `None` if rows cannot emit hidden states, as in a graph that ends
    /// with the logits.
    pub hidden_size: Option<usize>,
    /// Rows can have their token drawn on the device ([`Emit::Drawn`](crate::Emit::Drawn)).
    pub draws: bool,
    /// At which lengths `fork` and `truncate` work.
    pub prefix_copy: PrefixCopy,
    /// Whether `export` and `import` work.
    pub export: bool,
    /// How KV is stored, as [`KvFormat`](crate::KvFormat) names it if it can.
    pub kv_format: String,
    /// Which media [`encode`](crate::Session::encode) takes.
    pub media: MediaInputs,
    /// Positions that encoded media can hold together; 0 if rows take no media.
    pub media_positions: usize,
    /// What bounds [adapters](crate::Session::load_adapter); [`AdapterLimits::NONE`] if the session
    /// takes none.
    pub adapters: AdapterLimits,
    /// A sequence's outputs are bit-identical whatever other rows are in its steps.
    pub batch_invariant: bool,
    /// A sequence's outputs are bit-identical however its tokens were cut into rows.
    pub chunk_invariant: bool,
}

/// The media that a session encodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MediaInputs {
    /// [`Media::Image`](crate::Media::Image)
    pub images: bool,
    /// [`Media::Video`](crate::Media::Video)
    pub videos: bool,
    /// [`Media::Embeddings`](crate::Media::Embeddings)
    pub embeddings: bool,
    /// Patches of a view at most.
    pub max_patches: usize,
    /// A sequence's first row must be its whole prompt: its positions attend to each other.
    pub whole_prompt: bool,
}

/// At which lengths a sequence's prefix can be shared with another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCopy {
    /// At any length outside of [indivisible](crate::MediaHandle::divisible) media.
    AnyLength,
    /// Only at the lengths that `Session::reusable` returns: recurrent models, and models of which
    /// a part of the KV is [freed](crate::KvGroup::reach).
    AtSnapshots,
    /// Never.
    None,
}

/// The memory of a session. Bytes are those on the device, not in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the weights, mapped files included.
    pub weight_bytes: u64,
    /// Bytes of one token's keys and values in all layers: a token's worth of KV.
    pub kv_bytes_per_token: u64,
    /// The same by the reach of layers: sequences hold less than a token's worth for tokens that
    /// some layers do not reach any more.
    pub kv_groups: KvGroups,
    /// Tokens' worth of KV that fit over all sequences.
    pub kv_capacity: usize,
    /// Tokens' worth of KV that sequences hold now, rounded up; what they share counts once.
    pub kv_in_use: usize,
    /// Tokens of a KV page: a sequence of one token uses this much.
    pub kv_granularity: usize,
    /// Tokens of the longest row. A sequence holds this much more than the reach of its layers.
    pub kv_row_tokens: usize,
    /// Bytes of one recurrent state; 0 without recurrent layers. A sequence holds one besides its
    /// KV, and one for each snapshot.
    pub state_bytes: u64,
    /// Recurrent states that sequences hold now, snapshots included.
    pub states_in_use: usize,
    /// Bytes of one position of encoded media; 0 if the session takes none.
    pub media_bytes_per_position: u64,
    /// Positions that fit over all encoded media.
    pub media_capacity: usize,
    /// Positions of the media that are encoded now.
    pub media_in_use: usize,
    /// Bytes for all adapters.
    pub adapter_capacity: u64,
    /// Bytes of the adapters that are loaded now.
    pub adapter_bytes: u64,
    /// Adapters that are loaded now.
    pub adapters_loaded: usize,
}

impl Memory {
    /// Tokens' worth of KV that a sequence of `len` tokens uses at most.
    pub fn sequence_tokens(&self, len: usize) -> usize {
        let granularity = self.kv_granularity.max(1);
        let groups = &self.kv_groups;
        groups.sequence_tokens(len, self.kv_row_tokens, granularity)
    }

    /// The longest sequence up to `at_most` tokens for which there is room if it is alone.
    pub fn longest_sequence(&self, at_most: usize) -> usize {
        let granularity = self.kv_granularity.max(1);
        let (groups, row_tokens) = (&self.kv_groups, self.kv_row_tokens);
        groups.longest_sequence(self.kv_capacity, row_tokens, granularity, at_most)
    }
}

/// The memory of some sequences. What they share counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldMemory {
    /// Tokens' worth of KV in whole pages, rounded up.
    pub kv_tokens: usize,
    /// Recurrent states, snapshots among them.
    pub states: usize,
}

impl HeldMemory {
    /// The same memory in bytes, by the session's sizes per token and state.
    pub fn bytes(self, memory: &Memory) -> u64 {
        self.kv_tokens as u64 * memory.kv_bytes_per_token + self.states as u64 * memory.state_bytes
    }
}
