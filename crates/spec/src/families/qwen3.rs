//! Qwen3 (dense): normalised queries and keys, biases only if the config sets them.

use super::common::{Sizes, activation, gguf_rope, gguf_tied, reach};
use super::{Family, GgufFamily, PLAIN, qwen2};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::{Attention, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3", "qwen3_vl_text", "qwen3_vl"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["qwen3", "qwen3vl"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("qwen3")),
        config_export: Some(ConfigExport {
            class: "Qwen3ForCausalLM",
            fields: &[ConfigFields::NoSlidingWindow],
        }),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let windows = qwen2::windows(config, sizes.layers)?;
    let attention = sizes.biased_attention(config, Some(rope))?;
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(
        sizes.pre_norm_model("qwen3", tied, feed_forward, |layer| Attention {
            qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
            reach: reach(windows[layer]),
            ..attention.clone()
        }),
    )
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?.with_alternating_sections();
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(
        sizes.pre_norm_model("qwen3", gguf_tied(config), feed_forward, |_| Attention {
            qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
            ..sizes.attention(Some(rope.clone()))
        }),
    )
}
