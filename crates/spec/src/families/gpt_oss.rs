//! gpt-oss: every other layer has a window, heads have sinks, and experts have biases
//! and a clamped activation.

use serde_json::json;

use super::common::{
    EXPERT_GATE_UP, EXPERT_MATRICES, GGUF_POST_ATTENTION, STACKED, Sizes, TOP_K, WindowedAttention,
    count_field, gated_experts, gguf_experts, gguf_rope, gguf_tied, gguf_windowed_layers,
    windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::Attention;
use crate::model::{Activation, FeedForward, ModelSpec};
use crate::naming::{Fused, LayerNames, Naming, Split};
use crate::roles::LayerRole::{self, *};
use crate::rope::{Rope, RopePairs, RopeScaling};

pub(super) const FAMILY: Family = Family {
    model_types: &["gpt_oss"],
    from_config,
    // MXFP4 files use the same names with a suffix, and are not transposed.
    hugging_face: Naming {
        overrides: &[NAMES, &[(ExpertDown, "mlp.experts.down_proj")]],
        fused: &[Fused {
            name: "mlp.experts.gate_up_proj",
            parts: EXPERT_GATE_UP,
            split: Split::Alternate,
        }],
        transposed: EXPERT_MATRICES,
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[NAMES, STACKED],
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily {
        architectures: &["gpt-oss"],
        from_gguf,
        naming: Naming {
            overrides: &[GGUF_POST_ATTENTION],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::with_router(RouterPrecision::EightBits),
};

const NAMES: LayerNames = &[
    (LayerRole::Router, "mlp.router.weight"),
    (Sinks, "self_attn.sinks"),
];

/// GGUF has no keys for them.
const ALPHA: f64 = 1.702;
const LIMIT: f64 = 7.0;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 131072,
        "sliding_window": 128,
        "attention_bias": true,
    }));
    let sizes = Sizes::from_config(config)?;
    // Without either field, the family's defaults apply.
    if config.get("rope_parameters").is_none() && config.get("rope_scaling").is_none() {
        return Err(SpecError::Missing {
            field: config.path("rope_parameters"),
        });
    }
    let fields = [count_field(config), TOP_K, "intermediate_size"];
    let rope = Rope::from_config(config, None, 150_000.0, sizes.head_dim)?;
    let parts = ModelParts {
        attention: WindowedAttention {
            windowed: windowed_layers(config, sizes.layers, |layer| layer % 2 == 0)?,
            window: config.usize("sliding_window")?,
            attention: sizes.biased_attention(config, Some(rope))?,
        },
        experts: gated_experts(config, fields, Router::softmax(true))?,
        activation: Activation::ClampedSwiglu {
            alpha: config.f64_or("swiglu_alpha", ALPHA)? as f32,
            limit: config.f64_or("swiglu_limit", LIMIT)? as f32,
        },
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let mut rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    // The header has no key for it; no gpt-oss model rounds the ends of the ramp.
    if let RopeScaling::Yarn(yarn) = &mut rope.scaling {
        yarn.truncate = false;
    }
    let parts = ModelParts {
        attention: WindowedAttention {
            windowed: gguf_windowed_layers(config, sizes.layers, 2)?,
            window: config.usize("attention.sliding_window")?,
            attention: sizes.gguf_attention(config, Some(rope)),
        },
        experts: gguf_experts(config, Router::softmax(true))?,
        activation: Activation::ClampedSwiglu {
            alpha: ALPHA as f32,
            limit: LIMIT as f32,
        },
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}

struct ModelParts {
    /// Without sinks.
    attention: WindowedAttention,
    /// Without activation and biases.
    experts: Experts,
    activation: Activation,
    tied: bool,
}

impl ModelParts {
    fn model(mut self, sizes: &Sizes) -> ModelSpec {
        self.experts.expert.activation = self.activation;
        self.experts.expert.bias = true;
        self.experts.router.bias = true;
        let feed_forward = FeedForward::Experts(self.experts);
        sizes.pre_norm_model("gpt_oss", self.tied, feed_forward, |layer| Attention {
            sinks: true,
            ..self.attention.layer(layer)
        })
    }
}
