//! Mistral 7B and derivatives: Llama's shape, optionally with a sliding window on every layer.

use serde_json::json;

use super::common::{Sizes, activation, reach};
use super::{Family, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_types: &["mistral"],
    from_config,
    hugging_face: PLAIN.hugging_face,
    mlx: None,
    // Written as `llama`.
    gguf: None,
    facts: FamilyFacts {
        templates: &["llama2"],
        gguf_export: Some(GgufExport::plain("llama")),
        config_export: Some(ConfigExport {
            class: "MistralForCausalLM",
            fields: &[ConfigFields::SlidingWindow],
        }),
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    // `null` means no window.
    let config = &config.with_defaults(json!({"rms_norm_eps": 1e-6, "sliding_window": 4096}));
    let sizes = Sizes::explicit(config, &["num_key_value_heads"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        reach: reach(config.usize_opt("sliding_window")?),
        ..sizes.attention(Some(rope))
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("mistral", tied, feed_forward, |_| attention.clone()))
}
