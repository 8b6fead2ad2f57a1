//! GGUF keys that most architectures share.

use super::fields::{all_but_each, bounded_layers, even_split, positive};
use super::sizes::Sizes;
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::mixers::Attention;
use crate::rope::{Rope, RopePairs, RopeScaling, RopeSections, SectionOrder, Yarn, yarn_magnitude};

impl Sizes {
    pub fn from_gguf(config: &GgufConfig) -> Result<Self, SpecError> {
        let kv_heads = config.uniform_opt("attention.head_count_kv")?;
        Self::gguf_with_heads(config, gguf_head_dim(config)?, kv_heads)
    }

    /// For architectures with other keys for the heads' size or the key/value heads.
    pub fn gguf_with_heads(
        config: &GgufConfig,
        head_dim: usize,
        kv_heads: Option<usize>,
    ) -> Result<Self, SpecError> {
        let field = config.key("attention.head_count");
        let heads = positive(&field, config.usize("attention.head_count")?)?;
        let layers = bounded_layers(&config.key("block_count"), config.usize("block_count")?)?;
        // If layers differ, the family reads the list itself.
        let feed_forward = config.per_layer("feed_forward_length", layers.max(1))?;
        let eps = match config.f64_opt("attention.layer_norm_epsilon")? {
            Some(eps) => eps,
            None => config.f64("attention.layer_norm_rms_epsilon")?,
        };
        Ok(Self {
            vocab: config.rows("token_embd.weight")?,
            hidden: config.usize("embedding_length")?,
            layers,
            heads,
            kv_heads: kv_heads.unwrap_or(heads),
            head_dim,
            // Absent if every layer has experts; no dense layer may have 0.
            feed_forward: feed_forward
                .and_then(|all| all.first().copied())
                .unwrap_or(0),
            context: config.usize("context_length")?,
            eps: eps as f32,
        })
    }

    /// Attention with the biases that the file has.
    pub fn gguf_attention(&self, config: &GgufConfig, rope: Option<Rope>) -> Attention {
        let any = |tensor| gguf_any_layer(config, self.layers, tensor);
        Attention {
            qkv_bias: any("attn_q.bias") || any("attn_qkv.bias"),
            output_bias: any("attn_output.bias"),
            ..self.attention(rope)
        }
    }
}

/// Which layers are windowed: a flag for each, or the interval of global layers.
pub(crate) fn gguf_windowed_layers(
    config: &GgufConfig,
    layers: usize,
    default: usize,
) -> Result<Vec<bool>, SpecError> {
    let field = "attention.sliding_window_pattern";
    if config.header.u64s(&config.key(field)).is_some() {
        let flags = config.per_layer(field, layers)?.unwrap_or_default();
        return Ok(flags.iter().map(|flag| *flag != 0).collect());
    }
    let pattern = config.usize_opt(field)?.unwrap_or(default);
    let pattern = positive(&config.key(field), pattern)?;
    Ok(all_but_each(pattern, layers))
}

/// Rope in a GGUF header; Llama 3's and Phi's scalings are tensors of divisors. `pairs` is
/// llama.cpp's for the architecture.
pub(crate) fn gguf_rope(
    config: &GgufConfig,
    head_dim: usize,
    pairs: RopePairs,
) -> Result<Rope, SpecError> {
    let dims = config.usize_opt("rope.dimension_count")?;
    let dims = dims.unwrap_or(head_dim);
    Ok(Rope {
        theta: config.f64_opt("rope.freq_base")?.unwrap_or(10_000.0) as f32,
        dims,
        pairs,
        scaling: gguf_scaling(config)?,
        sections: gguf_sections(config, dims / 2)?,
    })
}

/// The pairs of each axis of positions, one axis after another. A fourth number is of an axis that
/// no model uses.
fn gguf_sections(config: &GgufConfig, pairs: usize) -> Result<Option<RopeSections>, SpecError> {
    let field = config.key("rope.dimension_sections");
    let Some(list) = config.header.u64s(&field) else {
        return Ok(None);
    };
    let sum = list.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    match *list.as_slice() {
        [0, 0, 0] | [0, 0, 0, 0] => Ok(None),
        [frame, row, column] | [frame, row, column, 0] if sum == pairs as u64 => {
            Ok(Some(RopeSections {
                counts: [frame, row, column].map(|count| count as usize),
                order: SectionOrder::Sequential,
            }))
        }
        _ => Err(SpecError::invalid(
            field,
            format!("{list:?}"),
            format!("three numbers that add up to {pairs}, the rotated pairs, and 0"),
        )),
    }
}

fn gguf_scaling(config: &GgufConfig) -> Result<RopeScaling, SpecError> {
    // Older files have only this; like llama.cpp, a factor without a type is linear.
    let factor = match config.f64_opt("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => config.f64_opt("rope.scale_linear")?,
    };
    let required = || {
        factor.ok_or_else(|| SpecError::Missing {
            field: config.key("rope.scaling.factor"),
        })
    };
    let implied = if factor.is_some() { "linear" } else { "none" };
    let kind = config.str_opt("rope.scaling.type")?.unwrap_or(implied);
    let attention_factor = config.f64_opt("rope.scaling.attn_factor")?;
    if config.has("rope_factors_long.weight") {
        return Ok(RopeScaling::LongTensor {
            original_context: gguf_original_context(config)?,
            attention_factor: attention_factor.unwrap_or(1.0) as f32,
        });
    }
    let divisors = config.has("rope_freqs.weight");
    let scaling = match kind {
        "none" if divisors => RopeScaling::Tensor,
        "none" => RopeScaling::None,
        "linear" if !divisors => RopeScaling::Linear {
            factor: required()? as f32,
        },
        "yarn" if !divisors => return gguf_yarn(config, required()?, attention_factor),
        other => {
            return Err(SpecError::Unsupported {
                field: config.key("rope.scaling.type"),
                found: format!("`{other}`"),
                supported: if divisors {
                    "none, because the file has the tensor rope_freqs.weight"
                } else {
                    "none, linear, yarn"
                },
            });
        }
    };
    match attention_factor.filter(|factor| *factor != 1.0) {
        None => Ok(scaling),
        Some(factor) => Err(SpecError::Unsupported {
            field: config.key("rope.scaling.attn_factor"),
            found: factor.to_string(),
            supported: "1",
        }),
    }
}

/// With YaRN's default magnitude, which some families change.
fn gguf_yarn(
    config: &GgufConfig,
    factor: f64,
    attention_factor: Option<f64>,
) -> Result<RopeScaling, SpecError> {
    let magnitude = match config.f64_opt("rope.scaling.yarn_attn_factor")? {
        Some(given) => given,
        None => yarn_magnitude(factor, 1.0),
    };
    let magnitude = magnitude * attention_factor.unwrap_or(1.0);
    let beta = |field: &str, default: f64| Ok(config.f64_opt(field)?.unwrap_or(default) as f32);
    Ok(RopeScaling::Yarn(Yarn {
        factor: factor as f32,
        beta_fast: beta("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: beta("rope.scaling.yarn_beta_slow", 1.0)?,
        original_context: gguf_original_context(config)?,
        truncate: true,
        attention_factor: magnitude as f32,
    }))
}

fn gguf_original_context(config: &GgufConfig) -> Result<usize, SpecError> {
    match config.usize_opt("rope.scaling.original_context_length")? {
        Some(original) => Ok(original),
        None => config.usize("context_length"),
    }
}

/// One size for queries, keys and values.
pub(crate) fn gguf_head_dim(config: &GgufConfig) -> Result<usize, SpecError> {
    let (hidden, heads) = ("embedding_length", "attention.head_count");
    let head_dim = match config.usize_opt("attention.key_length")? {
        Some(dim) => dim,
        None => even_split(
            &config.key(hidden),
            config.usize(hidden)?,
            &config.key(heads),
            config.usize(heads)?,
        )?,
    };
    match config.usize_opt("attention.value_length")? {
        Some(value_dim) if value_dim != head_dim => Err(SpecError::invalid(
            config.key("attention.value_length"),
            value_dim,
            format!("equal to attention.key_length ({head_dim})"),
        )),
        _ => Ok(head_dim),
    }
}

/// Whether any of the file's layers has the tensor.
pub(crate) fn gguf_any_layer(config: &GgufConfig, layers: usize, tensor: &str) -> bool {
    (0..layers).any(|layer| config.has(&format!("blk.{layer}.{tensor}")))
}

/// The window; absent or 0 means none.
pub(crate) fn gguf_window(config: &GgufConfig) -> Result<Option<usize>, SpecError> {
    let window = config.usize_opt("attention.sliding_window")?;
    Ok(window.filter(|window| *window > 0))
}

/// A multiplier; absent or 0 means none.
pub(crate) fn gguf_scale(config: &GgufConfig, field: &str) -> Result<Option<f32>, SpecError> {
    let scale = config.f64_opt(field)?.filter(|scale| *scale != 0.0);
    Ok(scale.map(|scale| scale as f32))
}

pub(crate) fn gguf_tied(config: &GgufConfig) -> bool {
    !config.has("output.weight")
}
