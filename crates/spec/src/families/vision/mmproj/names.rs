//! llama.cpp's names of a tower's tensors.

use crate::roles::LayerRole::{self, *};
use crate::vision_naming::VisionNaming;
use crate::vision_roles::VisionRole;

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "ln1.weight"),
    (MixerPostNorm, "attn_post_norm.weight"),
    (Query, "attn_q.weight"),
    (Key, "attn_k.weight"),
    (Value, "attn_v.weight"),
    (Output, "attn_out.weight"),
    (QueryNorm, "attn_q_norm.weight"),
    (KeyNorm, "attn_k_norm.weight"),
    (FeedForwardPreNorm, "ln2.weight"),
    (FeedForwardPostNorm, "ffn_post_norm.weight"),
    (Gate, "ffn_gate.weight"),
    (Up, "ffn_up.weight"),
    (Down, "ffn_down.weight"),
];

pub(super) const NAMES: VisionNaming = VisionNaming {
    globals: &[
        (VisionRole::Patch, "v.patch_embd.weight"),
        (VisionRole::ClassToken, "v.class_embd"),
        (VisionRole::Positions, "v.position_embd.weight"),
        (VisionRole::PatchNorm, "v.norm_embd.weight"),
        (VisionRole::EmbeddingNorm, "v.pre_ln.weight"),
        (VisionRole::FinalNorm, "v.post_ln.weight"),
    ],
    layers: "v.blk.{}.",
    layer: LAYER,
    fused_qkv: None,
    gains: ["ls1.weight", "ls2.weight"],
    projector: &[],
    deepstack: &[],
    deepstack_by_layer: true,
    norms_minus_one: false,
    // Audio parts.
    ignored: &["a.", "mm.a."],
};
