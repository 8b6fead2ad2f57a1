//! Arcee's AFMoE (Trinity): sandwich norms, gated heads, rope on the windowed layers alone, and
//! experts by sigmoid with a learned correction.

use serde_json::json;

use super::common::{
    Mixture, NORMALISE_EPS, STACKED, Sizes, TOP_K, WindowedAttention, count_field, expect_switch,
    expect_word, gated_experts, gguf_mixture, gguf_rope, gguf_tied, gguf_windowed_layers, interval,
    normalised_sigmoid, sandwich_layer, shared_experts, sparse_from, windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::{Attention, Mixer, QkNorm};
use crate::model::{ModelSpec, Norm};
use crate::naming::{LayerNames, Naming};
use crate::roles::LayerRole::{self, *};
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["afmoe"],
    from_config,
    hugging_face: Naming {
        overrides: &[NAMES],
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[NAMES, STACKED],
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily {
        architectures: &["afmoe"],
        from_gguf,
        naming: Naming {
            overrides: &[&[
                (OutputGate, "attn_gate.weight"),
                (ExpertsPostNorm, "post_ffw_norm.weight"),
            ]],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::with_router(RouterPrecision::EightBits),
};

const NAMES: LayerNames = &[
    (MixerPostNorm, "post_attention_layernorm.weight"),
    (FeedForwardPreNorm, "pre_mlp_layernorm.weight"),
    (FeedForwardPostNorm, "post_mlp_layernorm.weight"),
    (ExpertsPreNorm, "pre_mlp_layernorm.weight"),
    (ExpertsPostNorm, "post_mlp_layernorm.weight"),
    (OutputGate, "self_attn.gate_proj.weight"),
    (LayerRole::Router, "mlp.router.gate.weight"),
    (RouterCorrection, "mlp.expert_bias"),
];

/// The usual interval; no converter writes a key for it.
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
    let global = interval(config, "global_attn_every_n_layers", GLOBAL_INTERVAL)?;
    let router = Router {
        correction: true,
        scale: config.f64_or("route_scale", 1.0)? as f32,
        ..normalised_sigmoid(NORMALISE_EPS)
    };
    let fields = [count_field(config), TOP_K, "moe_intermediate_size"];
    let mut experts = gated_experts(config, fields, router)?;
    experts.shared = shared_experts(config, "num_shared_experts", 2, &experts.expert)?;
    let first_sparse = config.usize_or("num_dense_layers", 1)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let parts = ModelParts {
        attention: WindowedAttention {
            windowed: windowed_layers(config, sizes.layers, |layer| (layer + 1) % global != 0)?,
            window: config.usize("sliding_window")?,
            attention: sizes.biased_attention(config, Some(rope))?,
        },
        mixture: Mixture::new(&sizes, experts, sparse_from(first_sparse, sizes.layers)),
        scaled_embedding: config.bool_or("mup_enabled", false)?,
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let parts = ModelParts {
        attention: WindowedAttention {
            windowed: gguf_windowed_layers(config, sizes.layers, GLOBAL_INTERVAL)?,
            window: config.usize("attention.sliding_window")?,
            attention: sizes.gguf_attention(config, Some(rope)),
        },
        mixture: gguf_mixture(config, &sizes, normalised_sigmoid(NORMALISE_EPS))?,
        // llama.cpp always does this.
        scaled_embedding: true,
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}

struct ModelParts {
    attention: WindowedAttention,
    mixture: Mixture,
    scaled_embedding: bool,
    tied: bool,
}

impl ModelParts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = (0..sizes.layers).map(|layer| {
            let windowed = self.attention.windowed[layer];
            let attention = self.attention.layer(layer);
            let attention = Attention {
                qk_norm: Some(QkNorm::per_head(norm)),
                // Global layers have none.
                rope: attention.rope.filter(|_| windowed),
                output_gate: true,
                ..attention
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
