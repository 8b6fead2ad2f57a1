//! Gemma 2: sandwich norms, capped scores and logits, a window on every other layer.

use serde_json::json;

use super::common::{
    Sizes, activation, expect_switch, gguf_rope, gguf_tied, gguf_windowed_layers, reach,
    sandwich_layer, windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{ConfigExport, ConfigFields, FamilyFacts, GgufExport, GgufKeys};
use crate::mixers::{Attention, Mixer};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma2"],
    from_config,
    hugging_face: NAMING,
    mlx: None,
    gguf: Some(GgufFamily::plain(&["gemma2"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport {
            keys: &[GgufKeys::Softcaps],
            windowed: true,
            ..GgufExport::plain("gemma2")
        }),
        config_export: Some(ConfigExport {
            class: "Gemma2ForCausalLM",
            fields: &[ConfigFields::HiddenActivation, ConfigFields::GemmaAttention],
        }),
        ..FamilyFacts::PLAIN
    },
};

pub(super) const NAMING: Naming = Naming {
    overrides: &[&[
        (MixerPostNorm, "post_attention_layernorm.weight"),
        (FeedForwardPreNorm, "pre_feedforward_layernorm.weight"),
        (FeedForwardPostNorm, "post_feedforward_layernorm.weight"),
    ]],
    norms_minus_one: true,
    ..PLAIN.hugging_face
};

/// Every second layer has full attention.
const PATTERN: usize = 2;
const WINDOW: usize = 4096;
const LAYERS_OF_27B: usize = 46;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }));
    expect_switch(config, "use_bidirectional_attention", false)?;
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let cap = |field| Ok(config.f64_opt(field)?.map(|cap| cap as f32));
    let parts = ModelParts {
        windowed: windowed_layers(config, sizes.layers, |layer| (layer + 1) % PATTERN != 0)?,
        window: config.usize_opt("sliding_window")?,
        global: rope.clone(),
        local: rope,
        attention: Attention {
            scale: query_scale(config)?,
            softcap: cap("attn_logit_softcapping")?,
            ..sizes.biased_attention(config, None)?
        },
        activation: activation(config, "hidden_activation", Activation::GeluTanh)?,
        tied: config.bool_or("tie_word_embeddings", true)?,
        softcap: cap("final_logit_softcapping")?,
    };
    Ok(parts.model("gemma2", &sizes))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let cap = |field| Ok(config.f64_opt(field)?.map(|cap| cap as f32));
    let window = config.usize_opt("attention.sliding_window")?;
    let parts = ModelParts {
        windowed: gguf_windowed_layers(config, sizes.layers, PATTERN)?,
        window: Some(window.unwrap_or(WINDOW)),
        global: rope.clone(),
        local: rope,
        attention: Attention {
            scale: gguf_query_scale(&sizes, LAYERS_OF_27B),
            softcap: cap("attn_logit_softcapping")?,
            ..sizes.gguf_attention(config, None)
        },
        activation: Activation::GeluTanh,
        tied: gguf_tied(config),
        softcap: cap("final_logit_softcapping")?,
    };
    Ok(parts.model("gemma2", &sizes))
}

/// The config has its own query scale, independent of the head dimension.
pub(super) fn query_scale(config: &Config) -> Result<f32, SpecError> {
    let field = "query_pre_attn_scalar";
    let scalar = config.f64_or(field, 256.0)?;
    if scalar > 0.0 {
        Ok(1.0 / (scalar as f32).sqrt())
    } else {
        Err(SpecError::invalid(config.path(field), scalar, "above 0"))
    }
}

/// GGUF has no key for it; llama.cpp detects the one size whose number is not the head dimension
/// by its layers.
pub(super) fn gguf_query_scale(sizes: &Sizes, layers_of_27b: usize) -> f32 {
    let scalar = if sizes.layers == layers_of_27b {
        sizes.hidden / sizes.heads
    } else {
        sizes.head_dim
    };
    1.0 / (scalar as f32).sqrt()
}

/// The parts shared by Gemma 2 and 3.
pub(super) struct ModelParts {
    /// Which layers are local.
    pub windowed: Vec<bool>,
    pub window: Option<usize>,
    pub global: Rope,
    pub local: Rope,
    /// Without RoPE and reach, which differ by layer.
    pub attention: Attention,
    pub activation: Activation,
    pub tied: bool,
    pub softcap: Option<f32>,
}

impl ModelParts {
    pub fn model(self, family: &'static str, sizes: &Sizes) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = self.windowed.iter().map(|local| {
            let rope = if *local { &self.local } else { &self.global };
            let attention = Attention {
                rope: Some(rope.clone()),
                reach: reach(self.window.filter(|_| *local)),
                ..self.attention.clone()
            };
            let feed_forward = sizes.gated(self.activation, false);
            sandwich_layer(norm, Mixer::Attention(attention), feed_forward)
        });
        let mut spec = sizes.model(family, self.tied, norm, layers.collect());
        spec.embedding.scale = (sizes.hidden as f32).sqrt();
        spec.head.softcap = self.softcap;
        spec
    }
}
