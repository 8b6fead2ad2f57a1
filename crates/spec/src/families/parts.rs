//! What most families' configs share, read once.

use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::{Attention, KvSource, Mixer, Reach};
use crate::model::{
    Activation, Block, Branch, Dense, Embedding, FeedForward, Head, Layer, ModelSpec, Norm,
};
use crate::rope::{Rope, RopePairs, RopeScaling, Yarn, yarn_magnitude};
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
    /// in the config, or among the defaults the family gives it.
    pub fn explicit(config: &Config, required: &[&str]) -> Result<Self, SpecError> {
        for field in required {
            config.usize(field)?;
        }
        Self::from_config(config)
    }

    /// By Llama's rules: no `num_key_value_heads` is one for each head, no `head_dim` is an even
    /// share of the hidden size.
    pub fn from_config(config: &Config) -> Result<Self, SpecError> {
        Self::with_eps(config, "rms_norm_eps")
    }

    /// For families that call their norms' epsilon something else.
    pub fn with_eps(config: &Config, eps: &str) -> Result<Self, SpecError> {
        let (hidden, heads) = ("hidden_size", "num_attention_heads");
        let head_dim = match config.usize_opt("head_dim")? {
            Some(dim) => dim,
            None => even_split(hidden, config.usize(hidden)?, heads, config.usize(heads)?)?,
        };
        Self::with_head_dim(config, eps, head_dim)
    }

    /// For families that state their heads' size in their own way.
    pub fn with_head_dim(config: &Config, eps: &str, head_dim: usize) -> Result<Self, SpecError> {
        let heads = positive("num_attention_heads", config.usize("num_attention_heads")?)?;
        Ok(Self {
            vocab: config.usize("vocab_size")?,
            hidden: config.usize("hidden_size")?,
            layers: bounded_layers("num_hidden_layers", config.usize("num_hidden_layers")?)?,
            heads,
            kv_heads: config.usize_or("num_key_value_heads", heads)?,
            head_dim,
            feed_forward: config.usize("intermediate_size")?,
            context: config.usize("max_position_embeddings")?,
            eps: config.f64(eps)? as f32,
        })
    }

    pub fn from_gguf(config: &GgufConfig) -> Result<Self, SpecError> {
        let kv_heads = config.uniform_opt("attention.head_count_kv")?;
        Self::gguf_with_heads(config, gguf_head_dim(config)?, kv_heads)
    }

    /// For architectures that state their heads' size or their key/value heads in their own way.
    pub fn gguf_with_heads(
        config: &GgufConfig,
        head_dim: usize,
        kv_heads: Option<usize>,
    ) -> Result<Self, SpecError> {
        let field = config.key("attention.head_count");
        let heads = positive(&field, config.usize("attention.head_count")?)?;
        let layers = bounded_layers(&config.key("block_count"), config.usize("block_count")?)?;
        // Where layers differ the family reads the list itself.
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
            // Left out where every layer has experts; no dense layer may have 0.
            feed_forward: feed_forward
                .and_then(|all| all.first().copied())
                .unwrap_or(0),
            context: config.usize("context_length")?,
            eps: eps as f32,
        })
    }

    /// Attention as most families have it; the caller changes what differs.
    pub fn attention(&self, rope: Option<Rope>) -> Attention {
        Attention {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: self.head_dim,
            qkv_bias: false,
            output_bias: false,
            qk_norm: None,
            value_norm: None,
            rope,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            value_scale: 1.0,
            temperature: None,
            softcap: None,
            reach: Reach::All,
            sinks: false,
            output_gate: false,
            kv: KvSource::Own,
        }
    }

    /// Attention with the biases that the file has.
    pub fn gguf_attention(&self, config: &GgufConfig, rope: Option<Rope>) -> Attention {
        Attention {
            qkv_bias: config.has("blk.0.attn_q.bias") || config.has("blk.0.attn_qkv.bias"),
            output_bias: config.has("blk.0.attn_output.bias"),
            ..self.attention(rope)
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
        let layers = (0..self.layers).map(|index| {
            let mixer = Mixer::Attention(attention(index));
            pre_norm_layer(norm, mixer, feed_forward.clone())
        });
        self.model(family, tied, norm, layers.collect())
    }

    /// A spec of equal pre-norm layers under layer norms with biases.
    pub fn layer_norm_model(
        &self,
        family: &'static str,
        tied: bool,
        attention: Attention,
        feed_forward: FeedForward,
    ) -> ModelSpec {
        let norm = Norm::layer(self.eps, true);
        let layer = pre_norm_layer(norm, Mixer::Attention(attention), feed_forward);
        self.model(family, tied, norm, vec![layer; self.layers])
    }

    /// A spec of these layers, with nothing special before or after them.
    pub fn model(
        &self,
        family: &'static str,
        tied: bool,
        final_norm: Norm,
        layers: Vec<Layer>,
    ) -> ModelSpec {
        ModelSpec {
            family,
            vocab_size: self.vocab,
            hidden_size: self.hidden,
            max_context: self.context,
            embedding: Embedding {
                scale: 1.0,
                positions: None,
            },
            per_layer_inputs: None,
            layers,
            final_norm,
            head: Head {
                tied,
                bias: false,
                scale: 1.0,
                softcap: None,
            },
        }
    }

    pub fn gated(&self, activation: Activation, bias: bool) -> FeedForward {
        FeedForward::Dense(Dense {
            bias,
            ..Dense::gated(self.feed_forward, activation)
        })
    }

    /// Without a gate.
    pub fn plain(&self, activation: Activation, bias: bool) -> FeedForward {
        FeedForward::Dense(Dense::plain(self.feed_forward, activation, bias))
    }
}

/// `x += mixer(norm(x))`, then `x += feed_forward(norm(x))`.
pub(super) fn pre_norm_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::pre_norm(norm, mixer).into(),
        Branch::pre_norm(norm, feed_forward).into(),
    ])
}

/// A norm before each of the two and another after.
pub(super) fn sandwich_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::sandwich(norm, mixer).into(),
        Branch::sandwich(norm, feed_forward).into(),
    ])
}

/// `x += norm(mixer(x))`, then `x += norm(feed_forward(x))`.
pub(super) fn post_norm_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![
        Branch::post_norm(norm, mixer).into(),
        Branch::post_norm(norm, feed_forward).into(),
    ])
}

/// `x += mixer(norm(x)) + feed_forward(norm(x))`.
pub(super) fn parallel_layer(norm: Norm, mixer: Mixer, feed_forward: FeedForward) -> Layer {
    Layer::new(vec![Block::parallel(vec![
        Branch::pre_norm(norm, mixer),
        Branch::pre_norm(norm, feed_forward),
    ])])
}

/// Refuses a switch that turns on what is not there.
pub(super) fn refuse_switch(config: &Config, field: &str) -> Result<(), SpecError> {
    match config.bool_or(field, false)? {
        false => Ok(()),
        true => Err(SpecError::Unsupported {
            field: config.path(field),
            found: "true".into(),
            supported: "false",
        }),
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
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        "relu2" => Ok(Activation::Relu2),
        other => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{other}`"),
            supported: "silu, gelu, gelu_pytorch_tanh, relu, relu2",
        }),
    }
}

/// What `layer_types` says of each layer, if it stands there: one of `known`.
pub(super) fn layer_types<'a>(
    config: &'a Config,
    layers: usize,
    known: &'static [&'static str],
) -> Result<Option<Vec<&'a str>>, SpecError> {
    word_per_layer(config, "layer_types", layers, known)
}

/// A list with one of the `known` words for each layer, if it stands there.
pub(super) fn word_per_layer<'a>(
    config: &'a Config,
    field: &str,
    layers: usize,
    known: &'static [&'static str],
) -> Result<Option<Vec<&'a str>>, SpecError> {
    let Some(types) = config.array(field)? else {
        return Ok(None);
    };
    if types.len() != layers {
        return Err(SpecError::invalid(
            config.path(field),
            format!("a list of {}", types.len()),
            format!("one entry for each of {layers} layers"),
        ));
    }
    let types = types.iter().map(|kind| match kind.as_str() {
        Some(name) if known.contains(&name) => Ok(name),
        _ => Err(SpecError::invalid(
            config.path(field),
            format!("a list with {kind}"),
            format!("a list of {}", known.join(", ")),
        )),
    });
    types.collect::<Result<_, _>>().map(Some)
}

/// Which layers look through a window: what `layer_types` says, else `default(layer)`.
pub(super) fn windowed_layers(
    config: &Config,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, SpecError> {
    let known = &["full_attention", "sliding_attention"];
    Ok(match layer_types(config, layers, known)? {
        Some(types) => types
            .iter()
            .map(|kind| *kind == "sliding_attention")
            .collect(),
        None => (0..layers).map(default).collect(),
    })
}

/// The same from a GGUF header: a flag for each layer, or every how many one sees everything.
pub(super) fn gguf_windowed_layers(
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
    let pattern = interval(config.key(field), pattern)?;
    Ok((0..layers)
        .map(|layer| (layer + 1) % pattern != 0)
        .collect())
}

pub(super) fn reach(window: Option<usize>) -> Reach {
    window.map_or(Reach::All, Reach::Window)
}

/// Rope as a GGUF header states it; Llama 3's scaling and Phi's travel as tensors of divisors.
/// `pairs` is what llama.cpp gives the architecture.
pub(super) fn gguf_rope(
    config: &GgufConfig,
    head_dim: usize,
    pairs: RopePairs,
) -> Result<Rope, SpecError> {
    Ok(Rope {
        theta: config.f64_opt("rope.freq_base")?.unwrap_or(10_000.0) as f32,
        dims: config
            .usize_opt("rope.dimension_count")?
            .unwrap_or(head_dim),
        pairs,
        scaling: gguf_scaling(config)?,
    })
}

fn gguf_scaling(config: &GgufConfig) -> Result<RopeScaling, SpecError> {
    // Older files have only this; a factor without a type is linear, as llama.cpp reads it.
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
                    "none, beside the tensor rope_freqs.weight"
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

/// The sines' magnitude is what yarn itself gives; families that weigh it change it.
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

/// How often a layer differs from its neighbours: never is said by other fields, not by 0.
pub(super) fn interval(field: String, interval: usize) -> Result<usize, SpecError> {
    positive(&field, interval)
}

/// One size for queries, keys and values.
pub(super) fn gguf_head_dim(config: &GgufConfig) -> Result<usize, SpecError> {
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

pub(super) fn gguf_tied(config: &GgufConfig) -> bool {
    !config.has("output.weight")
}

/// Refused here already, since the layers are allocated before the spec is validated.
pub(super) fn bounded_layers(field: &str, layers: usize) -> Result<usize, SpecError> {
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

pub(super) fn even_split(
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
