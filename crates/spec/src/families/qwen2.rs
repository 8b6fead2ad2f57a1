//! Qwen2 and Qwen2.5: biases on q, k and v; a window on the upper layers if enabled.

use super::common::{Sizes, activation, gguf_rope, gguf_tied, reach, windowed_layers};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &[
        "qwen2",
        "qwen2_vl_text",
        "qwen2_vl",
        "qwen2_5_vl_text",
        "qwen2_5_vl",
    ],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["qwen2", "qwen2vl"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("qwen2")),
        config_export: Some(ConfigExport {
            class: "Qwen2ForCausalLM",
            fields: &[ConfigFields::NoSlidingWindow],
        }),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let windows = windows(config, sizes.layers)?;
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(
        sizes.pre_norm_model("qwen2", tied, feed_forward, |layer| Attention {
            qkv_bias: true,
            reach: reach(windows[layer]),
            ..sizes.attention(Some(rope.clone()))
        }),
    )
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(
        sizes.pre_norm_model("qwen2", gguf_tied(config), feed_forward, |_| Attention {
            qkv_bias: true,
            ..sizes.attention(Some(rope.clone()))
        }),
    )
}

/// Each layer's window: Qwen switches windows on as a whole, then from `max_window_layers` up.
pub(super) fn windows(config: &Config, layers: usize) -> Result<Vec<Option<usize>>, SpecError> {
    if !config.bool_or("use_sliding_window", false)? {
        return Ok(vec![None; layers]);
    }
    let window = config.usize("sliding_window")?;
    let first = config.usize_or("max_window_layers", 28)?;
    let windowed = windowed_layers(config, layers, |layer| layer >= first)?;
    Ok(windowed
        .iter()
        .map(|windowed| windowed.then_some(window))
        .collect())
}
