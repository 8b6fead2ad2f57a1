//! Gemma 3 (text): sandwich norms, normalised queries and keys, scaled embeddings, and local
//! layers with a window and a rope of their own between the global ones.

use super::parts::{Sizes, activation, gguf_rope, gguf_tied, interval, windowed_layers};
use super::{Family, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::model::{Activation, Attention, ModelSpec, Norm};
use crate::naming::{LayerRole, Naming};
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_type: "gemma3_text",
    architecture: "gemma3",
    from_config,
    from_gguf,
    hugging_face: Naming {
        overrides: &[
            (
                LayerRole::MixerPostNorm,
                "model.layers.{}.post_attention_layernorm",
            ),
            (
                LayerRole::FeedForwardPreNorm,
                "model.layers.{}.pre_feedforward_layernorm",
            ),
            (
                LayerRole::FeedForwardPostNorm,
                "model.layers.{}.post_feedforward_layernorm",
            ),
        ],
        norms_minus_one: true,
        ..PLAIN.0
    },
    gguf: PLAIN.1,
};

const LOCAL_THETA: f64 = 10_000.0;
const GLOBAL_THETA: f64 = 1_000_000.0;
/// Every sixth layer is global unless the config says otherwise.
const PATTERN: usize = 6;
/// The one size whose queries are not scaled by their head dimension; GGUF has no key for it.
const LAYERS_OF_27B: usize = 62;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let pattern = interval(
        config.path("sliding_window_pattern"),
        config.usize_or("sliding_window_pattern", PATTERN)?,
    )?;
    let windowed = windowed_layers(config, sizes.layers, |layer| (layer + 1) % pattern != 0)?;
    let global = Rope::from_config(config, Some("full_attention"), GLOBAL_THETA, sizes.head_dim)?;
    let local = match config.object("rope_parameters")? {
        Some(_) => Rope::from_config(
            config,
            Some("sliding_attention"),
            LOCAL_THETA,
            sizes.head_dim,
        )?,
        None => Rope::plain(
            config.f64_or("rope_local_base_freq", LOCAL_THETA)? as f32,
            sizes.head_dim,
        ),
    };
    let parts = Parts {
        windowed,
        window: config.usize("sliding_window")?,
        global,
        local,
        scale: query_scale(config)?,
        bias: config.bool_or("attention_bias", false)?,
        activation: activation(config, "hidden_activation", Activation::GeluTanh)?,
        tied: config.bool_or("tie_word_embeddings", true)?,
        softcap: config
            .f64_opt("final_logit_softcapping")?
            .map(|cap| cap as f32),
    };
    if config.get("attn_logit_softcapping").is_some() {
        return Err(SpecError::Unsupported {
            field: "attn_logit_softcapping".into(),
            found: "set".into(),
            supported: "null",
        });
    }
    // Embedding models share the family's name, not its attention.
    if config.bool_or("use_bidirectional_attention", false)? {
        return Err(SpecError::Unsupported {
            field: "use_bidirectional_attention".into(),
            found: "true".into(),
            supported: "false",
        });
    }
    Ok(parts.model(&sizes))
}

fn query_scale(config: &Config) -> Result<f32, SpecError> {
    let field = "query_pre_attn_scalar";
    let scalar = config.f64_or(field, 256.0)?;
    if scalar > 0.0 {
        Ok(1.0 / (scalar as f32).sqrt())
    } else {
        Err(SpecError::invalid(config.path(field), scalar, "above 0"))
    }
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let scaled_by = if sizes.layers == LAYERS_OF_27B {
        sizes.hidden / sizes.heads
    } else {
        sizes.head_dim
    };
    let mut global = gguf_rope(config, sizes.head_dim)?;
    if config.f64_opt("rope.freq_base")?.is_none() {
        global.theta = GLOBAL_THETA as f32;
    }
    let pattern = interval(
        config.key("attention.sliding_window_pattern"),
        config
            .usize_opt("attention.sliding_window_pattern")?
            .unwrap_or(PATTERN),
    )?;
    let local_theta = config.f64_opt("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
    let parts = Parts {
        windowed: (0..sizes.layers)
            .map(|layer| (layer + 1) % pattern != 0)
            .collect(),
        window: config.usize("attention.sliding_window")?,
        global,
        local: Rope::plain(local_theta as f32, sizes.head_dim),
        scale: 1.0 / (scaled_by as f32).sqrt(),
        bias: false,
        activation: Activation::GeluTanh,
        tied: gguf_tied(config),
        softcap: config
            .f64_opt("final_logit_softcapping")?
            .map(|cap| cap as f32),
    };
    Ok(parts.model(&sizes))
}

struct Parts {
    windowed: Vec<bool>,
    window: usize,
    global: Rope,
    local: Rope,
    scale: f32,
    bias: bool,
    activation: Activation,
    tied: bool,
    softcap: Option<f32>,
}

impl Parts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let feed_forward = sizes.gated(self.activation, false);
        let mut spec = sizes.pre_norm_model("gemma3_text", self.tied, feed_forward, |layer| {
            let local = self.windowed[layer];
            let rope = if local { &self.local } else { &self.global };
            Attention {
                qkv_bias: self.bias,
                output_bias: self.bias,
                qk_norm: Some(norm),
                scale: self.scale,
                window: local.then_some(self.window),
                ..sizes.attention(Some(rope.clone()))
            }
        });
        for layer in &mut spec.layers {
            layer.mixer.post_norm = Some(norm);
            layer.feed_forward.post_norm = Some(norm);
        }
        spec.embedding_scale = (sizes.hidden as f32).sqrt();
        spec.head.softcap = self.softcap;
        spec
    }
}
