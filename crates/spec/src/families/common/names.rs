//! Names of tensors that several families share.

use crate::naming::{Fused, Ignored, LayerNames};
use crate::roles::LayerRole::{self, *};

/// For models with multi-token prediction in layers after the last.
pub(crate) const FURTHER_LAYERS: Ignored = Ignored {
    beginnings: &["mtp."],
    endings: &[".rotary_emb.inv_freq"],
    further_layers: true,
};

/// A dense feed-forward whose module is not called `mlp`.
pub(crate) const FEED_FORWARD: LayerNames = &[
    (Gate, "feed_forward.gate_proj.weight"),
    (Up, "feed_forward.up_proj.weight"),
    (Down, "feed_forward.down_proj.weight"),
];

/// The gate rows, then the up rows.
pub(crate) const GATE_UP: Fused = Fused::sequential("mlp.gate_up_proj.weight", &[Gate, Up]);

/// llama.cpp keeps it as one matrix, under the name of the second half.
pub(crate) const GGUF_GATE_UP: Fused = Fused::sequential("ffn_up.weight", &[Gate, Up]);

pub(crate) const GGUF_QKV: Fused = Fused::sequential("attn_qkv.weight", &[Query, Key, Value]);

/// llama.cpp's name for the norm before the feed-forward in architectures that name it by
/// position.
pub(crate) const GGUF_POST_ATTENTION: LayerNames = &[
    (FeedForwardPreNorm, "post_attention_norm.weight"),
    (ExpertsPreNorm, "post_attention_norm.weight"),
];

pub(crate) const EXPERT_GATE_UP: &[LayerRole] = &[ExpertGate, ExpertUp];

pub(crate) const EXPERT_MATRICES: &[LayerRole] = &[ExpertGate, ExpertUp, ExpertDown];

/// mlx-lm's stacks; transformers has a tensor for each expert.
pub(crate) const SWITCH_MLP: LayerNames = &[
    (ExpertGate, "mlp.switch_mlp.gate_proj.weight"),
    (ExpertUp, "mlp.switch_mlp.up_proj.weight"),
    (ExpertDown, "mlp.switch_mlp.down_proj.weight"),
];

/// The stacks under the module's original name.
pub(crate) const STACKED: LayerNames = &[
    (ExpertGate, "mlp.experts.gate_proj.weight"),
    (ExpertUp, "mlp.experts.up_proj.weight"),
    (ExpertDown, "mlp.experts.down_proj.weight"),
];

/// Qwen's one shared expert, which has a gate.
pub(crate) const SHARED_EXPERT: LayerNames = &[
    (SharedRouter, "mlp.shared_expert_gate.weight"),
    (SharedGate, "mlp.shared_expert.gate_proj.weight"),
    (SharedUp, "mlp.shared_expert.up_proj.weight"),
    (SharedDown, "mlp.shared_expert.down_proj.weight"),
];

/// Mixtral's router.
pub(crate) const BLOCK_SPARSE_ROUTER: LayerNames = &[
    (Router, "block_sparse_moe.gate.weight"),
    (RouterCorrection, "block_sparse_moe.e_score_correction_bias"),
];

/// Mixtral's experts.
pub(crate) const BLOCK_SPARSE: LayerNames = &[
    (ExpertGate, "block_sparse_moe.experts.{e}.w1.weight"),
    (ExpertUp, "block_sparse_moe.experts.{e}.w3.weight"),
    (ExpertDown, "block_sparse_moe.experts.{e}.w2.weight"),
];

/// mlx-lm's stacks under the same module.
pub(crate) const BLOCK_SPARSE_SWITCH: LayerNames = &[
    (ExpertGate, "block_sparse_moe.switch_mlp.gate_proj.weight"),
    (ExpertUp, "block_sparse_moe.switch_mlp.up_proj.weight"),
    (ExpertDown, "block_sparse_moe.switch_mlp.down_proj.weight"),
];
