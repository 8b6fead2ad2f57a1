use loquat_spec::{MediaAttention, ModelSpec};

use crate::limits::Limits;
use crate::{Capabilities, MediaInputs, Memory, PrefixCopy};

/// A session's capabilities and memory before it is opened, with nothing in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What the session will be able to do.
    pub capabilities: Capabilities,
    /// The memory it will have.
    pub memory: Memory,
    /// Bytes allocated once everything is used: weights, KV, states, buffers. The caller owns
    /// [`StepOutput`](crate::StepOutput), which is not counted.
    pub resident_bytes: u64,
    /// How the model is stored, one line each, for display.
    pub notes: Vec<String>,
}

/// What a backend states about itself in a [`Plan`].
pub struct BackendTraits {
    /// [`Capabilities::device`]
    pub device: String,
    /// [`Capabilities::kv_format`]
    pub kv_format: String,
    /// [`Capabilities::draws`]
    pub draws: bool,
    /// [`Capabilities::batch_invariant`]
    pub batch_invariant: bool,
    /// [`Capabilities::chunk_invariant`]
    pub chunk_invariant: bool,
}

impl Plan {
    /// For a backend that runs the spec itself: it emits logits and hidden states, and exports
    /// sequences.
    pub fn new(spec: &ModelSpec, limits: &Limits, traits: BackendTraits) -> Self {
        let sizes = &limits.sizes;
        let media = &sizes.media;
        let takes_media = media.positions > 0;
        let vision = spec.vision.as_ref().filter(|_| takes_media);
        let whole_prompt = spec.media_attention() == MediaAttention::FirstRow;
        Self {
            capabilities: Capabilities {
                device: traits.device,
                vocab_size: spec.vocab_size,
                max_context: limits.context,
                max_sequences: limits.max_sequences,
                max_step_tokens: limits.step_tokens,
                logits: true,
                hidden_size: Some(spec.hidden_size),
                draws: traits.draws,
                prefix_copy: if whole_prompt {
                    // What a prefix computed depends on the prompt it was part of.
                    PrefixCopy::None
                } else if spec.is_recurrent() || sizes.kv_groups.free_within(limits.context) {
                    PrefixCopy::AtSnapshots
                } else {
                    PrefixCopy::AnyLength
                },
                export: true,
                kv_format: traits.kv_format,
                media: MediaInputs {
                    images: vision.is_some(),
                    videos: vision.is_some_and(|vision| vision.video),
                    embeddings: takes_media,
                    max_patches: media.max_patches,
                    whole_prompt,
                },
                media_positions: media.positions,
                adapters: sizes.adapters,
                batch_invariant: traits.batch_invariant,
                chunk_invariant: traits.chunk_invariant,
            },
            memory: Memory {
                weight_bytes: sizes.weight_bytes + sizes.mapped_bytes,
                kv_bytes_per_token: sizes.kv_groups.bytes_per_token(),
                kv_groups: sizes.kv_groups,
                kv_capacity: limits.kv_tokens,
                kv_in_use: 0,
                kv_granularity: sizes.granularity,
                kv_row_tokens: limits.step_tokens,
                state_bytes: sizes.state_bytes,
                states_in_use: 0,
                media_bytes_per_position: media.bytes_per_position,
                media_capacity: media.positions,
                media_in_use: 0,
                adapter_capacity: sizes.adapters.bytes,
                adapter_bytes: 0,
                adapters_loaded: 0,
            },
            resident_bytes: limits.resident_bytes,
            notes: Vec::new(),
        }
    }
}
