//! Arcee's AFMoE (Trinity): sandwich norms, gated heads, rope on the windowed layers alone, and
//! experts by sigmoid with a learned correction.

use serde_json::json;

use super::experts_parts::{
    Mixture, NORMALISE_EPS, STACKED, count_field, expect_switch, expect_word, gated_experts,
    gguf_experts, gguf_router, shared_experts, sparse_from,
};
use super::parts::{
    Sizes, gguf_rope, gguf_tied, gguf_windowed_layers, interval, reach, sandwich_layer,
    windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::mixers::{Attention, Mixer, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::{Naming, join};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["afmoe"],
    from_config,
    hugging_face: Naming {
        overrides: &NAMES,
        ..PLAIN.0
    },
    mlx: Some(Naming {
        overrides: &MLX,
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["afmoe"],
        from_gguf,
        naming: Naming {
            overrides: &[
                (LayerRole::OutputGate, "attn_gate.weight"),
                (LayerRole::ExpertsPostNorm, "post_ffw_norm.weight"),
            ],
            ..PLAIN.1
        },
    }),
};

const NAMES: [(LayerRole, &str); 8] = [
    (LayerRole::MixerPostNorm, "post_attention_layernorm.weight"),
    (LayerRole::FeedForwardPreNorm, "pre_mlp_layernorm.weight"),
    (LayerRole::FeedForwardPostNorm, "post_mlp_layernorm.weight"),
    (LayerRole::ExpertsPreNorm, "pre_mlp_layernorm.weight"),
    (LayerRole::ExpertsPostNorm, "post_mlp_layernorm.weight"),
    (LayerRole::OutputGate, "self_attn.gate_proj.weight"),
    (LayerRole::Router, "mlp.router.gate.weight"),
    (LayerRole::RouterCorrection, "mlp.expert_bias"),
];

const MLX: [(LayerRole, &str); 11] = join(&[&NAMES, &STACKED]);

/// Usual, though no converter writes a key for it.
const GLOBAL_INTERVAL: usize = 4;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 6,
        "max_position_embeddings": 16384,
        "sliding_window": 1024,
    }));
    expect_word(config, "score_func", "sigmoid")?;
    expect_switch(config, "route_norm", true)?;
    let sizes = Sizes::from_config(config)?;
    let global = interval(
        config.path("global_attn_every_n_layers"),
        config.usize_or("global_attn_every_n_layers", GLOBAL_INTERVAL)?,
    )?;
    let router = Router {
        correction: true,
        scale: config.f64_or("route_scale", 1.0)? as f32,
        ..router()
    };
    let fields = [
        count_field(config),
        "num_experts_per_tok",
        "moe_intermediate_size",
    ];
    let experts = gated_experts(config, fields, router)?;
    let first = config.usize_or("num_dense_layers", 1)?;
    let parts = Parts {
        rope: Rope::from_config(config, None, 10_000.0, sizes.head_dim)?,
        windowed: windowed_layers(config, sizes.layers, |layer| (layer + 1) % global != 0)?,
        window: config.usize("sliding_window")?,
        bias: config.bool_or("attention_bias", false)?,
        mixture: Mixture {
            dense: sizes.gated(experts.expert.activation, false),
            experts: Experts {
                shared: shared_experts(config, "num_shared_experts", 2, &experts.expert)?,
                ..experts
            },
            sparse: sparse_from(first, sizes.layers),
        },
        scaled_embedding: config.bool_or("mup_enabled", false)?,
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let first = config.usize_opt("leading_dense_block_count")?.unwrap_or(0);
    let router = gguf_router(config, router(), first)?;
    let size = config.usize("expert_feed_forward_length")?;
    let parts = Parts {
        rope: gguf_rope(config, sizes.head_dim, RopePairs::Halves)?,
        windowed: gguf_windowed_layers(config, sizes.layers, GLOBAL_INTERVAL)?,
        window: config.usize("attention.sliding_window")?,
        bias: config.has("blk.0.attn_q.bias"),
        mixture: Mixture {
            experts: gguf_experts(config, size, router)?,
            dense: sizes.gated(Activation::Silu, false),
            sparse: sparse_from(first, sizes.layers),
        },
        // llama.cpp does so whatever the config said.
        scaled_embedding: true,
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}

fn router() -> Router {
    Router {
        normalise: Some(NORMALISE_EPS),
        ..Router::sigmoid()
    }
}

struct Parts {
    rope: Rope,
    windowed: Vec<bool>,
    window: usize,
    bias: bool,
    mixture: Mixture,
    scaled_embedding: bool,
    tied: bool,
}

impl Parts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = (0..sizes.layers).map(|layer| {
            let windowed = self.windowed[layer];
            let attention = Attention {
                qkv_bias: self.bias,
                output_bias: self.bias,
                qk_norm: Some(QkNorm::per_head(norm)),
                reach: reach(windowed.then_some(self.window)),
                output_gate: true,
                ..sizes.attention(windowed.then(|| self.rope.clone()))
            };
            let feed_forward = self.mixture.feed_forward(layer);
            sandwich_layer(norm, Mixer::Attention(attention), feed_forward)
        });
        let mut spec = sizes.model("afmoe", self.tied, norm, layers.collect());
        if self.scaled_embedding {
            spec.embedding.scale = (sizes.hidden as f32).sqrt();
        }
        spec
    }
}
