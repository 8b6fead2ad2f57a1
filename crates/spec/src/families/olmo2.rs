//! OLMo 2: norms after attention and feed-forward instead of before, queries and keys normalised
//! over all heads at once.

use serde_json::json;

use super::common::{LayerScheme, Sizes, activation, post_norm_layer};
use super::{Family, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::{Attention, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_types: &["olmo2"],
    from_config,
    hugging_face: NAMING,
    mlx: None,
    // Read with OLMo 3's, which has the same architecture.
    gguf: None,
    facts: FamilyFacts {
        templates: &["tulu"],
        gguf_export: Some(GgufExport::plain("olmo2")),
        config_export: Some(ConfigExport {
            class: "Olmo2ForCausalLM",
            fields: &[ConfigFields::Biases],
        }),
        ..FamilyFacts::PLAIN
    },
};

pub(super) const NAMING: Naming = Naming {
    overrides: &[&[
        (MixerPostNorm, "post_attention_layernorm.weight"),
        (FeedForwardPostNorm, "post_feedforward_layernorm.weight"),
    ]],
    ..PLAIN.hugging_face
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"rms_norm_eps": 1e-5}));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        rope: Some(rope),
        ..attention(config, &sizes)?
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let scheme = scheme(&sizes);
    Ok(sizes.attention_model("olmo2", tied, scheme, feed_forward, |_| attention.clone()))
}

/// Without RoPE and reach, which differ by layer.
pub(super) fn attention(config: &Config, sizes: &Sizes) -> Result<Attention, SpecError> {
    Ok(Attention {
        qk_norm: Some(QkNorm::all_heads(Norm::rms(sizes.eps))),
        ..sizes.biased_attention(config, None)?
    })
}

/// Post-norm layers.
pub(super) fn scheme(sizes: &Sizes) -> (Norm, LayerScheme) {
    (Norm::rms(sizes.eps), post_norm_layer)
}
