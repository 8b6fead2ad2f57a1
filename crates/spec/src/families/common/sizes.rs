//! The sizes that every decoder-only transformer states, and blocks built from them.

use super::fields::{activation, bounded_layers, even_split, positive};
use super::layers::{LayerScheme, pre_norm_layer};
use crate::config::Config;
use crate::error::SpecError;
use crate::mixers::{Attention, KvSource, Mixer, Reach};
use crate::model::{Activation, Dense, Embedding, FeedForward, Head, Layer, ModelSpec, Norm};
use crate::rope::Rope;

pub(crate) struct Sizes {
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
    /// For families whose default for a missing field is not Llama's: `required` fields must be in
    /// the config or its defaults.
    pub fn explicit(config: &Config, required: &[&str]) -> Result<Self, SpecError> {
        for field in required {
            config.usize(field)?;
        }
        Self::from_config(config)
    }

    /// With Llama's defaults: `num_key_value_heads` equals the heads, `head_dim` is an even share
    /// of the hidden size.
    pub fn from_config(config: &Config) -> Result<Self, SpecError> {
        Self::with_eps(config, "rms_norm_eps")
    }

    /// For families with another name for the norms' epsilon.
    pub fn with_eps(config: &Config, eps: &str) -> Result<Self, SpecError> {
        let (hidden, heads) = ("hidden_size", "num_attention_heads");
        let head_dim = match config.usize_opt("head_dim")? {
            Some(dim) => dim,
            None => even_split(hidden, config.usize(hidden)?, heads, config.usize(heads)?)?,
        };
        Self::with_head_dim(config, eps, head_dim)
    }

    /// For families with other fields for the heads' size.
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

    /// Standard attention, which the caller adjusts.
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
            gate_bias: false,
            kv: KvSource::Own,
        }
    }

    /// Attention with biases on all matrices if `attention_bias` is set.
    pub fn biased_attention(
        &self,
        config: &Config,
        rope: Option<Rope>,
    ) -> Result<Attention, SpecError> {
        let bias = config.bool_or("attention_bias", false)?;
        Ok(Attention {
            qkv_bias: bias,
            output_bias: bias,
            ..self.attention(rope)
        })
    }

    /// A spec of layers of one scheme, each with the attention `attention(layer)`.
    pub fn attention_model(
        &self,
        family: &'static str,
        tied: bool,
        (norm, scheme): (Norm, LayerScheme),
        feed_forward: FeedForward,
        attention: impl Fn(usize) -> Attention,
    ) -> ModelSpec {
        let layers = (0..self.layers).map(|layer| {
            let mixer = Mixer::Attention(attention(layer));
            scheme(norm, mixer, feed_forward.clone())
        });
        self.model(family, tied, norm, layers.collect())
    }

    /// A spec of pre-norm layers, each with the attention `attention(layer)`.
    pub fn pre_norm_model(
        &self,
        family: &'static str,
        tied: bool,
        feed_forward: FeedForward,
        attention: impl Fn(usize) -> Attention,
    ) -> ModelSpec {
        let scheme = (Norm::rms(self.eps), pre_norm_layer as LayerScheme);
        self.attention_model(family, tied, scheme, feed_forward, attention)
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

    /// A spec of these layers with a standard embedding and head.
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
            vision: None,
            vision_refusal: None,
        }
    }

    pub fn gated(&self, activation: Activation, bias: bool) -> FeedForward {
        FeedForward::Dense(Dense {
            bias,
            ..Dense::gated(self.feed_forward, activation)
        })
    }

    /// A gated feed-forward with the activation `hidden_act`, and biases if `mlp_bias` is set.
    pub fn biased_gated(&self, config: &Config) -> Result<FeedForward, SpecError> {
        let activation = activation(config, "hidden_act", Activation::Silu)?;
        Ok(self.gated(activation, config.bool_or("mlp_bias", false)?))
    }

    /// Without a gate.
    pub fn plain(&self, activation: Activation, bias: bool) -> FeedForward {
        FeedForward::Dense(Dense::plain(self.feed_forward, activation, bias))
    }
}
