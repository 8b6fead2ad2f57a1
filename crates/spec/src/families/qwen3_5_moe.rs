//! Qwen3.5 with experts (the text model): Qwen3.5's mixers, Qwen3-Next's experts in every layer.

use super::common::{
    DELTA_CONV, DELTA_QKV, EXPERT_GATE_UP, QUERY_AND_GATE, SHARED_EXPERT, SWITCH_MLP, Sizes,
    qwen_hybrid,
};
use super::{Family, GgufFamily, qwen3_5, qwen3_next};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::mixers::KeySharing;
use crate::model::{FeedForward, ModelSpec};
use crate::naming::{Fused, Naming};
use crate::roles::LayerRole::*;

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
    from_config,
    hugging_face: Naming {
        overrides: &[SHARED_EXPERT],
        also: Some(&PUBLISHED),
        ..qwen3_5::HUGGING_FACE
    },
    mlx: Some(Naming {
        overrides: &[SHARED_EXPERT, SWITCH_MLP],
        ..qwen3_5::MLX
    }),
    gguf: Some(GgufFamily {
        architectures: &["qwen35moe"],
        from_gguf,
        naming: qwen3_5::GGUF,
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            wrapper: Some("qwen3_5_moe"),
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        ..FamilyFacts::PLAIN
    },
};

/// Qwen's own checkpoints: a layer's experts are in two tensors.
const PUBLISHED: Naming = Naming {
    overrides: &[SHARED_EXPERT, &[(ExpertDown, "mlp.experts.down_proj")]],
    fused: &[
        QUERY_AND_GATE,
        DELTA_CONV,
        DELTA_QKV,
        Fused::sequential("mlp.experts.gate_up_proj", EXPERT_GATE_UP),
    ],
    ..qwen3_5::HUGGING_FACE
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    // It has no dense layers; the config may omit their size.
    let config = &config.renamed(&[("moe_intermediate_size", "intermediate_size")]);
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let experts = qwen3_next::experts(config, true)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let mixers = qwen_hybrid(config, &sizes)?;
    Ok(mixers.model(&sizes, "qwen3_5_moe", tied, |_| {
        FeedForward::Experts(experts.clone())
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    qwen3_next::gguf_model(config, "qwen3_5_moe", KeySharing::Strided)
}
