//! Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and a gated one for every position.

use serde_json::json;

use super::common::{
    Mixture, SHARED_EXPERT, SWITCH_MLP, Sizes, TOP_K, count_field, gated_experts, gguf_experts,
    gguf_rope, gguf_tied, reach, sparse_by_step, windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router, SharedExpert};
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::{Attention, Mixer};
use crate::model::{Dense, FeedForward, ModelSpec};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen2_moe"],
    from_config,
    hugging_face: Naming {
        overrides: &[SHARED_EXPERT],
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[SHARED_EXPERT, SWITCH_MLP],
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily::plain(&["qwen2moe"], from_gguf)),
    facts: FamilyFacts::with_router(RouterPrecision::Uniform),
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 32768,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let windows = windows(config, sizes.layers)?;
    let bias = config.bool_or("qkv_bias", true)?;
    let fields = [count_field(config), TOP_K, "moe_intermediate_size"];
    let router = Router::softmax(config.bool_or("norm_topk_prob", false)?);
    let experts = gated_experts(config, fields, router)?;
    let shared = config.usize("shared_expert_intermediate_size")?;
    let experts = with_shared(experts, shared);
    let mixture = Mixture::new(&sizes, experts, sparse_by_step(config, sizes.layers)?);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(mixture.pre_norm_model(&sizes, "qwen2_moe", tied, |layer| {
        Mixer::Attention(Attention {
            qkv_bias: bias,
            reach: reach(windows[layer]),
            ..sizes.attention(Some(rope.clone()))
        })
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let experts = gguf_experts(config, Router::softmax(false))?;
    let feed_forward = FeedForward::Experts(gguf_with_shared(config, &sizes, experts)?);
    let tied = gguf_tied(config);
    Ok(sizes.pre_norm_model("qwen2_moe", tied, feed_forward, |_| attention.clone()))
}

pub(super) fn with_shared(experts: Experts, size: usize) -> Experts {
    Experts {
        shared: Some(SharedExpert {
            dense: Dense {
                size,
                ..experts.expert
            },
            gated: true,
        }),
        ..experts
    }
}

pub(super) fn gguf_with_shared(
    config: &GgufConfig,
    sizes: &Sizes,
    experts: Experts,
) -> Result<Experts, SpecError> {
    let shared = config.usize_opt("expert_shared_feed_forward_length")?;
    Ok(with_shared(experts, shared.unwrap_or(sizes.feed_forward)))
}

/// Each layer's window: unlike dense Qwen2's, every other layer below `max_window_layers`.
fn windows(config: &Config, layers: usize) -> Result<Vec<Option<usize>>, SpecError> {
    if !config.bool_or("use_sliding_window", false)? {
        return Ok(vec![None; layers]);
    }
    let window = config.usize_or("sliding_window", 4096)?;
    let end = config.usize_or("max_window_layers", 28)?;
    let windowed = windowed_layers(config, layers, |layer| layer % 2 == 0 && layer < end)?;
    let windows = windowed.iter().map(|windowed| windowed.then_some(window));
    Ok(windows.collect())
}
