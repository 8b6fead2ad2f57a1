//! Llama 4 (text): attention within chunks on the layers with rope, over everything and with a
//! temperature on those without, and experts whose weights multiply what goes in.

use serde_json::{Value, json};

use super::experts_parts::{Mixture, count_field, gated_experts, gguf_experts, layer_numbers};
use super::parts::{Sizes, gguf_rope, gguf_tied, interval, layer_types};
use super::{Family, GgufFamily, PLAIN, smollm3};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router, SharedExpert};
use crate::mixers::{Attention, Mixer, QkNorm, Reach, Temperature};
use crate::model::{Activation, Dense, FeedForward, ModelSpec, Norm};
use crate::naming::{Fused, Naming, Split, join};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["llama4_text"],
    from_config,
    hugging_face: Naming {
        overrides: &HUGGING_FACE,
        fused: &[Fused {
            name: "feed_forward.experts.gate_up_proj",
            parts: &[LayerRole::ExpertGate, LayerRole::ExpertUp],
            split: Split::Sequential,
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
        architectures: &["llama4"],
        from_gguf,
        naming: PLAIN.1,
    }),
};

const NAMES: [(LayerRole, &str); 7] = [
    (LayerRole::Gate, "feed_forward.gate_proj.weight"),
    (LayerRole::Up, "feed_forward.up_proj.weight"),
    (LayerRole::Down, "feed_forward.down_proj.weight"),
    (LayerRole::Router, "feed_forward.router.weight"),
    (
        LayerRole::SharedGate,
        "feed_forward.shared_expert.gate_proj.weight",
    ),
    (
        LayerRole::SharedUp,
        "feed_forward.shared_expert.up_proj.weight",
    ),
    (
        LayerRole::SharedDown,
        "feed_forward.shared_expert.down_proj.weight",
    ),
];

const HUGGING_FACE: [(LayerRole, &str); 8] = join(&[
    &NAMES,
    &[(LayerRole::ExpertDown, "feed_forward.experts.down_proj")],
]);

const MLX: [(LayerRole, &str); 10] = join(&[
    &NAMES,
    &[
        (
            LayerRole::ExpertGate,
            "feed_forward.experts.gate_proj.weight",
        ),
        (LayerRole::ExpertUp, "feed_forward.experts.up_proj.weight"),
        (
            LayerRole::ExpertDown,
            "feed_forward.experts.down_proj.weight",
        ),
    ],
]);

/// The config's defaults, and what llama.cpp assumes.
const CHUNK: usize = 8192;
const TEMPERATURE: Temperature = Temperature {
    beta: 0.1,
    span: 8192,
    offset: 1,
};
const NO_ROPE_INTERVAL: usize = 4;
/// The size that does not normalise queries and keys; GGUF has no key for it.
const EXPERTS_OF_MAVERICK: usize = 128;

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
    let chunk = config.usize_opt("attention_chunk_size")?;
    let fields = [
        count_field(config),
        "num_experts_per_tok",
        "intermediate_size",
    ];
    let experts = gated_experts(config, fields, Router::sigmoid())?;
    let dense = config.usize("intermediate_size_mlp")?;
    let parts = Parts {
        rope: Rope::from_config(config, None, 500_000.0, sizes.head_dim)?.neighbours(),
        with_rope,
        reaches: reaches(chunked, chunk),
        temperature: temperature(config)?,
        normalised: config.bool_or("use_qk_norm", true)?,
        bias: config.bool_or("attention_bias", false)?,
        dense: Dense::gated(dense, experts.expert.activation),
        experts,
        sparse: sparse(config, sizes.layers)?,
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

fn reaches(chunked: Vec<bool>, chunk: Option<usize>) -> Vec<Reach> {
    let chunks = chunked.into_iter().map(|chunked| chunk.filter(|_| chunked));
    chunks
        .map(|chunk| chunk.map_or(Reach::All, Reach::Chunk))
        .collect()
}

/// Some checkpoints switch it on by a number.
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
    let field = "interleave_moe_layer_step";
    let step = interval(config.path(field), config.usize_or(field, 1)?)?;
    Ok((0..layers).map(|layer| (layer + 1) % step == 0).collect())
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    // This is how a file says that no layer is chunked, and none without rope.
    let plain = config.usize_opt("attention.sliding_window")? == Some(0);
    let local: Vec<bool> = (0..sizes.layers)
        .map(|layer| plain || (layer + 1) % NO_ROPE_INTERVAL != 0)
        .collect();
    let size = config.usize("expert_feed_forward_length")?;
    let experts = gguf_experts(config, size, Router::sigmoid())?;
    let step = interval(
        config.key("interleave_moe_layer_step"),
        config.usize("interleave_moe_layer_step")?,
    )?;
    let parts = Parts {
        rope: gguf_rope(config, sizes.head_dim, RopePairs::Neighbours)?,
        reaches: reaches(local.clone(), (!plain).then_some(CHUNK)),
        with_rope: local,
        temperature: Some(TEMPERATURE),
        normalised: experts.count != EXPERTS_OF_MAVERICK,
        bias: config.has("blk.0.attn_q.bias"),
        dense: Dense::gated(sizes.feed_forward, Activation::Silu),
        experts,
        sparse: (0..sizes.layers)
            .map(|layer| (layer + 1) % step == 0)
            .collect(),
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}

struct Parts {
    rope: Rope,
    with_rope: Vec<bool>,
    reaches: Vec<Reach>,
    temperature: Option<Temperature>,
    normalised: bool,
    bias: bool,
    dense: Dense,
    experts: Experts,
    sparse: Vec<bool>,
    tied: bool,
}

impl Parts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let qk_norm = QkNorm {
            after_rope: true,
            ..QkNorm::per_head(Norm::rms(sizes.eps).weightless())
        };
        let mixture = Mixture {
            experts: Experts {
                shared: Some(SharedExpert {
                    dense: self.experts.expert,
                    gated: false,
                }),
                weigh_input: true,
                ..self.experts
            },
            dense: FeedForward::Dense(self.dense),
            sparse: self.sparse,
        };
        mixture.pre_norm_model(sizes, "llama4_text", self.tied, |layer| {
            let with_rope = self.with_rope[layer];
            Mixer::Attention(Attention {
                qkv_bias: self.bias,
                output_bias: self.bias,
                qk_norm: (with_rope && self.normalised).then_some(qk_norm),
                temperature: self.temperature.filter(|_| !with_rope),
                reach: self.reaches[layer],
                ..sizes.attention(with_rope.then(|| self.rope.clone()))
            })
        })
    }
}
