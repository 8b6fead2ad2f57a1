use crate::rope::Rope;

/// What a model computes, block by block. Backends read this and nothing else of the config.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The family's `model_type`, for people and logs. No backend may ask for it.
    pub family: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// The longest context the checkpoint was made for.
    pub max_context: usize,
    /// Multiplies every embedding row.
    pub embedding_scale: f32,
    pub layers: Vec<Layer>,
    pub final_norm: Norm,
    pub head: Head,
}

/// `x += mixer(x)`, then `x += feed_forward(x)`, each inside its norms.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub mixer: Block<Mixer>,
    pub feed_forward: Block<FeedForward>,
}

/// One residual branch: `x + post(inner(pre(x)))`. Which norms stand is the residual scheme:
/// pre only is the usual pre-norm, both is the sandwich.
#[derive(Debug, Clone, PartialEq)]
pub struct Block<T> {
    pub pre_norm: Option<Norm>,
    pub inner: T,
    pub post_norm: Option<Norm>,
}

/// What moves information between positions.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    Attention(Attention),
}

/// Causal softmax attention with grouped key/value heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Normalises each query and key head before rope.
    pub qk_norm: Option<Norm>,
    /// `None`: this layer knows no positions.
    pub rope: Option<Rope>,
    /// Multiplies the query-key products.
    pub scale: f32,
    /// A position sees itself and the `window - 1` positions before it; `None`: all.
    pub window: Option<usize>,
}

impl Attention {
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// What works on each position alone.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForward {
    /// `down(activation(gate(x)) * up(x))`
    Gated {
        size: usize,
        activation: Activation,
        bias: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    /// The tanh approximation.
    GeluTanh,
}

/// A normalisation whose weight is stored as it multiplies: families that keep `weight - 1`
/// on disk say so in their tensor's [`crate::Transform`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    pub eps: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) * weight`
    Rms,
}

impl Norm {
    pub fn rms(eps: f32) -> Self {
        Self {
            kind: NormKind::Rms,
            eps,
        }
    }
}

/// From the last hidden state to logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// The embedding matrix is the head's matrix too.
    pub tied: bool,
    /// `logits = tanh(logits / cap) * cap`
    pub softcap: Option<f32>,
}

impl ModelSpec {
    /// The attention layers, bottom to top.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().map(|layer| match &layer.mixer.inner {
            Mixer::Attention(attention) => attention,
        })
    }
}
