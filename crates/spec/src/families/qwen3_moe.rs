//! Qwen3-MoE: Qwen3 with experts, in every layer unless the config sets a step.

use serde_json::json;

use super::common::{
    Mixture, Sizes, TOP_K, count_field, gated_experts, gguf_experts, gguf_rope, gguf_tied, reach,
    sparse_by_step,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{
    ConfigExport, ConfigFields, FamilyFacts, GgufExport, MlxFacts, RouterPrecision,
};
use crate::mixers::{Attention, Mixer, QkNorm};
use crate::model::{FeedForward, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_moe"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: Some(PLAIN.mlx_experts),
    gguf: Some(GgufFamily::plain(&["qwen3moe", "qwen3vlmoe"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("qwen3moe")),
        config_export: Some(ConfigExport {
            class: "Qwen3MoeForCausalLM",
            fields: &[ConfigFields::NoSlidingWindow, ConfigFields::SparseExperts],
        }),
        mlx: MlxFacts {
            copied_fields: &[("num_experts", "num_local_experts")],
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        ..FamilyFacts::PLAIN
    },
};

pub(super) fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 32768,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let window = if config.bool_or("use_sliding_window", false)? {
        Some(config.usize_or("sliding_window", 4096)?)
    } else {
        None
    };
    let attention = Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
        reach: reach(window),
        ..sizes.biased_attention(config, Some(rope))?
    };
    let fields = [count_field(config), TOP_K, "moe_intermediate_size"];
    let router = Router::softmax(config.bool_or("norm_topk_prob", false)?);
    let experts = gated_experts(config, fields, router)?;
    let mixture = Mixture::new(&sizes, experts, sparse_by_step(config, sizes.layers)?);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(mixture.pre_norm_model(&sizes, "qwen3_moe", tied, |_| {
        Mixer::Attention(attention.clone())
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?.with_alternating_sections();
    let attention = Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let feed_forward = FeedForward::Experts(gguf_experts(config, Router::softmax(true))?);
    let tied = gguf_tied(config);
    Ok(sizes.pre_norm_model("qwen3_moe", tied, feed_forward, |_| attention.clone()))
}
