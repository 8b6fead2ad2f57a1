//! SmolLM3: Llama without positions in every fourth layer.

use super::common::{Sizes, all_but_each, gguf_rope, gguf_tied, interval, reach};
use super::{Family, GgufFamily, PLAIN, qwen2};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["smollm3"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["smollm3"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("smollm3")),
        config_export: Some(ConfigExport {
            class: "SmolLM3ForCausalLM",
            fields: &[
                ConfigFields::NoRopeLayers,
                ConfigFields::NoSlidingWindow,
                ConfigFields::Biases,
            ],
        }),
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

/// GGUF has no key for it; llama.cpp fixes the interval.
const NO_ROPE_INTERVAL: usize = 4;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads"])?;
    let rope = Rope::from_config(config, None, 2_000_000.0, sizes.head_dim)?;
    let with_rope = layers_with_rope(config, sizes.layers)?;
    let windows = qwen2::windows(config, sizes.layers)?;
    let attention = sizes.biased_attention(config, None)?;
    let feed_forward = sizes.biased_gated(config)?;
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(
        sizes.pre_norm_model("smollm3", tied, feed_forward, |layer| Attention {
            rope: with_rope[layer].then(|| rope.clone()),
            reach: reach(windows[layer]),
            ..attention.clone()
        }),
    )
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let feed_forward = sizes.gated(Activation::Silu, false);
    Ok(
        sizes.pre_norm_model("smollm3", gguf_tied(config), feed_forward, |layer| {
            let with_rope = (layer + 1) % NO_ROPE_INTERVAL != 0;
            sizes.attention(with_rope.then(|| rope.clone()))
        }),
    )
}

/// Despite its name, `no_rope_layers` lists 1 for layers *with* rope.
pub(super) fn layers_with_rope(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let flags = config.array("no_rope_layers")?;
    let Some(flags) = flags.filter(|flags| !flags.is_empty()) else {
        let interval = interval(config, "no_rope_layer_interval", NO_ROPE_INTERVAL)?;
        return Ok(all_but_each(interval, layers));
    };
    let refuse = |found: String| {
        let expected = format!("a list of 0 or 1 for each of {layers} layers");
        SpecError::invalid(config.path("no_rope_layers"), found, expected)
    };
    if flags.len() != layers {
        return Err(refuse(format!("a list of {}", flags.len())));
    }
    let flags = flags.iter().map(|flag| match flag.as_u64() {
        Some(flag @ 0..=1) => Ok(flag == 1),
        _ => Err(refuse(format!("a list with {flag}"))),
    });
    flags.collect()
}
