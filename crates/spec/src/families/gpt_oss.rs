//! gpt-oss: every other layer looks through a window, heads have sinks, and experts have biases
//! and a clamped activation.

use serde_json::json;

use super::experts_parts::{STACKED, count_field, gated_experts, gguf_experts};
use super::parts::{Sizes, gguf_rope, gguf_tied, gguf_windowed_layers, reach, windowed_layers};
use super::recurrent_parts::GGUF_POST_ATTENTION;
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::mixers::Attention;
use crate::model::{Activation, Dense, FeedForward, ModelSpec};
use crate::naming::{Fused, Naming, Split, join};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs, RopeScaling};

pub(super) const FAMILY: Family = Family {
    model_types: &["gpt_oss"],
    from_config,
    // The files in MXFP4 have the same names, but for an ending, and rows as rows.
    hugging_face: Naming {
        overrides: &[
            ROUTER,
            SINKS,
            (LayerRole::ExpertDown, "mlp.experts.down_proj"),
        ],
        fused: &[Fused {
            name: "mlp.experts.gate_up_proj",
            parts: &[LayerRole::ExpertGate, LayerRole::ExpertUp],
            split: Split::Alternate,
        }],
        transposed: &[
            LayerRole::ExpertGate,
            LayerRole::ExpertUp,
            LayerRole::ExpertDown,
        ],
        ..PLAIN.0
    },
    mlx: Some(Naming {
        overrides: &MLX,
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["gpt-oss"],
        from_gguf,
        naming: Naming {
            overrides: &GGUF_POST_ATTENTION,
            ..PLAIN.1
        },
    }),
};

const ROUTER: (LayerRole, &str) = (LayerRole::Router, "mlp.router.weight");
const SINKS: (LayerRole, &str) = (LayerRole::Sinks, "self_attn.sinks");

const MLX: [(LayerRole, &str); 5] = join(&[&[ROUTER, SINKS], &STACKED]);

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
    }));
    let sizes = Sizes::from_config(config)?;
    // Without either the family would scale by numbers of its own.
    if config.get("rope_parameters").is_none() && config.get("rope_scaling").is_none() {
        return Err(SpecError::Missing {
            field: config.path("rope_parameters"),
        });
    }
    let fields = [
        count_field(config),
        "num_experts_per_tok",
        "intermediate_size",
    ];
    let parts = Parts {
        rope: Rope::from_config(config, None, 150_000.0, sizes.head_dim)?,
        windowed: windowed_layers(config, sizes.layers, |layer| layer % 2 == 0)?,
        window: config.usize("sliding_window")?,
        attention_bias: config.bool_or("attention_bias", true)?,
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
    // The header cannot say it; no gpt-oss rounds the ramp's ends.
    if let RopeScaling::Yarn(yarn) = &mut rope.scaling {
        yarn.truncate = false;
    }
    let size = config.usize("expert_feed_forward_length")?;
    let parts = Parts {
        rope,
        windowed: gguf_windowed_layers(config, sizes.layers, 2)?,
        window: config.usize("attention.sliding_window")?,
        attention_bias: config.has("blk.0.attn_q.bias"),
        experts: gguf_experts(config, size, Router::softmax(true))?,
        activation: Activation::ClampedSwiglu {
            alpha: ALPHA as f32,
            limit: LIMIT as f32,
        },
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}

struct Parts {
    rope: Rope,
    windowed: Vec<bool>,
    window: usize,
    attention_bias: bool,
    experts: Experts,
    activation: Activation,
    tied: bool,
}

impl Parts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let experts = Experts {
            expert: Dense {
                bias: true,
                activation: self.activation,
                ..self.experts.expert
            },
            router: Router {
                bias: true,
                ..self.experts.router
            },
            ..self.experts
        };
        sizes.pre_norm_model(
            "gpt_oss",
            self.tied,
            FeedForward::Experts(experts),
            |layer| Attention {
                qkv_bias: self.attention_bias,
                output_bias: self.attention_bias,
                sinks: true,
                reach: reach(self.windowed[layer].then_some(self.window)),
                ..sizes.attention(Some(self.rope.clone()))
            },
        )
    }
}
