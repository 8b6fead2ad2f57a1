//! Reads Gemma 4 from GGUF.

use super::PATTERN;
use super::model::{Gemma4, Shape, experts, first_shared, kv_source, per_layer_inputs};
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::families::common::{Sizes, gguf_rope, gguf_tied, gguf_windowed_layers};
use crate::model::{Activation, Dense, ModelSpec};
use crate::rope::{Rope, RopePairs};

/// The token whose per-layer inputs positions of media get.
fn padding_token(config: &GgufConfig) -> u32 {
    let id = config.header.u64("tokenizer.ggml.padding_token_id");
    id.and_then(|id| u32::try_from(id).ok()).unwrap_or(0)
}

pub(super) fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let global_dim = config.usize("attention.key_length")?;
    let local_dim = config.usize("attention.key_length_swa")?;
    let sizes = Sizes::gguf_with_heads(config, local_dim, None)?;
    let windowed = gguf_windowed_layers(config, sizes.layers, PATTERN)?;
    let kv_heads = config.per_layer("attention.head_count_kv", sizes.layers)?;
    let kv_heads = kv_heads.unwrap_or_else(|| vec![sizes.heads; sizes.layers]);
    let feed_forward = config.per_layer("feed_forward_length", sizes.layers)?;
    let feed_forward = feed_forward.unwrap_or_default();
    let shared = config.usize_opt("attention.shared_kv_layers")?.unwrap_or(0);
    let field = config.key("attention.shared_kv_layers");
    let first_shared = first_shared(&sizes, field, shared)?;
    let global = gguf_rope(config, global_dim, RopePairs::Halves)?;
    let local_theta = config.f64_opt("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let local_rotating = config.usize_opt("rope.dimension_count_swa")?;
    let local = Rope::plain(local_theta as f32, local_rotating.unwrap_or(local_dim));
    let mut shapes = Vec::with_capacity(sizes.layers);
    for (layer, is_local) in windowed.iter().enumerate() {
        let key_is_value = !config.has(&format!("blk.{layer}.attn_v.weight"));
        shapes.push(Shape {
            local: *is_local,
            head_dim: if *is_local { local_dim } else { global_dim },
            kv_heads: kv_heads[layer],
            kv: kv_source(&windowed, first_shared, layer, key_is_value)?,
            feed_forward: feed_forward
                .get(layer)
                .copied()
                .unwrap_or(sizes.feed_forward),
            rope: if *is_local { &local } else { &global }.clone(),
        });
    }
    let activation = Activation::GeluTanh;
    let experts = match config.usize_opt("expert_count")?.unwrap_or(0) {
        0 => None,
        count => Some(experts(
            &sizes,
            count,
            config.usize("expert_used_count")?,
            Dense::gated(config.usize("expert_feed_forward_length")?, activation),
        )),
    };
    let dim = config.usize_opt("embedding_length_per_layer_input")?;
    let per_layer = match dim.unwrap_or(0) {
        0 => None,
        dim => Some(per_layer_inputs(
            &sizes,
            dim,
            config.rows("per_layer_token_embd.weight")?,
            padding_token(config),
        )),
    };
    let softcap = config.f64_opt("final_logit_softcapping")?;
    let parts = Gemma4 {
        shapes,
        window: config.usize("attention.sliding_window")?,
        bias: false,
        activation,
        experts,
        per_layer,
        scaled: config.has("blk.0.layer_output_scale.weight"),
        tied: gguf_tied(config),
        softcap: softcap.map(|cap| cap as f32),
    };
    Ok(parts.model(&sizes))
}
