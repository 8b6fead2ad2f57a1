use crate::experts::Experts;
use crate::mixers::Mixer;
use crate::vision::{MediaAttention, VisionSpec};

/// What a model computes, block by block. Backends use only this, not the config.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// The family's `model_type`, for display; decisions use the spec and its [`ModelSpec::facts`].
    pub family: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    /// The longest context the checkpoint supports.
    pub max_context: usize,
    pub embedding: Embedding,
    /// Inputs of every layer besides the stream, computed from the token alone.
    pub per_layer_inputs: Option<PerLayerInputs>,
    pub layers: Vec<Layer>,
    pub final_norm: Norm,
    pub head: Head,
    /// `None` for models, and files, of text alone.
    pub vision: Option<VisionSpec>,
    /// Why the config's vision part is not used, if it has one.
    pub vision_refusal: Option<String>,
}

/// From token ids to the residual stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embedding {
    /// Multiplies every row.
    pub scale: f32,
    /// Adds a learned row for each of this many positions.
    pub positions: Option<usize>,
}

/// `(norm(projection(x) * projection_scale) + embedding[token] * embedding_scale) *
/// combined_scale`, cut into `dim` values for each layer; `x` is the embedded token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerLayerInputs {
    pub dim: usize,
    pub vocab_size: usize,
    pub embedding_scale: f32,
    pub projection_scale: f32,
    pub combined_scale: f32,
    pub norm: Norm,
    /// Positions of media and raw embeddings get the embedding of this token.
    pub media_token: u32,
}

/// Blocks one after another.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    pub blocks: Vec<Block>,
    /// A learned number multiplies the stream after the last block.
    pub scaled: bool,
}

/// One step along the residual stream: `x += scale * post(sum of branches(x))`. Usually there is
/// one branch; several read the same `x`.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    pub branches: Vec<Branch>,
    /// Over the sum of the branches, each of which may have its own too.
    pub post_norm: Option<Norm>,
    pub residual_scale: f32,
}

/// `post(inner(pre(x) * input_scale) * output_scale)`, with one or both norms.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    pub pre_norm: Option<Norm>,
    pub input_scale: f32,
    pub inner: Inner,
    pub output_scale: f32,
    pub post_norm: Option<Norm>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Inner {
    /// Moves information between positions.
    Mixer(Mixer),
    /// Processes each position separately.
    FeedForward(FeedForward),
}

#[derive(Debug, Clone, PartialEq)]
pub enum FeedForward {
    Dense(Dense),
    Experts(Experts),
    /// `output(activation(gate(x)) * input)` with the layer's own [`PerLayerInputs`].
    PerLayerInput {
        dim: usize,
        activation: Activation,
    },
}

/// `down(activation(gate(x) * gate_scale) * up(x))`, or without a gate
/// `down(activation(up(x)))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dense {
    pub size: usize,
    pub gated: bool,
    pub activation: Activation,
    pub bias: bool,
    pub gate_scale: f32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    Silu,
    /// With the error function.
    Gelu,
    /// The tanh approximation.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`
    QuickGelu,
    Relu,
    /// `max(x, 0)²`
    Relu2,
    /// `gate * sigmoid(alpha * gate) * (up + 1)`, the gate at most `limit`, `up` within it.
    ClampedSwiglu {
        alpha: f32,
        limit: f32,
    },
}

/// A normalisation. Files that store `weight - 1` have a [`crate::Transform`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    pub kind: NormKind,
    pub eps: f32,
    pub weight: bool,
    pub bias: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) * weight`
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`
    Layer,
}

impl Norm {
    pub fn rms(eps: f32) -> Self {
        Self {
            kind: NormKind::Rms,
            eps,
            weight: true,
            bias: false,
        }
    }

    pub fn layer(eps: f32, bias: bool) -> Self {
        Self {
            kind: NormKind::Layer,
            eps,
            weight: true,
            bias,
        }
    }

    /// Removes the learned weights.
    pub fn weightless(self) -> Self {
        Self {
            weight: false,
            bias: false,
            ..self
        }
    }
}

/// From the last hidden state to logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Head {
    /// The embedding matrix is the head's matrix too.
    pub tied: bool,
    pub bias: bool,
    /// Multiplies the logits, before any cap.
    pub scale: f32,
    /// `logits = tanh(logits / cap) * cap`
    pub softcap: Option<f32>,
}

impl ModelSpec {
    /// All branches with their layer, bottom to top.
    pub fn branches(&self) -> impl Iterator<Item = (usize, &Branch)> {
        let layers = self.layers.iter().enumerate();
        layers.flat_map(|(index, layer)| layer.branches().map(move |branch| (index, branch)))
    }

    pub fn mixers(&self) -> impl Iterator<Item = (usize, &Mixer)> {
        self.branches()
            .filter_map(|(layer, branch)| match &branch.inner {
                Inner::Mixer(mixer) => Some((layer, mixer)),
                Inner::FeedForward(_) => None,
            })
    }

    /// What positions inside media attend to.
    pub fn media_attention(&self) -> MediaAttention {
        let vision = self.vision.as_ref();
        vision.map(|vision| vision.attention).unwrap_or_default()
    }

    /// Whether media occupy rows and columns of rotary positions, not only a number of them.
    pub fn has_grid_positions(&self) -> bool {
        self.mixers()
            .any(|(_, mixer)| mixer.rope().is_some_and(|rope| rope.sections.is_some()))
    }

    /// Whether any layer keeps state that cannot be cut at an arbitrary length.
    pub fn is_recurrent(&self) -> bool {
        self.mixers().any(|(_, mixer)| mixer.is_recurrent())
    }
}

impl Layer {
    pub fn new(blocks: Vec<Block>) -> Self {
        Self {
            blocks,
            scaled: false,
        }
    }

    pub fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.blocks.iter().flat_map(|block| &block.branches)
    }

    pub fn mixer(&self) -> Option<&Mixer> {
        self.branches().find_map(|branch| match &branch.inner {
            Inner::Mixer(mixer) => Some(mixer),
            Inner::FeedForward(_) => None,
        })
    }
}

impl From<Branch> for Block {
    fn from(branch: Branch) -> Self {
        Self::parallel(vec![branch])
    }
}

impl Block {
    /// Branches that all read the block's input.
    pub fn parallel(branches: Vec<Branch>) -> Self {
        Self {
            branches,
            post_norm: None,
            residual_scale: 1.0,
        }
    }
}

impl Branch {
    pub fn new(inner: impl Into<Inner>) -> Self {
        Self {
            pre_norm: None,
            input_scale: 1.0,
            inner: inner.into(),
            output_scale: 1.0,
            post_norm: None,
        }
    }

    pub fn pre_norm(norm: Norm, inner: impl Into<Inner>) -> Self {
        Self {
            pre_norm: Some(norm),
            ..Self::new(inner)
        }
    }

    pub fn post_norm(norm: Norm, inner: impl Into<Inner>) -> Self {
        Self {
            post_norm: Some(norm),
            ..Self::new(inner)
        }
    }

    /// A norm before and a norm after.
    pub fn sandwich(norm: Norm, inner: impl Into<Inner>) -> Self {
        Self {
            post_norm: Some(norm),
            ..Self::pre_norm(norm, inner)
        }
    }
}

impl From<Mixer> for Inner {
    fn from(mixer: Mixer) -> Self {
        Inner::Mixer(mixer)
    }
}

impl From<FeedForward> for Inner {
    fn from(feed_forward: FeedForward) -> Self {
        Inner::FeedForward(feed_forward)
    }
}

impl Dense {
    pub fn gated(size: usize, activation: Activation) -> Self {
        Self {
            size,
            gated: true,
            activation,
            bias: false,
            gate_scale: 1.0,
        }
    }

    pub fn plain(size: usize, activation: Activation, bias: bool) -> Self {
        Self {
            gated: false,
            bias,
            ..Self::gated(size, activation)
        }
    }
}
