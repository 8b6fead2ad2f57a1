//! What most families' configs share, read once.

use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::model::{
    Activation, Attention, Block, FeedForward, Head, Layer, Mixer, ModelSpec, Norm,
};
use crate::rope::{Rope, RopeScaling};
use crate::validate::MAX_LAYERS;

/// The sizes every decoder-only transformer states.
pub(super) struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed_forward: usize,
    pub context: usize,
    pub eps: f32,
}

impl Sizes {
    /// For families whose own default for a missing field is not Llama's: `required` must stand
    /// in the config.
    pub fn explicit(config: &Config, required: &[&str]) -> Result<Self, SpecError> {
        for field in required {
            config.usize(field)?;
        }
        Self::from_config(config)
    }

    /// By Llama's rules: no `num_key_value_heads` is one for each head, no `head_dim` is an even
    /// share of the hidden size.
    pub fn from_config(config: &Config) -> Result<Self, SpecError> {
        let hidden = config.usize("hidden_size")?;
        let heads = positive("num_attention_heads", config.usize("num_attention_heads")?)?;
        Ok(Self {
            vocab: config.usize("vocab_size")?,
            hidden,
            layers: bounded_layers("num_hidden_layers", config.usize("num_hidden_layers")?)?,
            heads,
            kv_heads: config.usize_or("num_key_value_heads", heads)?,
            head_dim: match config.usize_opt("head_dim")? {
                Some(dim) => dim,
                None => even_split("hidden_size", hidden, "num_attention_heads", heads)?,
            },
            feed_forward: config.usize("intermediate_size")?,
            context: config.usize("max_position_embeddings")?,
            eps: config.f64("rms_norm_eps")? as f32,
        })
    }

    pub fn from_gguf(config: &GgufConfig) -> Result<Self, SpecError> {
        let hidden = config.usize("embedding_length")?;
        let field = config.key("attention.head_count");
        let heads = positive(&field, config.usize("attention.head_count")?)?;
        let head_dim = match config.usize_opt("attention.key_length")? {
            Some(dim) => dim,
            None => even_split(
                &config.key("embedding_length"),
                hidden,
                &config.key("attention.head_count"),
                heads,
            )?,
        };
        let value_dim = config.usize_opt("attention.value_length")?;
        if value_dim.is_some_and(|dim| dim != head_dim) {
            return Err(SpecError::invalid(
                config.key("attention.value_length"),
                value_dim.unwrap_or_default(),
                format!("equal to attention.key_length ({head_dim})"),
            ));
        }
        let embedding = config.header.tensor_shape("token_embd.weight");
        let vocab = embedding.and_then(|shape| shape.first().copied());
        Ok(Self {
            vocab: vocab.ok_or_else(|| SpecError::Missing {
                field: "tensor token_embd.weight".into(),
            })?,
            hidden,
            layers: bounded_layers(&config.key("block_count"), config.usize("block_count")?)?,
            heads,
            kv_heads: config
                .usize_opt("attention.head_count_kv")?
                .unwrap_or(heads),
            head_dim,
            feed_forward: config.usize("feed_forward_length")?,
            context: config.usize("context_length")?,
            eps: config.f64("attention.layer_norm_rms_epsilon")? as f32,
        })
    }

    /// Attention as most families have it; the caller changes what differs.
    pub fn attention(&self, rope: Option<Rope>) -> Attention {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            qkv_bias: false,
            output_bias: false,
            qk_norm: None,
            rope,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: None,
        }
    }

    /// A spec of pre-norm layers, each with the attention `attention(layer)` says.
    pub fn pre_norm_model(
        &self,
        family: &'static str,
        tied: bool,
        feed_forward: FeedForward,
        attention: impl Fn(usize) -> Attention,
    ) -> ModelSpec {
        let norm = Norm::rms(self.eps);
        let layers = (0..self.layers)
            .map(|index| Layer {
                mixer: Block {
                    pre_norm: Some(norm),
                    inner: Mixer::Attention(attention(index)),
                    post_norm: None,
                },
                feed_forward: Block {
                    pre_norm: Some(norm),
                    inner: feed_forward.clone(),
                    post_norm: None,
                },
            })
            .collect();
        ModelSpec {
            family,
            vocab_size: self.vocab,
            hidden_size: self.hidden,
            max_context: self.context,
            embedding_scale: 1.0,
            layers,
            final_norm: norm,
            head: Head {
                tied,
                softcap: None,
            },
        }
    }

    pub fn gated(&self, activation: Activation, bias: bool) -> FeedForward {
        FeedForward::Gated {
            size: self.feed_forward,
            activation,
            bias,
        }
    }
}

pub(super) fn activation(
    config: &Config,
    field: &str,
    default: Activation,
) -> Result<Activation, SpecError> {
    let Some(name) = config.str(field)? else {
        return Ok(default);
    };
    match name {
        "silu" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        other => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{other}`"),
            supported: "silu, gelu_pytorch_tanh",
        }),
    }
}

/// Which layers look through a window: what `layer_types` says, else `default(layer)`.
pub(super) fn windowed_layers(
    config: &Config,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, SpecError> {
    let Some(types) = config.array("layer_types")? else {
        return Ok((0..layers).map(default).collect());
    };
    if types.len() != layers {
        return Err(SpecError::invalid(
            "layer_types",
            format!("a list of {}", types.len()),
            format!("one entry for each of {layers} layers"),
        ));
    }
    let windowed = types.iter().map(|kind| match kind.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(SpecError::Unsupported {
            field: "layer_types".into(),
            found: kind.to_string(),
            supported: "full_attention, sliding_attention",
        }),
    });
    windowed.collect()
}

/// Rope as a GGUF header states it, whole-head or partial, unscaled or linear; Llama 3's
/// scaling travels as a tensor of divisors.
pub(super) fn gguf_rope(config: &GgufConfig, head_dim: usize) -> Result<Rope, SpecError> {
    let divisors = config.has("rope_freqs.weight");
    // Older files have only this; a factor without a type is linear, as llama.cpp reads it.
    let factor = match config.f64_opt("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => config.f64_opt("rope.scale_linear")?,
    };
    let implied = if factor.is_some() { "linear" } else { "none" };
    let scaling = match config.str_opt("rope.scaling.type")?.unwrap_or(implied) {
        "none" if divisors => RopeScaling::Tensor,
        "none" => RopeScaling::None,
        "linear" if !divisors => RopeScaling::Linear {
            factor: factor.ok_or_else(|| SpecError::Missing {
                field: config.key("rope.scaling.factor"),
            })? as f32,
        },
        other => {
            return Err(SpecError::Unsupported {
                field: config.key("rope.scaling.type"),
                found: format!("`{other}`"),
                supported: if divisors {
                    "none, beside the tensor rope_freqs.weight"
                } else {
                    "none, linear"
                },
            });
        }
    };
    if let Some(factor) = config
        .f64_opt("rope.scaling.attn_factor")?
        .filter(|f| *f != 1.0)
    {
        return Err(SpecError::Unsupported {
            field: config.key("rope.scaling.attn_factor"),
            found: factor.to_string(),
            supported: "1",
        });
    }
    Ok(Rope {
        theta: config.f64_opt("rope.freq_base")?.unwrap_or(10_000.0) as f32,
        dims: config
            .usize_opt("rope.dimension_count")?
            .unwrap_or(head_dim),
        scaling,
    })
}

/// How often a layer differs from its neighbours: never is said by other fields, not by 0.
pub(super) fn interval(field: String, interval: usize) -> Result<usize, SpecError> {
    positive(&field, interval)
}

pub(super) fn gguf_tied(config: &GgufConfig) -> bool {
    !config.has("output.weight")
}

/// Refused here already, since the layers are allocated before the spec is validated.
fn bounded_layers(field: &str, layers: usize) -> Result<usize, SpecError> {
    if layers <= MAX_LAYERS {
        Ok(layers)
    } else {
        Err(SpecError::invalid(
            field,
            layers,
            format!("at most {MAX_LAYERS}"),
        ))
    }
}

/// Refused here already, since sizes are divided by it before the spec is validated.
fn positive(field: &str, value: usize) -> Result<usize, SpecError> {
    match value {
        0 => Err(SpecError::invalid(field, 0, "at least 1")),
        value => Ok(value),
    }
}

fn even_split(
    whole_name: &str,
    whole: usize,
    parts_name: &str,
    parts: usize,
) -> Result<usize, SpecError> {
    if parts > 0 && whole.is_multiple_of(parts) {
        Ok(whole / parts)
    } else {
        Err(SpecError::invalid(
            parts_name,
            parts,
            format!("a divisor of {whole_name} ({whole})"),
        ))
    }
}
