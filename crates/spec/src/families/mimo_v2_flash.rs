//! MiMo-V2-Flash: windowed layers with sinks, twice the key/value heads and a rope of their own;
//! values shorter than keys, and DeepSeek-V3's router.

use serde_json::json;

use super::experts_parts::{
    CorrectedDefaults, Mixture, SWITCH_MLP, corrected_experts, expect_switch, gguf_experts,
    gguf_router, layer_numbers, sparse_layers, without_further_layers,
};
use super::parts::{
    Sizes, gguf_rope, gguf_tied, gguf_windowed_layers, reach, refuse_switch, windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::mixers::{Attention, Mixer};
use crate::model::{Activation, ModelSpec};
use crate::naming::{Ignored, Naming, join};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["mimo_v2_flash"],
    from_config,
    hugging_face: Naming {
        overrides: &[SINKS],
        ignored: IGNORED,
        ..PLAIN.0
    },
    mlx: Some(Naming {
        overrides: &MLX,
        ignored: IGNORED,
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["mimo2"],
        from_gguf,
        naming: Naming {
            ignored: Ignored {
                further_layers: true,
                ..PLAIN.1.ignored
            },
            ..PLAIN.1
        },
    }),
};

const SINKS: (LayerRole, &str) = (LayerRole::Sinks, "self_attn.attention_sink_bias");

const MLX: [(LayerRole, &str); 4] = join(&[&[SINKS], &SWITCH_MLP]);

const IGNORED: Ignored = Ignored {
    beginnings: &["model.mtp."],
    ..PLAIN.0.ignored
};

const DEFAULTS: CorrectedDefaults = CorrectedDefaults {
    scale: 1.0,
    groups: 1,
    groups_kept: 1,
    shared: 0,
};

const GLOBAL_THETA: f64 = 5_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;
const TURNING: f64 = 0.334;
const GLOBAL_INTERVAL: usize = 6;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "num_experts_per_tok": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 129,
        "attention_value_scale": 0.707,
        "layernorm_epsilon": 1e-5,
    }));
    expect_switch(config, "add_swa_attention_sink_bias", true)?;
    refuse_switch(config, "add_full_attention_sink_bias")?;
    let eps = match config.get("rms_norm_eps") {
        Some(_) => "rms_norm_eps",
        None => "layernorm_epsilon",
    };
    let sizes = Sizes::with_head_dim(config, eps, config.usize("head_dim")?)?;
    let experts = corrected_experts(config, &DEFAULTS)?;
    let parts = Parts {
        global: rope(config, "full_attention", "rope_theta", GLOBAL_THETA)?,
        local: rope(config, "sliding_attention", "swa_rope_theta", LOCAL_THETA)?,
        windowed: windowed(config, sizes.layers)?,
        window: window(config)?,
        local_kv_heads: 2 * sizes.kv_heads,
        value_dim: config.usize("v_head_dim")?,
        value_scale: config.f64_or("attention_value_scale", 1.0)? as f32,
        bias: config.bool_or("attention_bias", false)?,
        mixture: Mixture {
            dense: sizes.gated(experts.expert.activation, false),
            experts,
            sparse: sparse(config, sizes.layers)?,
        },
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

fn rope(config: &Config, group: &str, field: &str, theta: f64) -> Result<Rope, SpecError> {
    let head_dim = config.usize("head_dim")?;
    if config.get("rope_parameters").is_some() {
        return Rope::from_config(config, Some(group), theta, head_dim);
    }
    let turning = config.f64_or("partial_rotary_factor", TURNING)?;
    let theta = config.f64_or(field, theta)?;
    Ok(Rope::plain(
        theta as f32,
        (head_dim as f64 * turning) as usize,
    ))
}

/// `sliding_window_size` counts the positions before a position, `sliding_window` itself too.
fn window(config: &Config) -> Result<usize, SpecError> {
    match config.usize_opt("sliding_window_size")? {
        Some(before) => Ok(before + 1),
        None => config.usize("sliding_window"),
    }
}

fn windowed(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let pattern = flags(config, "hybrid_layer_pattern", layers)?;
    windowed_layers(config, layers, |layer| match &pattern {
        Some(pattern) => pattern[layer],
        None => layer != 0 && (layer + 1) % GLOBAL_INTERVAL != 0,
    })
}

fn sparse(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    if config.get("mlp_layer_types").is_none()
        && let Some(flags) = flags(config, "moe_layer_freq", layers)?
    {
        return Ok(flags);
    }
    sparse_layers(config, 1, layers)
}

/// The published files list a 0 or 1 for each layer.
fn flags(config: &Config, field: &str, layers: usize) -> Result<Option<Vec<bool>>, SpecError> {
    match layer_numbers(config, field)? {
        Some(list) if list.len() != layers => Err(SpecError::invalid(
            config.path(field),
            format!("a list of {}", list.len()),
            format!("one entry for each of {layers} layers"),
        )),
        list => Ok(list.map(|list| list.iter().map(|flag| *flag == 1).collect())),
    }
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::gguf_with_heads(config, config.usize("attention.key_length")?, None)?;
    let sizes = without_further_layers(config, sizes)?;
    let windowed = gguf_windowed_layers(config, sizes.layers, GLOBAL_INTERVAL)?;
    let kv_heads = config.per_layer("attention.head_count_kv", sizes.layers)?;
    let kv_heads = kv_heads.unwrap_or_else(|| vec![sizes.heads; sizes.layers]);
    let heads_where = |local: bool| {
        let layer = windowed.iter().position(|windowed| *windowed == local);
        layer.map_or(sizes.heads, |layer| kv_heads[layer])
    };
    let global = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let local_theta = config.f64_opt("rope.freq_base_swa")?;
    let sparse: Vec<bool> = (0..sizes.layers)
        .map(|layer| config.has(&format!("blk.{layer}.ffn_gate_inp.weight")))
        .collect();
    let first_sparse = sparse.iter().position(|sparse| *sparse).unwrap_or(0);
    let base = Router {
        normalise: Some(0.0),
        ..Router::sigmoid()
    };
    let router = gguf_router(config, base, first_sparse)?;
    let size = config.usize("expert_feed_forward_length")?;
    let scale = config.f64_opt("attention.value_scale")?;
    let parts = Parts {
        local: Rope {
            theta: local_theta.map_or(global.theta, |theta| theta as f32),
            ..global.clone()
        },
        global,
        window: config.usize("attention.sliding_window")?,
        local_kv_heads: heads_where(true),
        value_dim: config.usize("attention.value_length")?,
        value_scale: scale.filter(|scale| *scale != 0.0).unwrap_or(1.0) as f32,
        bias: config.has("blk.0.attn_q.bias"),
        mixture: Mixture {
            experts: gguf_experts(config, size, router)?,
            dense: sizes.gated(Activation::Silu, false),
            sparse,
        },
        tied: gguf_tied(config),
        windowed: windowed.clone(),
    };
    let sizes = Sizes {
        kv_heads: heads_where(false),
        ..sizes
    };
    Ok(parts.model(&sizes))
}

struct Parts {
    global: Rope,
    local: Rope,
    windowed: Vec<bool>,
    window: usize,
    local_kv_heads: usize,
    value_dim: usize,
    value_scale: f32,
    bias: bool,
    mixture: Mixture,
    tied: bool,
}

impl Parts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let family = "mimo_v2_flash";
        self.mixture
            .pre_norm_model(sizes, family, self.tied, |layer| {
                let windowed = self.windowed[layer];
                let (rope, kv_heads) = match windowed {
                    true => (&self.local, self.local_kv_heads),
                    false => (&self.global, sizes.kv_heads),
                };
                Mixer::Attention(Attention {
                    kv_heads,
                    value_dim: self.value_dim,
                    value_scale: self.value_scale,
                    qkv_bias: self.bias,
                    sinks: windowed,
                    reach: reach(windowed.then_some(self.window)),
                    ..sizes.attention(Some(rope.clone()))
                })
            })
    }
}
