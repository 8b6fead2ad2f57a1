use crate::model::Norm;
use crate::rope::Rope;

/// A block that moves information between positions.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    Attention(Attention),
    Latent(LatentAttention),
    ShortConv(ShortConv),
    DeltaRule(DeltaRule),
    Mamba2(Mamba2),
}

/// Causal softmax attention with grouped key/value heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: usize,
    pub kv_heads: usize,
    /// Of queries and keys.
    pub head_dim: usize,
    pub value_dim: usize,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub qk_norm: Option<QkNorm>,
    /// Normalises each value head.
    pub value_norm: Option<Norm>,
    /// `None`: the layer does not encode positions.
    pub rope: Option<Rope>,
    /// Multiplies the query-key products.
    pub scale: f32,
    /// Multiplies the values.
    pub value_scale: f32,
    /// Scales the queries of later positions.
    pub temperature: Option<Temperature>,
    /// `scores = tanh(scores / cap) * cap`
    pub softcap: Option<f32>,
    pub reach: Reach,
    /// A learned score per head that joins the softmax without a value.
    pub sinks: bool,
    /// `sigmoid(gate(x))`, a number for each value of each head, multiplies the heads' output.
    pub output_gate: bool,
    /// The gate's matrix has a bias.
    pub gate_bias: bool,
    pub kv: KvSource,
}

/// A norm over queries and over keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QkNorm {
    pub norm: Norm,
    pub span: QkSpan,
    /// Applied after rope instead of before.
    pub after_rope: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkSpan {
    /// Each head by itself, all with the same weights.
    Head,
    /// Each head by itself, with its own weights.
    HeadWeights,
    /// All heads as one long vector.
    AllHeads,
}

/// Queries at `position` are multiplied by `1 + beta * ln(1 + floor((position + offset) /
/// span))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub beta: f32,
    pub span: usize,
    pub offset: usize,
}

/// Which earlier positions a position attends to, always including itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    All,
    /// Itself and the `n - 1` before it.
    Window(usize),
    /// The positions of its chunk; chunks begin at multiples of `n`.
    Chunk(usize),
}

impl Reach {
    /// The first position that `position` attends to.
    pub fn first_seen(self, position: usize) -> usize {
        match self {
            Reach::All => 0,
            Reach::Window(window) => position.saturating_add(1).saturating_sub(window),
            Reach::Chunk(chunk) => position / chunk * chunk,
        }
    }
}

/// Where a layer's keys and values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSource {
    Own,
    /// The key's projection, before norm and rope, is the value too.
    KeyIsValue,
    /// The cached keys and values of an earlier layer.
    Layer(usize),
}

/// Attention over one low-rank vector per token (MLA), in absorbed form: all heads share the
/// cached latent and its rope part; a head's key and value matrices work on the query and on
/// the mixed latent instead.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentAttention {
    pub heads: usize,
    /// Queries go through a vector of this length; `None`: directly from the stream.
    pub query_rank: Option<usize>,
    pub latent_dim: usize,
    /// The part of a head's query that meets the latent.
    pub nope_dim: usize,
    /// The part that meets the shared rope key.
    pub rope_dim: usize,
    pub value_dim: usize,
    /// `None`: the rope part is not rotated.
    pub rope: Option<Rope>,
    pub scale: f32,
    /// Over the query's low-rank vector, and over the latent.
    pub norm: Norm,
    /// The two down projections have biases.
    pub down_bias: bool,
    pub output_bias: bool,
}

/// LFM2's mixer: `b, c, x = in(x)`, a causal convolution over `b * x` per channel, times `c`,
/// `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConv {
    pub channels: usize,
    pub kernel: usize,
    /// On both projections and the convolution.
    pub bias: bool,
}

/// Linear attention by the gated delta rule. Queries, keys and values pass a causal convolution
/// and SiLU; queries and keys are made unit length; each value head keeps a
/// `key_dim × value_dim` state.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeltaRule {
    pub key_heads: usize,
    /// A multiple of `key_heads`.
    pub value_heads: usize,
    pub sharing: KeySharing,
    pub key_dim: usize,
    pub value_dim: usize,
    pub kernel: usize,
    pub decay: Decay,
    pub gate: DeltaOutputGate,
    /// Over each value head's output, before the gate.
    pub norm: Norm,
}

/// Which value heads read the same key head. llama.cpp orders value heads differently from
/// transformers; undoing that would move columns of the output matrix, which its quantized blocks
/// forbid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySharing {
    /// Adjacent value heads.
    Adjacent,
    /// Value heads that are `key_heads` apart.
    Strided,
}

/// `exp(rate * softplus(input + bias))` multiplies the state before each update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decay {
    /// One number per value head.
    PerHead,
    /// One per key channel, through a vector of `rank`.
    PerChannel { rank: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaOutputGate {
    Silu,
    /// Through a vector of `rank`.
    LowRankSigmoid {
        rank: usize,
    },
}

/// Mamba-2: one projection to gate, x, B, C and step sizes; a causal convolution with SiLU over
/// x, B and C; each head keeps a `head_dim × state` state that decays by its own rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mamba2 {
    pub heads: usize,
    pub head_dim: usize,
    /// Heads of one group share B and C.
    pub groups: usize,
    pub state: usize,
    pub kernel: usize,
    pub conv_bias: bool,
    pub projection_bias: bool,
    pub norm: MambaNorm,
    /// Bounds of the step size after softplus.
    pub step_limits: (f32, f32),
    /// Multiply gate, x, B, C and step as they leave the projection.
    pub scales: [f32; 5],
}

/// What happens to the heads' output `y` and the gate `z` before the output matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MambaNorm {
    /// `y * silu(z)`
    None,
    /// `norm(y * silu(z))`, over each of `groups` equal parts.
    AfterGate { norm: Norm, groups: usize },
    /// `norm(y) * silu(z)`, over each of `groups` equal parts.
    BeforeGate { norm: Norm, groups: usize },
}

impl Mixer {
    pub fn is_recurrent(&self) -> bool {
        match self {
            Mixer::Attention(_) | Mixer::Latent(_) => false,
            Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => true,
        }
    }

    pub fn rope(&self) -> Option<&Rope> {
        match self {
            Mixer::Attention(attention) => attention.rope.as_ref(),
            Mixer::Latent(latent) => latent.rope.as_ref(),
            Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => None,
        }
    }

    pub fn as_attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        }
    }
}

impl QkNorm {
    /// Each head by itself, before rope.
    pub fn per_head(norm: Norm) -> Self {
        Self {
            norm,
            span: QkSpan::Head,
            after_rope: false,
        }
    }

    /// All heads as one vector, before rope.
    pub fn all_heads(norm: Norm) -> Self {
        Self {
            span: QkSpan::AllHeads,
            ..Self::per_head(norm)
        }
    }
}

impl Temperature {
    /// The factor for queries at `position`.
    pub fn factor(&self, position: usize) -> f32 {
        let spans = (position + self.offset) / self.span;
        self.beta.mul_add((spans as f32).ln_1p(), 1.0)
    }
}

impl Attention {
    pub fn query_len(&self) -> usize {
        self.heads * self.head_dim
    }

    pub fn key_len(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    pub fn value_len(&self) -> usize {
        self.kv_heads * self.value_dim
    }

    /// Length of the output matrix's input.
    pub fn mixed_len(&self) -> usize {
        self.heads * self.value_dim
    }
}

impl LatentAttention {
    pub fn query_len(&self) -> usize {
        self.heads * (self.nope_dim + self.rope_dim)
    }

    /// Length of a token's cache entry: the latent, then the rope key.
    pub fn cached_len(&self) -> usize {
        self.latent_dim + self.rope_dim
    }

    pub fn mixed_len(&self) -> usize {
        self.heads * self.value_dim
    }
}

impl DeltaRule {
    pub fn key_len(&self) -> usize {
        self.key_heads * self.key_dim
    }

    pub fn value_len(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// The key head that a value head reads.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.sharing {
            KeySharing::Adjacent => value_head * self.key_heads / self.value_heads,
            KeySharing::Strided => value_head % self.key_heads,
        }
    }

    /// Channels of the convolution: queries, keys, values.
    pub fn conv_len(&self) -> usize {
        2 * self.key_len() + self.value_len()
    }
}

impl Mamba2 {
    /// Length of x, of the gate, and of what the output matrix reads.
    pub fn inner_len(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Channels of the convolution: x, B, C.
    pub fn conv_len(&self) -> usize {
        self.inner_len() + 2 * self.groups * self.state
    }

    pub fn projected_len(&self) -> usize {
        self.inner_len() + self.conv_len() + self.heads
    }
}
