//! Llama 4 (text): attention within chunks on the layers with rope, over everything and with a
//! temperature on those without, and experts whose weights multiply their input.

mod gguf;

use serde_json::{Value, json};

use super::common::{
    EXPERT_GATE_UP, EXPERT_MATRICES, FEED_FORWARD, Mixture, Sizes, TOP_K, count_field, each,
    gated_experts, interval, layer_numbers, layer_types,
};
use super::{Family, GgufFamily, PLAIN, smollm3};
use crate::config::Config;
use crate::error::SpecError;
use crate::experts::{Router, SharedExpert};
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::mixers::{Attention, Mixer, QkNorm, Reach, Temperature};
use crate::model::{Dense, FeedForward, ModelSpec, Norm};
use crate::naming::{Fused, LayerNames, Naming};
use crate::roles::LayerRole::{self, *};
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_types: &["llama4_text"],
    from_config,
    hugging_face: Naming {
        overrides: &[
            FEED_FORWARD,
            SPARSE,
            &[(ExpertDown, "feed_forward.experts.down_proj")],
        ],
        fused: &[Fused::sequential(
            "feed_forward.experts.gate_up_proj",
            EXPERT_GATE_UP,
        )],
        transposed: EXPERT_MATRICES,
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[FEED_FORWARD, SPARSE, MLX],
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily {
        architectures: &["llama4"],
        from_gguf: gguf::from_gguf,
        naming: PLAIN.gguf,
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            text_model: false,
            ..MlxFacts::with_router(RouterPrecision::Uniform)
        },
        ..FamilyFacts::PLAIN
    },
};

const SPARSE: LayerNames = &[
    (LayerRole::Router, "feed_forward.router.weight"),
    (SharedGate, "feed_forward.shared_expert.gate_proj.weight"),
    (SharedUp, "feed_forward.shared_expert.up_proj.weight"),
    (SharedDown, "feed_forward.shared_expert.down_proj.weight"),
];

const MLX: LayerNames = &[
    (ExpertGate, "feed_forward.experts.gate_proj.weight"),
    (ExpertUp, "feed_forward.experts.up_proj.weight"),
    (ExpertDown, "feed_forward.experts.down_proj.weight"),
];

/// The config's defaults, and what llama.cpp assumes.
const CHUNK: usize = 8192;
const TEMPERATURE: Temperature = Temperature {
    beta: 0.1,
    span: 8192,
    offset: 1,
};
const NO_ROPE_INTERVAL: usize = 4;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 1,
        "max_position_embeddings": 131072,
        "attention_chunk_size": CHUNK,
    }));
    let sizes = Sizes::from_config(config)?;
    let with_rope = smollm3::layers_with_rope(config, sizes.layers)?;
    let known = &["chunked_attention", "full_attention"];
    let chunked = match layer_types(config, sizes.layers, known)? {
        Some(kinds) => kinds
            .iter()
            .map(|kind| *kind == "chunked_attention")
            .collect(),
        None => with_rope.clone(),
    };
    let fields = [count_field(config), TOP_K, "intermediate_size"];
    let experts = gated_experts(config, fields, Router::sigmoid())?;
    let dense = config.usize("intermediate_size_mlp")?;
    let parts = ModelParts {
        attention: sizes.biased_attention(config, None)?,
        rope: Rope::from_config(config, None, 500_000.0, sizes.head_dim)?.interleaved(),
        with_rope,
        chunked,
        chunk: config.usize_opt("attention_chunk_size")?,
        temperature: temperature(config)?,
        normalised: config.bool_or("use_qk_norm", true)?,
        mixture: Mixture {
            dense: FeedForward::Dense(Dense::gated(dense, experts.expert.activation)),
            experts,
            sparse: sparse(config, sizes.layers)?,
        },
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

/// Some checkpoints enable it with a number.
fn temperature(config: &Config) -> Result<Option<Temperature>, SpecError> {
    let field = "attn_temperature_tuning";
    let tuned = match config.get(field) {
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        _ => config.bool_or(field, true)?,
    };
    let temperature = Temperature {
        beta: config.f64_or("attn_scale", f64::from(TEMPERATURE.beta))? as f32,
        span: config.usize_or("floor_scale", TEMPERATURE.span)?,
        ..TEMPERATURE
    };
    Ok(tuned.then_some(temperature))
}

fn sparse(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    if let Some(listed) = layer_numbers(config, "moe_layers")? {
        return Ok((0..layers).map(|layer| listed.contains(&layer)).collect());
    }
    let step = interval(config, "interleave_moe_layer_step", 1)?;
    Ok(each(step, layers))
}

struct ModelParts {
    /// Without the properties that differ by layer.
    attention: Attention,
    rope: Rope,
    with_rope: Vec<bool>,
    chunked: Vec<bool>,
    chunk: Option<usize>,
    /// Of the layers without rope.
    temperature: Option<Temperature>,
    /// The layers with rope normalise queries and keys.
    normalised: bool,
    /// Without the shared expert.
    mixture: Mixture,
    tied: bool,
}

impl ModelParts {
    fn model(mut self, sizes: &Sizes) -> ModelSpec {
        let experts = &mut self.mixture.experts;
        experts.weigh_input = true;
        experts.shared = Some(SharedExpert {
            dense: experts.expert,
            gated: false,
        });
        let qk_norm = QkNorm {
            after_rope: true,
            ..QkNorm::per_head(Norm::rms(sizes.eps).weightless())
        };
        let mixer = |layer: usize| {
            let with_rope = self.with_rope[layer];
            let chunk = self.chunk.filter(|_| self.chunked[layer]);
            Mixer::Attention(Attention {
                rope: with_rope.then(|| self.rope.clone()),
                qk_norm: (with_rope && self.normalised).then_some(qk_norm),
                temperature: self.temperature.filter(|_| !with_rope),
                reach: chunk.map_or(Reach::All, Reach::Chunk),
                ..self.attention.clone()
            })
        };
        let mixture = &self.mixture;
        mixture.pre_norm_model(sizes, "llama4_text", self.tied, mixer)
    }
}
