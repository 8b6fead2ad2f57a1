//! OLMoE: experts in every layer, queries and keys normalised across all heads.

use serde_json::json;

use super::common::{
    Sizes, TOP_K, count_field, gated_experts, gguf_experts_of, gguf_rope, gguf_tied, refuse_field,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{FamilyFacts, GgufExport, MlxFacts, RouterPrecision};
use crate::mixers::{Attention, QkNorm};
use crate::model::{FeedForward, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["olmoe"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: Some(PLAIN.mlx_experts),
    gguf: Some(GgufFamily::plain(&["olmoe"], from_gguf)),
    facts: FamilyFacts {
        templates: &["tulu"],
        gguf_export: Some(GgufExport::plain("olmoe")),
        mlx: MlxFacts::with_router(RouterPrecision::Uniform),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 4096,
    }));
    refuse_field(config, "clip_qkv")?;
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
        ..sizes.biased_attention(config, Some(rope))?
    };
    let fields = [count_field(config), TOP_K, "intermediate_size"];
    let router = Router::softmax(config.bool_or("norm_topk_prob", false)?);
    let experts = gated_experts(config, fields, router)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let feed_forward = FeedForward::Experts(experts);
    Ok(sizes.pre_norm_model("olmoe", tied, feed_forward, |_| attention.clone()))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = Attention {
        qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
        ..sizes.attention(Some(rope))
    };
    let experts = gguf_experts_of(config, sizes.feed_forward, Router::softmax(false))?;
    let (tied, feed_forward) = (gguf_tied(config), FeedForward::Experts(experts));
    Ok(sizes.pre_norm_model("olmoe", tied, feed_forward, |_| attention.clone()))
}
