//! Latent attention (MLA) in DeepSeek's configs and headers, and its tensors.

use super::gguf::{gguf_rope, gguf_scale};
use super::layers::rope_table;
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::LatentAttention;
use crate::model::Norm;
use crate::naming::{Fused, LayerNames};
use crate::roles::LayerRole::{KeyAbsorb, Latent, RopeKey, ValueUp};
use crate::rope::{Rope, RopePairs, RopeScaling, yarn_magnitude};

/// The epsilon of norms inside the attention, independent of the config's.
const EPS: f32 = 1e-6;

/// GGUF's converter multiplies yarn's weight by this.
const LOG_MULTIPLIER_UNIT: f64 = 0.1;

const DOWN: Fused = Fused::sequential("self_attn.kv_a_proj_with_mqa.weight", &[Latent, RopeKey]);

const GGUF_DOWN: Fused = Fused {
    name: "attn_kv_a_mqa.weight",
    ..DOWN
};

/// transformers' form: a head's key and value rows are adjacent in one tensor.
pub(crate) const LATENT: &[Fused] = &[
    DOWN,
    Fused {
        name: "self_attn.kv_b_proj.weight",
        ..UP
    },
];

const UP: Fused = Fused::sequential("attn_kv_b.weight", &[KeyAbsorb, ValueUp]);

/// mlx-lm's form: separate keys and values, under [`MLX_LATENT_NAMES`].
pub(crate) const MLX_LATENT: &[Fused] = &[DOWN];

pub(crate) const MLX_LATENT_NAMES: LayerNames = &[
    (KeyAbsorb, "self_attn.embed_q.weight"),
    (ValueUp, "self_attn.unembed_out.weight"),
];

pub(crate) const GGUF_LATENT: &[Fused] = &[GGUF_DOWN];

/// From before llama.cpp separated keys and values.
pub(crate) const GGUF_OLDER_LATENT: &[Fused] = &[GGUF_DOWN, UP];

/// The rope over a head's rope part, interleaved unless the config says otherwise.
pub(crate) fn latent_rope(config: &Config) -> Result<Rope, SpecError> {
    let dims = config.usize("qk_rope_head_dim")?;
    let rope = Rope::from_config(config, None, 10_000.0, dims)?;
    Ok(if config.bool_or("rope_interleave", true)? {
        rope.interleaved()
    } else {
        rope
    })
}

pub(crate) fn latent(
    config: &Config,
    heads: usize,
    rope: Option<Rope>,
) -> Result<LatentAttention, SpecError> {
    let (nope_dim, rope_dim) = (
        config.usize("qk_nope_head_dim")?,
        config.usize("qk_rope_head_dim")?,
    );
    let bias = config.bool_or("attention_bias", false)?;
    let magnitude = match &rope {
        Some(rope) => magnitude(config, rope)?,
        None => 1.0,
    };
    Ok(LatentAttention {
        heads,
        query_rank: config.usize_opt("q_lora_rank")?,
        latent_dim: config.usize("kv_lora_rank")?,
        nope_dim,
        rope_dim,
        value_dim: config.usize("v_head_dim")?,
        rope,
        scale: scale(nope_dim + rope_dim, magnitude),
        norm: Norm::rms(EPS),
        down_bias: bias,
        output_bias: bias,
    })
}

/// Yarn scales only the rope part of queries and keys; with `mscale_all_dim` DeepSeek scales the
/// rest too.
fn magnitude(config: &Config, rope: &Rope) -> Result<f64, SpecError> {
    let (Some(table), false) = (rope_table(config)?, rope.scaling == RopeScaling::None) else {
        return Ok(1.0);
    };
    match (table.f64_or("mscale_all_dim", 0.0)?, &rope.scaling) {
        (0.0, _) => Ok(1.0),
        (weight, RopeScaling::Yarn(yarn)) => Ok(yarn_magnitude(f64::from(yarn.factor), weight)),
        (weight, _) => Ok(yarn_magnitude(table.f64("factor")?, weight)),
    }
}

fn scale(query_dim: usize, magnitude: f64) -> f32 {
    (magnitude * magnitude / (query_dim as f64).sqrt()) as f32
}

pub(crate) fn gguf_latent(config: &GgufConfig, heads: usize) -> Result<LatentAttention, SpecError> {
    let refused = "attention.temperature_scale";
    if gguf_scale(config, refused)?.is_some() {
        return Err(SpecError::Unsupported {
            field: config.key(refused),
            found: "set".into(),
            supported: "absent",
        });
    }
    let (query_dim, value_dim) = (
        head_len(config, "attention.key_length")?,
        head_len(config, "attention.value_length")?,
    );
    let rope_dim = config.usize("rope.dimension_count")?;
    let Some(nope_dim) = query_dim.checked_sub(rope_dim) else {
        return Err(SpecError::invalid(
            config.key("rope.dimension_count"),
            rope_dim,
            format!("at most the length of a head's key ({query_dim})"),
        ));
    };
    let mut rope = gguf_rope(config, rope_dim, RopePairs::Interleaved)?;
    let magnitude = gguf_magnitude(config, &mut rope)?;
    Ok(LatentAttention {
        heads,
        query_rank: config.usize_opt("attention.q_lora_rank")?,
        latent_dim: config.usize("attention.kv_lora_rank")?,
        nope_dim,
        rope_dim,
        value_dim,
        rope: Some(rope),
        scale: scale(query_dim, magnitude),
        norm: Norm::rms(EPS),
        down_bias: false,
        output_bias: false,
    })
}

/// The length of a head. Files with separate keys and values store the length of the absorbed form
/// under the plain name.
fn head_len(config: &GgufConfig, field: &str) -> Result<usize, SpecError> {
    match config.usize_opt(&format!("{field}_mla"))? {
        Some(len) => Ok(len),
        None => config.usize(field),
    }
}

/// As [`magnitude`]. The header has one weight for both of yarn's, which then cancel in the
/// rope itself.
fn gguf_magnitude(config: &GgufConfig, rope: &mut Rope) -> Result<f64, SpecError> {
    let stored = config.f64_opt("rope.scaling.yarn_log_multiplier")?;
    match (stored, &mut rope.scaling) {
        (Some(stored), RopeScaling::Yarn(yarn)) if stored != 0.0 => {
            let factor = f64::from(yarn.factor);
            yarn.attention_factor /= yarn_magnitude(factor, 1.0) as f32;
            Ok(yarn_magnitude(factor, stored / LOG_MULTIPLIER_UNIT))
        }
        _ => Ok(1.0),
    }
}
