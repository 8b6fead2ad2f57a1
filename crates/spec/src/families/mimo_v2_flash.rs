//! MiMo-V2-Flash: windowed layers with sinks, twice the key/value heads and a separate RoPE;
//! values shorter than keys, and DeepSeek-V3's router.

mod gguf;

use serde_json::json;

use super::common::{
    CorrectedDefaults, FURTHER_LAYERS, Mixture, SWITCH_MLP, Sizes, UNGROUPED, corrected_experts,
    expect_switch, layer_numbers, reach, sparse_layers, windowed_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::mixers::{Attention, Mixer};
use crate::model::ModelSpec;
use crate::naming::{Ignored, LayerNames, Naming};
use crate::roles::LayerRole::*;
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_types: &["mimo_v2_flash"],
    from_config,
    hugging_face: Naming {
        overrides: &[SINKS],
        ignored: IGNORED,
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[SINKS, SWITCH_MLP],
        ignored: IGNORED,
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily {
        architectures: &["mimo2"],
        from_gguf: gguf::from_gguf,
        naming: Naming {
            ignored: FURTHER_LAYERS,
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            required_fields: &["hybrid_layer_pattern"],
            ..MlxFacts::with_router(RouterPrecision::Unquantized)
        },
        ..FamilyFacts::PLAIN
    },
};

const SINKS: LayerNames = &[(Sinks, "self_attn.attention_sink_bias")];

const IGNORED: Ignored = Ignored {
    beginnings: &["model.mtp."],
    ..PLAIN.hugging_face.ignored
};

const DEFAULTS: CorrectedDefaults = CorrectedDefaults {
    shared: 0,
    ..UNGROUPED
};

const GLOBAL_THETA: f64 = 5_000_000.0;
const LOCAL_THETA: f64 = 10_000.0;
/// The share of a head that rotates.
const ROTATED_SHARE: f64 = 0.334;
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
    expect_switch(config, "add_full_attention_sink_bias", false)?;
    let eps = match config.get("rms_norm_eps") {
        Some(_) => "rms_norm_eps",
        None => "layernorm_epsilon",
    };
    let sizes = Sizes::with_head_dim(config, eps, config.usize("head_dim")?)?;
    let value_dim = config.usize("v_head_dim")?;
    expect_number(config, "swa_num_attention_heads", sizes.heads)?;
    expect_number(config, "swa_head_dim", sizes.head_dim)?;
    expect_number(config, "swa_v_head_dim", value_dim)?;
    let experts = corrected_experts(config, &DEFAULTS)?;
    let parts = ModelParts {
        global: rope(config, "full_attention", "rope_theta", GLOBAL_THETA)?,
        local: rope(config, "sliding_attention", "swa_rope_theta", LOCAL_THETA)?,
        windowed: windowed(config, sizes.layers)?,
        window: window(config)?,
        // Like transformers, which ignores `swa_num_key_value_heads`; a checkpoint with another
        // number does not bind.
        local_kv_heads: 2 * sizes.kv_heads,
        attention: Attention {
            value_dim,
            value_scale: config.f64_or("attention_value_scale", 1.0)? as f32,
            qkv_bias: config.bool_or("attention_bias", false)?,
            ..sizes.attention(None)
        },
        mixture: Mixture::new(&sizes, experts, sparse(config, sizes.layers)?),
        tied: config.bool_or("tie_word_embeddings", false)?,
    };
    Ok(parts.model(&sizes))
}

/// Published configs repeat the global layers' fields for the local ones.
fn expect_number(config: &Config, field: &str, known: usize) -> Result<(), SpecError> {
    match config.usize_or(field, known)? {
        found if found == known => Ok(()),
        found => Err(SpecError::invalid(
            config.path(field),
            found,
            format!("{known}, as on the global layers"),
        )),
    }
}

fn rope(config: &Config, group: &str, field: &str, theta: f64) -> Result<Rope, SpecError> {
    let head_dim = config.usize("head_dim")?;
    if config.get("rope_parameters").is_some() {
        return Rope::partial_from_config(config, Some(group), theta, head_dim);
    }
    let rotating = config.f64_or("partial_rotary_factor", ROTATED_SHARE)?;
    let theta = config.f64_or(field, theta)?;
    Ok(Rope::plain(
        theta as f32,
        (head_dim as f64 * rotating) as usize,
    ))
}

/// `sliding_window_size` does not count the position itself. Neither does `sliding_window` in
/// published configs; those that transformers writes have `layer_types` and do count it.
fn window(config: &Config) -> Result<usize, SpecError> {
    match config.usize_opt("sliding_window_size")? {
        Some(before) if config.get("layer_types").is_none() => Ok(before + 1),
        _ => config.usize("sliding_window"),
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

struct ModelParts {
    global: Rope,
    local: Rope,
    windowed: Vec<bool>,
    window: usize,
    local_kv_heads: usize,
    /// Without the properties that differ by layer.
    attention: Attention,
    mixture: Mixture,
    tied: bool,
}

impl ModelParts {
    fn model(self, sizes: &Sizes) -> ModelSpec {
        let mixer = |layer: usize| {
            let windowed = self.windowed[layer];
            let (rope, kv_heads) = if windowed {
                (&self.local, self.local_kv_heads)
            } else {
                (&self.global, sizes.kv_heads)
            };
            Mixer::Attention(Attention {
                kv_heads,
                rope: Some(rope.clone()),
                sinks: windowed,
                reach: reach(windowed.then_some(self.window)),
                ..self.attention.clone()
            })
        };
        let mixture = &self.mixture;
        mixture.pre_norm_model(sizes, "mimo_v2_flash", self.tied, mixer)
    }
}
