//! MiniMax-M2: experts by sigmoid with a learned correction, queries and keys normalised across
//! all heads, and rope on a part of each.

use serde_json::json;

use super::common::{
    Sizes, TOP_K, count_field, expect_switch, expect_word, gated_experts, gguf_experts_of,
    gguf_rope, gguf_router, gguf_tied, layer_numbers, layer_types, normalised_sigmoid,
    partial_rope,
};
use super::{Family, GgufFamily, mixtral};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::mixers::{Attention, QkNorm};
use crate::model::{FeedForward, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    // Its first checkpoints, and MiniMax-01, use the second.
    model_types: &["minimax_m2", "minimax"],
    from_config,
    hugging_face: mixtral::HUGGING_FACE,
    mlx: Some(mixtral::MLX),
    gguf: Some(GgufFamily::plain(&["minimax-m2"], from_gguf)),
    facts: FamilyFacts {
        mlx: MlxFacts {
            required_fields: &["shared_intermediate_size"],
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 196608,
    }));
    let sizes = Sizes::from_config(config)?;
    refuse_other_blocks(config, sizes.layers)?;
    let rotating = config.usize_or("rotary_dim", sizes.head_dim)?;
    let rope = partial_rope(config, 5_000_000.0, sizes.head_dim, rotating)?;
    let fields = [count_field(config), TOP_K, "intermediate_size"];
    let router = Router {
        correction: true,
        ..normalised_sigmoid(0.0)
    };
    let experts = gated_experts(config, fields, router)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(model(&sizes, tied, rope, experts))
}

/// MiniMax-01's linear attention, and switches that are always off in M2.
fn refuse_other_blocks(config: &Config, layers: usize) -> Result<(), SpecError> {
    layer_types(config, layers, &["full_attention"])?;
    let kinds = layer_numbers(config, "attn_type_list")?.unwrap_or_default();
    if kinds.iter().any(|kind| *kind != 1) {
        return Err(SpecError::Unsupported {
            field: config.path("attn_type_list"),
            found: "a list with linear attention".into(),
            supported: "1 for every layer",
        });
    }
    let shared = config.usize_or("shared_intermediate_size", 0)?;
    if shared != 0 {
        return Err(SpecError::Unsupported {
            field: config.path("shared_intermediate_size"),
            found: shared.to_string(),
            supported: "0",
        });
    }
    expect_switch(config, "use_qk_norm", true)?;
    expect_switch(config, "use_routing_bias", true)?;
    expect_word(config, "qk_norm_type", "per_layer")?;
    expect_word(config, "scoring_func", "sigmoid")
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let router = gguf_router(config, normalised_sigmoid(0.0), 0)?;
    let experts = gguf_experts_of(config, sizes.feed_forward, router)?;
    Ok(model(&sizes, gguf_tied(config), rope, experts))
}

fn model(sizes: &Sizes, tied: bool, rope: Rope, experts: Experts) -> ModelSpec {
    let attention = Attention {
        qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
        ..sizes.attention(Some(rope))
    };
    let feed_forward = FeedForward::Experts(experts);
    sizes.pre_norm_model("minimax_m2", tied, feed_forward, |_| attention.clone())
}
