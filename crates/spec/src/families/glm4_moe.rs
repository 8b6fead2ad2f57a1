//! GLM-4.5 to 4.7: DeepSeek-V3's experts over plain attention with rope on half of each head.

use serde_json::json;

use super::common::{
    FURTHER_LAYERS, GGUF_POST_ATTENTION, Mixture, Sizes, UNGROUPED, corrected_experts,
    gguf_mixture, gguf_rope, gguf_tied, sparse_after_dense, without_further_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::{Attention, Mixer, QkNorm};
use crate::model::{ModelSpec, Norm};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["glm4_moe"],
    from_config,
    hugging_face: Naming {
        ignored: FURTHER_LAYERS,
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        ignored: FURTHER_LAYERS,
        ..PLAIN.mlx_experts
    }),
    gguf: Some(GgufFamily {
        architectures: &["glm4moe"],
        from_gguf,
        naming: Naming {
            overrides: &[GGUF_POST_ATTENTION],
            ignored: FURTHER_LAYERS,
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::with_router(RouterPrecision::Unquantized),
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.5,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::partial_from_config(config, None, 10_000.0, sizes.head_dim)?;
    let normalised = config.bool_or("use_qk_norm", false)?;
    let attention = Attention {
        qkv_bias: config.bool_or("attention_bias", false)?,
        qk_norm: normalised.then_some(QkNorm::per_head(Norm::rms(sizes.eps))),
        ..sizes.attention(Some(rope))
    };
    let experts = corrected_experts(config, &UNGROUPED)?;
    let mixture = Mixture::new(
        &sizes,
        experts,
        sparse_after_dense(config, 1, sizes.layers)?,
    );
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(mixture.pre_norm_model(&sizes, "glm4_moe", tied, |_| {
        Mixer::Attention(attention.clone())
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = without_further_layers(config, Sizes::from_gguf(config)?)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let normalised = config.has("blk.0.attn_q_norm.weight");
    let attention = Attention {
        qk_norm: normalised.then_some(QkNorm::per_head(Norm::rms(sizes.eps))),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let mixture = gguf_mixture(config, &sizes, Router::sigmoid())?;
    let tied = gguf_tied(config);
    Ok(mixture.pre_norm_model(&sizes, "glm4_moe", tied, |_| {
        Mixer::Attention(attention.clone())
    }))
}
