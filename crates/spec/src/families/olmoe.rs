//! OLMoE: experts in every layer, queries and keys normalised across all heads.

use serde_json::json;

use super::experts_parts::{SWITCH_MLP, count_field, gated_experts, gguf_experts};
use super::parts::{Sizes, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::mixers::{Attention, QkNorm};
use crate::model::{FeedForward, ModelSpec, Norm};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["olmoe"],
    from_config,
    hugging_face: PLAIN.0,
    mlx: Some(Naming {
        overrides: &SWITCH_MLP,
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["olmoe"],
        from_gguf,
        naming: PLAIN.1,
    }),
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
    }));
    if config.get("clip_qkv").is_some() {
        return Err(SpecError::Unsupported {
            field: config.path("clip_qkv"),
            found: "set".into(),
            supported: "null",
        });
    }
    let sizes = Sizes::from_config(config)?;
    let bias = config.bool_or("attention_bias", false)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
        ..sizes.attention(Some(rope))
    };
    let fields = [
        count_field(config),
        "num_experts_per_tok",
        "intermediate_size",
    ];
    let router = Router::softmax(config.bool_or("norm_topk_prob", false)?);
    let experts = gated_experts(config, fields, router)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(
        sizes.pre_norm_model("olmoe", tied, FeedForward::Experts(experts), |_| {
            attention.clone()
        }),
    )
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let experts = gguf_experts(config, sizes.feed_forward, Router::softmax(false))?;
    Ok(sizes.pre_norm_model(
        "olmoe",
        gguf_tied(config),
        FeedForward::Experts(experts),
        |_| Attention {
            qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
            ..sizes.attention(Some(rope.clone()))
        },
    ))
}
