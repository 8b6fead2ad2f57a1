//! Qwen3-Next: three layers of gated delta rule to each of gated attention, and experts as Qwen2
//! has them.

use super::common::{
    DELTA_CONV, FURTHER_LAYERS, GGUF_DELTA_CONV, GGUF_DELTA_QKV, GGUF_POST_ATTENTION,
    GGUF_QUERY_AND_GATE, Mixture, QUERY_AND_GATE, SHARED_EXPERT, SWITCH_MLP, Sizes, TOP_K,
    gated_experts, gguf_experts, gguf_qwen_hybrid, gguf_tied, qwen_hybrid, sparse_by_step,
    without_further_layers,
};
use super::qwen2_moe::{gguf_with_shared, with_shared};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::KeySharing;
use crate::model::{FeedForward, ModelSpec};
use crate::naming::{ConvShape, Fused, Naming};
use crate::roles::LayerRole::*;

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_next"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(Naming {
        overrides: &[SHARED_EXPERT, SWITCH_MLP],
        conv_shape: ConvShape::ChannelLast,
        norms_minus_one: false,
        ..HUGGING_FACE
    }),
    gguf: Some(GgufFamily {
        architectures: &["qwen3next"],
        from_gguf,
        naming: GGUF,
    }),
    facts: FamilyFacts::with_router(RouterPrecision::EightBits),
};

const HUGGING_FACE: Naming = Naming {
    overrides: &[SHARED_EXPERT],
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
    ..PLAIN.hugging_face
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

/// From before llama.cpp separated the gate.
const OLDER_GGUF: Naming = Naming {
    overrides: &[GGUF_POST_ATTENTION],
    fused: &[GGUF_QUERY_AND_GATE, GGUF_DELTA_CONV, QKVZ, BETA_AND_DECAY],
    ignored: FURTHER_LAYERS,
    ..PLAIN.gguf
};

const QKVZ: Fused = Fused::per_head(
    "ssm_in.weight",
    &[DeltaQuery, DeltaKey, DeltaValue, DeltaGate],
);

const BETA_AND_DECAY: Fused = Fused::per_head("ssm_ba.weight", &[DeltaBeta, DeltaDecay]);

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let normalise = config.bool_or("norm_topk_prob", true)?;
    let experts = experts(config, normalise)?;
    let mixture = Mixture::new(&sizes, experts, sparse_by_step(config, sizes.layers)?);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let mixers = qwen_hybrid(config, &sizes)?;
    Ok(mixers.model(&sizes, "qwen3_next", tied, |layer| {
        mixture.feed_forward(layer)
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    gguf_model(config, "qwen3_next", KeySharing::Adjacent)
}

pub(super) fn experts(config: &Config, normalise: bool) -> Result<Experts, SpecError> {
    let fields = ["num_experts", TOP_K, "moe_intermediate_size"];
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
    let experts = gguf_experts(config, Router::softmax(true))?;
    let experts = gguf_with_shared(config, &sizes, experts)?;
    let mixers = gguf_qwen_hybrid(config, &sizes, sharing)?;
    Ok(mixers.model(&sizes, family, gguf_tied(config), |_| {
        FeedForward::Experts(experts.clone())
    }))
}
