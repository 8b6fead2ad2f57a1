//! Gemma: norms stored as `weight - 1`, scaled embeddings, a GELU gate and wide heads.

use serde_json::json;

use super::common::{Sizes, activation, expect_switch, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport};
use crate::mixers::Attention;
use crate::model::{Activation, ModelSpec};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma"],
    from_config,
    hugging_face: Naming {
        norms_minus_one: true,
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily::plain(&["gemma"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport::plain("gemma")),
        config_export: Some(ConfigExport {
            class: "GemmaForCausalLM",
            fields: &[ConfigFields::HiddenActivation],
        }),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 16,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
    }));
    expect_switch(config, "use_bidirectional_attention", false)?;
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = sizes.biased_attention(config, Some(rope))?;
    let activation = match activation(config, "hidden_act", Activation::GeluTanh)? {
        // The first releases say `gelu` but use the tanh approximation.
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    };
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(model(&sizes, tied, activation, attention))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let tied = gguf_tied(config);
    Ok(model(&sizes, tied, Activation::GeluTanh, attention))
}

fn model(sizes: &Sizes, tied: bool, activation: Activation, attention: Attention) -> ModelSpec {
    let feed_forward = sizes.gated(activation, false);
    let mut spec = sizes.pre_norm_model("gemma", tied, feed_forward, |_| attention.clone());
    spec.embedding.scale = (sizes.hidden as f32).sqrt();
    spec
}
