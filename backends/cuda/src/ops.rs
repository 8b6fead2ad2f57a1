//! The operations a program consists of: parameters only. `kernels/` computes them on a GPU,
//! `interpret` in plain Rust; both read the same structs.
//!
//! Every operation covers the tokens of a [`Step`], whose vectors lie `stride` values apart in
//! planned buffers of `f32`. An [`Address`] of zero means that an input is absent.

use bytemuck::{NoUninit, Pod, Zeroable};

use crate::fused::{FusedOp, PackFragments};
pub use crate::step::{MEDIA_ID, PageRun, RowTable, StateCopy, Step, Tables};

/// A place in the device's memory.
#[repr(transparent)]
#[derive(Pod, Zeroable, Debug, Clone, Copy, PartialEq, Eq, Default, Hash, PartialOrd, Ord)]
pub struct Address(pub u64);

impl Address {
    pub const NONE: Self = Self(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// `bytes` further.
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }

    /// `values` of `f32` further.
    pub fn values(self, values: usize) -> Self {
        self.offset(4 * values as u64)
    }
}

/// Tokens of a page of keys and values.
pub const PAGE: usize = 64;

/// How matrices and caches store a value.
#[repr(u32)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    F32 = 0,
    Bf16 = 1,
}

impl Format {
    pub fn bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::Bf16 => 2,
        }
    }
}

/// `[row][col]`, contiguous.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct MatrixRef {
    pub values: Address,
    pub rows: u32,
    pub cols: u32,
    pub format: Format,
    pub reserved: u32,
}

/// A layer's keys and values: pages of `page_bytes` from `pages` on. In a page, keys are
/// `[head][slot][head_dim]` and values `[head][value_dim][slot]`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct KvRef {
    pub pages: Address,
    pub page_bytes: u64,
    /// Bytes from the beginning of a page.
    pub keys: u64,
    pub values: u64,
    /// Which page runs.
    pub group: u32,
    pub heads: u32,
    pub head_dim: u32,
    pub value_dim: u32,
    pub format: Format,
    /// 1: the first `value_dim` of a key are its value, and `values` is not used.
    pub values_in_keys: u32,
}

/// `x = table[id] * scale (+ positions[position])`, or a position's features.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Embed {
    pub out: Address,
    pub table: MatrixRef,
    /// Learned positions; their `values` may be none.
    pub positions: MatrixRef,
    pub scale: f32,
    pub reserved: u32,
}

/// `out += table[id] * scale`, then `out *= factor`: the embeddings of per-layer inputs. Media have
/// the row of `media_id`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct AddEmbedding {
    pub out: Address,
    pub table: MatrixRef,
    pub media_id: u32,
    pub scale: f32,
    pub factor: f32,
    pub reserved: u32,
}

/// `x += features[level]` at positions that have them.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct AddFeatures {
    pub out: Address,
    pub width: u32,
    pub level: u32,
}

#[repr(u32)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormFunction {
    /// Only the factors.
    None = 0,
    Rms = 1,
    Layer = 2,
    /// `x / sqrt(sum of squares + eps)`
    UnitLength = 3,
}

/// `out = norm(x * before) * after`, for each of `parts` vectors of `len` in a token. May be in
/// place.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    pub input: Address,
    pub out: Address,
    pub input_stride: u32,
    pub out_stride: u32,
    pub parts: u32,
    pub len: u32,
    /// `f32[len]`, or `[parts][len]`.
    pub weight: Address,
    pub bias: Address,
    /// 0: all parts share the weight and the bias; `len`: each has its own.
    pub weight_stride: u32,
    pub function: NormFunction,
    pub eps: f32,
    pub before: f32,
    pub after: f32,
    pub reserved: u32,
}

/// `out = matrix * input + bias`, `batch` times: per head, matrices are contiguous, and inputs and
/// outputs `input_step` and `out_step` values apart.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    pub matrix: MatrixRef,
    pub input: Address,
    pub out: Address,
    /// `f32[rows]`
    pub bias: Address,
    pub input_stride: u32,
    pub out_stride: u32,
    pub batch: u32,
    pub input_step: u32,
    pub out_step: u32,
    pub reserved: u32,
}

/// `out += scale * length * b * (a * input)`: LoRA or DoRA of matrices of one shape. A token has
/// `parts` inputs and outputs, `input_step` and `out_step` values apart; a part has the matrix of its
/// index, or of its expert.
///
/// `lengths` is `f32[matrix][4][rows]`: a row's magnitude, its squared length, its product with the
/// row of `b * a`, and the squared length of that. They give the length for any scale:
/// `magnitude / sqrt(square + scale * (2 * product + scale * change))`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct LowRank {
    /// `f32[matrix][rank][cols]`
    pub a: Address,
    /// `f32[matrix][rows][rank]`
    pub b: Address,
    /// None: ones.
    pub lengths: Address,
    pub input: Address,
    pub out: Address,
    /// `u32[token][part]`; none: parts have the matrix of their index.
    pub experts: Address,
    /// `f32[token][part]`, multiplies the input; may be none.
    pub weights: Address,
    pub rows: u32,
    pub cols: u32,
    pub rank: u32,
    pub parts: u32,
    pub input_stride: u32,
    pub input_step: u32,
    pub out_stride: u32,
    pub out_step: u32,
    pub scale: f32,
    pub reserved: u32,
}

/// Adapters of one token at most.
pub const MAX_ADAPTERS: usize = 8;

/// `out = (out - bias) * (1 + sum of (length - 1)) + bias`: what DoRAs change of a matrix's own
/// product. Parts and lengths are as in [`LowRank`].
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct ScaleRows {
    pub out: Address,
    /// `f32[matrix][rows]`
    pub bias: Address,
    pub experts: Address,
    /// Those after the last one are none.
    pub lengths: [Address; MAX_ADAPTERS],
    /// Of each one's change.
    pub scales: [f32; MAX_ADAPTERS],
    pub rows: u32,
    pub parts: u32,
    pub out_stride: u32,
    pub out_step: u32,
}

/// `out += factor * ((length - 1) * table[id] + length * scale * b[id] * a)`: LoRA or DoRA of an
/// embedding, whose lengths are of columns: `f32[4][cols]`, as in [`LowRank`]. Media stay.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct EmbedLowRank {
    pub out: Address,
    pub table: MatrixRef,
    /// `f32[rank][cols]`
    pub a: Address,
    /// `f32[id][rank]`
    pub b: Address,
    pub lengths: Address,
    pub rank: u32,
    pub scale: f32,
    pub factor: f32,
    pub reserved: u32,
}

/// The angles of a rope: `cos` and `sin` are `f32[token][pairs]`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Angles {
    pub cos: Address,
    pub sin: Address,
    /// `f32[pairs]`
    pub frequencies: Address,
    /// `u32[pairs]`: 0 frame, 1 row, 2 column; none: the position.
    pub axes: Address,
    pub pairs: u32,
    /// Multiplies cosines and sines.
    pub factor: f32,
}

/// Rotates the first `2 * pairs` values of each head, in place.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub values: Address,
    pub cos: Address,
    pub sin: Address,
    pub stride: u32,
    pub heads: u32,
    /// Values between heads.
    pub head_step: u32,
    pub pairs: u32,
    /// 1: values `2i` and `2i + 1` are a pair; 0: `i` and `i + pairs`.
    pub interleaved: u32,
    pub reserved: u32,
}

/// `values *= 1 + beta * ln(1 + floor((position + offset) / span))`
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    pub values: Address,
    pub stride: u32,
    pub len: u32,
    pub beta: f32,
    pub span: u32,
    pub offset: u32,
    pub reserved: u32,
}

/// Writes each token's keys and values to its page.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct WriteKv {
    pub kv: KvRef,
    /// `[token][head][head_dim]`
    pub keys: Address,
    /// `[token][head][value_dim]`; not read if values are in keys.
    pub values: Address,
    pub key_stride: u32,
    pub value_stride: u32,
}

#[repr(u32)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachKind {
    All = 0,
    Window = 1,
    Chunk = 2,
}

/// Softmax attention of each token's heads over its sequence's pages. A token sees positions from
/// the first in reach to itself, or to before `seen_end` if the layer looks ahead.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Attend {
    pub kv: KvRef,
    /// `[token][head][head_dim]`
    pub query: Address,
    /// `[token][head][value_dim]`
    pub out: Address,
    pub query_stride: u32,
    pub out_stride: u32,
    pub heads: u32,
    pub reach: ReachKind,
    pub reach_len: u32,
    pub looks_ahead: u32,
    pub scale: f32,
    /// `tanh(score / softcap) * softcap`; 0: none.
    pub softcap: f32,
    /// `f32[head]`: a score without a value; may be none.
    pub sinks: Address,
}

/// Attention without pages: token `t` attends to tokens `ranges[t]`, `u32[token][2]`, of the same
/// buffers. For vision towers.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct AttendDense {
    pub query: Address,
    pub key: Address,
    pub value: Address,
    pub out: Address,
    pub ranges: Address,
    /// Of queries, keys, values and outputs alike.
    pub stride: u32,
    pub heads: u32,
    pub head_dim: u32,
    pub scale: f32,
}

#[repr(u32)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationFunction {
    /// `x`
    Identity = 0,
    Silu = 1,
    Gelu = 2,
    GeluTanh = 3,
    QuickGelu = 4,
    Relu = 5,
    Relu2 = 6,
    /// `gate * sigmoid(alpha * gate) * (up + 1)`, the gate at most `limit`, `up` within it.
    ClampedSwiglu = 7,
    Sigmoid = 8,
}

/// `out = function(gate * scale) * up`. May be in place of `gate`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Activate {
    pub gate: Address,
    /// None: ones.
    pub up: Address,
    pub out: Address,
    pub gate_stride: u32,
    pub up_stride: u32,
    pub out_stride: u32,
    pub len: u32,
    pub function: ActivationFunction,
    pub scale: f32,
    pub alpha: f32,
    pub limit: f32,
    /// 1: `up` has one value per token, which multiplies all of them.
    pub up_is_scalar: u32,
    pub reserved: u32,
}

/// `out = a * left + b * right`, `[token][len]`. May be in place.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Add {
    pub a: Address,
    /// None: zeros.
    pub b: Address,
    pub out: Address,
    pub a_stride: u32,
    pub b_stride: u32,
    pub out_stride: u32,
    pub len: u32,
    pub left: f32,
    pub right: f32,
}

/// `out = a * b`, `[token][len]`. May be in place.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Multiply {
    pub a: Address,
    pub b: Address,
    pub out: Address,
    pub a_stride: u32,
    pub b_stride: u32,
    pub out_stride: u32,
    pub len: u32,
}

/// `values = values * scale + bias`, with vectors of `len`; either may be none.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Affine {
    pub values: Address,
    pub scale: Address,
    pub bias: Address,
    pub stride: u32,
    pub len: u32,
}

/// Bounds values; NaN stays NaN.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Clamp {
    pub input: Address,
    pub out: Address,
    pub input_stride: u32,
    pub out_stride: u32,
    pub len: u32,
    pub min: f32,
    pub max: f32,
    pub reserved: u32,
}

/// A causal convolution over each row's tokens in place, whose last inputs are a part of the row's
/// state, `[kernel - 1][channels]` from value `state` on, the oldest first. Covers rows.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Convolve {
    pub values: Address,
    /// `f32[channel][kernel]`, the oldest input first.
    pub weights: Address,
    /// `f32[channel]`
    pub bias: Address,
    pub stride: u32,
    pub channels: u32,
    pub kernel: u32,
    pub state: u32,
    /// 1: SiLU follows.
    pub silu: u32,
    pub reserved: u32,
}

/// `decay = exp(rate[head] * softplus(decay + bias))` for the `per_head` decays of each head, and
/// `beta = sigmoid(beta)`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct DeltaGates {
    /// `[token][head][per_head]`
    pub decay: Address,
    /// `[token][head]`
    pub beta: Address,
    /// `f32[head * per_head]`
    pub bias: Address,
    /// `f32[head]`
    pub rate: Address,
    pub heads: u32,
    pub per_head: u32,
}

/// The gated delta rule over each row's tokens in order. Each value head keeps `[key_dim][value_dim]`
/// from value `state + head * key_dim * value_dim` on:
/// `s *= decay; delta = (value - s·key) * beta; s += key ⊗ delta; out = s·query`. Covers rows.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct DeltaUpdate {
    /// `[token][key_head][key_dim]`, contiguous tokens; likewise `key`.
    pub query: Address,
    pub key: Address,
    /// `[token][value_head][value_dim]`; likewise `out`.
    pub value: Address,
    pub out: Address,
    /// `[token][value_head][per_head]`
    pub decay: Address,
    /// `[token][value_head]`
    pub beta: Address,
    pub key_heads: u32,
    pub value_heads: u32,
    pub key_dim: u32,
    pub value_dim: u32,
    /// 1, or `key_dim`.
    pub per_head: u32,
    pub state: u32,
    /// 1: value heads `key_heads` apart share a key head; 0: adjacent ones do.
    pub strided: u32,
    pub reserved: u32,
}

/// Mamba-2 over each row's tokens in order. A token's projection is gate, x, B, C, step; each head
/// keeps `[head_dim][state_len]` from value `state + head * head_dim * state_len` on:
/// `dt = clamp(softplus(step + step_bias)); s = s * exp(rate * dt) + x * dt ⊗ B;
/// out = s·C + skip * x`. Covers rows.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct MambaUpdate {
    /// `[token][width]`
    pub projected: Address,
    /// `[token][head][head_dim]`
    pub out: Address,
    /// `f32[head]` each.
    pub step_bias: Address,
    pub rate: Address,
    pub skip: Address,
    pub width: u32,
    pub heads: u32,
    pub head_dim: u32,
    pub groups: u32,
    pub state_len: u32,
    pub state: u32,
    pub min_step: f32,
    pub max_step: f32,
}

/// Chooses a token's experts from the router's logits, which it overwrites with scores. The
/// choices ascend by expert.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Route {
    /// `f32[token][count]`
    pub logits: Address,
    /// `f32[count]`, added for the choice only; may be none.
    pub correction: Address,
    /// `f32[count]`, multiplies weights; may be none.
    pub expert_scale: Address,
    /// `u32[token][top_k]`
    pub experts: Address,
    /// `f32[token][top_k]`
    pub weights: Address,
    pub count: u32,
    pub top_k: u32,
    /// 0 softmax, 1 sigmoid.
    pub sigmoid: u32,
    /// 0: no groups.
    pub groups: u32,
    pub keep_groups: u32,
    /// 1: a group's score is the sum of its two best; 0: its best.
    pub best_two: u32,
    /// Weights are divided by their sum plus `normalise_eps` if 1.
    pub normalise: u32,
    pub normalise_eps: f32,
    pub scale: f32,
    pub reserved: u32,
}

/// `out[token][k] = matrices[experts[token][k]] * input + bias[expert]`. Matrices of a stack are
/// contiguous.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct ExpertLinear {
    /// The first matrix.
    pub matrix: MatrixRef,
    pub input: Address,
    /// `[token][k][rows]`
    pub out: Address,
    /// `f32[expert][rows]`; may be none.
    pub bias: Address,
    /// `u32[token][k]`
    pub experts: Address,
    /// `f32[token][k]`, multiplies the input; may be none.
    pub weights: Address,
    pub input_stride: u32,
    pub top_k: u32,
    /// 1: the input is `[token][k][cols]`, `input_stride` between the routes; 0: the token's.
    pub input_per_route: u32,
    pub reserved: u32,
}

/// `out = sum over k of input[token][k] * weights[token][k]`, in order.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct CombineExperts {
    pub input: Address,
    pub out: Address,
    /// None: ones.
    pub weights: Address,
    pub out_stride: u32,
    pub len: u32,
    pub top_k: u32,
    pub reserved: u32,
}

/// `out[i] = input[index[i]]`, vectors of `len`.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Gather {
    pub input: Address,
    pub out: Address,
    /// `u32[]`; none: [`Tables::emitted`].
    pub index: Address,
    pub input_stride: u32,
    pub out_stride: u32,
    pub len: u32,
    pub reserved: u32,
}

/// `out[i] = sum over k of weights[k] * matrix[rows[k]]` for `k` from `terms[i]` to before
/// `terms[i + 1]`, in order. If it adds, the sum is added to what `out` has.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct SumRows {
    pub matrix: MatrixRef,
    pub out: Address,
    /// `u32[count + 1]`
    pub terms: Address,
    /// `u32[]`
    pub rows: Address,
    /// `f32[]`
    pub weights: Address,
    pub out_stride: u32,
    pub adds: u32,
}

/// Copies `parts` vectors of `len` within each token, which lie `input_step` and `out_step` apart.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct CopyParts {
    pub input: Address,
    pub out: Address,
    pub input_stride: u32,
    pub out_stride: u32,
    pub parts: u32,
    pub input_step: u32,
    pub out_step: u32,
    pub len: u32,
}

/// `logits = softcap(logits * scale)`
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct FinishLogits {
    pub logits: Address,
    pub vocab: u32,
    pub scale: f32,
    /// 0: none.
    pub softcap: f32,
    pub reserved: u32,
}

/// The index of the largest of `[count][vocab]`, the lowest of equal ones; [`NOT_A_NUMBER`] if any
/// is NaN.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct Largest {
    pub logits: Address,
    /// `u32[]`
    pub out: Address,
    pub vocab: u32,
    pub reserved: u32,
}

/// For each of `[count][vocab]` the token that its `DrawTable` draws.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct DrawTokens {
    pub logits: Address,
    /// `u32[]`
    pub out: Address,
    pub vocab: u32,
    pub reserved: u32,
}

/// A token that [`Largest`] or [`DrawTokens`] could not choose.
pub const NOT_A_NUMBER: u32 = u32::MAX;

/// What a kernel receives.
pub enum Parameters<'a> {
    /// A struct, and the [`Step`] after it.
    Struct(&'a [u8]),
    /// Its fields, one by one.
    Pack(&'a PackFragments),
}

impl From<FusedOp> for Op {
    fn from(op: FusedOp) -> Self {
        Op::Fused(op)
    }
}

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// An operation with its parameters.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum Op {
            $($name($name),)*
            /// An operation of the fast path.
            Fused(FusedOp),
        }

        impl Op {
            pub fn name(&self) -> &'static str {
                match self {
                    $(Op::$name(_) => stringify!($name),)*
                    Op::Fused(fused) => fused.name(),
                }
            }

            /// The parameters as a kernel receives them.
            pub fn parameters(&self) -> Parameters<'_> {
                let bytes = match self {
                    $(Op::$name(parameters) => bytemuck::bytes_of(parameters),)*
                    Op::Fused(FusedOp::Embed(parameters)) => bytemuck::bytes_of(parameters),
                    Op::Fused(FusedOp::Linear(_, parameters)) => bytemuck::bytes_of(parameters),
                    Op::Fused(FusedOp::Attention(parameters)) => bytemuck::bytes_of(parameters),
                    Op::Fused(FusedOp::QkvFinish(parameters)) => bytemuck::bytes_of(parameters),
                    Op::Fused(FusedOp::PromptAttention(parameters)) => {
                        bytemuck::bytes_of(parameters)
                    }
                    Op::Fused(FusedOp::Advance(parameters)) => bytemuck::bytes_of(parameters),
                    Op::Fused(FusedOp::Pack(pack)) => return Parameters::Pack(pack),
                };
                Parameters::Struct(bytes)
            }
        }

        $(impl From<$name> for Op {
            fn from(parameters: $name) -> Self {
                Op::$name(parameters)
            }
        })*

        /// Names and parameter bytes of all operations.
        pub const OPERATIONS: &[(&str, usize)] = &[
            $((stringify!($name), size_of::<$name>()),)*
        ];
    };
}

operations!(
    Embed,
    AddEmbedding,
    AddFeatures,
    Norm,
    Linear,
    LowRank,
    ScaleRows,
    EmbedLowRank,
    Angles,
    Rope,
    Temperature,
    WriteKv,
    Attend,
    AttendDense,
    Activate,
    Add,
    Multiply,
    Affine,
    Clamp,
    Convolve,
    DeltaGates,
    DeltaUpdate,
    MambaUpdate,
    Route,
    ExpertLinear,
    CombineExperts,
    Gather,
    SumRows,
    CopyParts,
    FinishLogits,
    Largest,
    DrawTokens,
);
