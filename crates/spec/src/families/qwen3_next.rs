//! Qwen3-Next: three layers of gated delta rule to each of gated attention, and experts as Qwen2
//! has them.

use super::experts_parts::{
    FURTHER_LAYERS, Mixture, SHARED_EXPERT, SHARED_EXPERT_MLX, gated_experts, gguf_experts,
    sparse_by_step, without_further_layers,
};
use super::parts::{Sizes, gguf_tied};
use super::qwen2_moe::with_shared;
use super::recurrent_parts::{
    DELTA_CONV, GGUF_DELTA_CONV, GGUF_DELTA_QKV, GGUF_POST_ATTENTION, GGUF_QUERY_AND_GATE,
    QUERY_AND_GATE, gguf_qwen_hybrid, qwen_hybrid,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::mixers::KeySharing;
use crate::model::{FeedForward, ModelSpec};
use crate::naming::{ConvShape, Fused, Naming, Split};
use crate::roles::LayerRole;

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_next"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(Naming {
        overrides: &SHARED_EXPERT_MLX,
        conv_shape: ConvShape::ChannelLast,
        norms_minus_one: false,
        ..HUGGING_FACE
    }),
    gguf: Some(GgufFamily {
        architectures: &["qwen3next"],
        from_gguf,
        naming: GGUF,
    }),
};

const HUGGING_FACE: Naming = Naming {
    overrides: &SHARED_EXPERT,
    fused: &[
        QUERY_AND_GATE,
        DELTA_CONV,
        Fused {
            name: "linear_attn.in_proj_qkvz.weight",
            ..QKVZ
        },
        Fused {
            name: "linear_attn.in_proj_ba.weight",
            ..BETA_AND_DECAY
        },
    ],
    norms_minus_one: true,
    ..PLAIN.0
};

const GGUF: Naming = Naming {
    fused: &[
        GGUF_QUERY_AND_GATE,
        GGUF_DELTA_CONV,
        GGUF_DELTA_QKV,
        BETA_AND_DECAY,
    ],
    also: Some(&OLDER_GGUF),
    ..OLDER_GGUF
};

/// From before llama.cpp took the gate apart.
const OLDER_GGUF: Naming = Naming {
    overrides: &GGUF_POST_ATTENTION,
    fused: &[GGUF_QUERY_AND_GATE, GGUF_DELTA_CONV, QKVZ, BETA_AND_DECAY],
    ignored: FURTHER_LAYERS,
    ..PLAIN.1
};

const QKVZ: Fused = Fused {
    name: "ssm_in.weight",
    parts: &[
        LayerRole::DeltaQuery,
        LayerRole::DeltaKey,
        LayerRole::DeltaValue,
        LayerRole::DeltaGate,
    ],
    split: Split::PerHead,
};

const BETA_AND_DECAY: Fused = Fused {
    name: "ssm_ba.weight",
    parts: &[LayerRole::DeltaBeta, LayerRole::DeltaDecay],
    split: Split::PerHead,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let normalise = config.bool_or("norm_topk_prob", true)?;
    let experts = experts(config, normalise)?;
    let mixture = Mixture {
        dense: sizes.gated(experts.expert.activation, false),
        experts,
        sparse: sparse_by_step(config, sizes.layers)?,
    };
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let mixers = qwen_hybrid(config, &sizes)?;
    Ok(mixers.model(&sizes, "qwen3_next", tied, |layer| {
        mixture.feed_forward(layer)
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    gguf_model(config, "qwen3_next", KeySharing::Neighbours)
}

pub(super) fn experts(config: &Config, normalise: bool) -> Result<Experts, SpecError> {
    let fields = [
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ];
    let experts = gated_experts(config, fields, Router::softmax(normalise))?;
    let shared = config.usize("shared_expert_intermediate_size")?;
    Ok(with_shared(experts, shared))
}

/// Experts in every layer.
pub(super) fn gguf_model(
    config: &GgufConfig,
    family: &'static str,
    sharing: KeySharing,
) -> Result<ModelSpec, SpecError> {
    let sizes = without_further_layers(config, Sizes::from_gguf(config)?)?;
    let size = config.usize("expert_feed_forward_length")?;
    let experts = gguf_experts(config, size, Router::softmax(true))?;
    let shared = config.usize_opt("expert_shared_feed_forward_length")?;
    let experts = with_shared(experts, shared.unwrap_or(sizes.feed_forward));
    let mixers = gguf_qwen_hybrid(config, &sizes, sharing)?;
    Ok(mixers.model(&sizes, family, gguf_tied(config), |_| {
        FeedForward::Experts(experts.clone())
    }))
}
