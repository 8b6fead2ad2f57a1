//! The operations of the fast path: dense transformers with bf16 weights, on Hopper and later GPUs.
//! `kernels/fast.cuh` says what lies between them, and in which order sums are formed.

use bytemuck::{NoUninit, Pod, Zeroable};

use crate::ops::{Address, KvRef};

/// Let the next kernel start as soon as this one needs no more blocks.
pub const TRIGGER: u32 = 1;
/// `x` is in tiles, for more than eight tokens; see `x_tiled` of `kernels/fast.cuh`.
pub const TILED: u32 = 2;
/// The embedding table is in fragment order, as a head's matrix.
pub const PACKED: u32 = 4;

/// The angles of a rope, computed beside the embedding.
#[repr(C)]
#[derive(Pod, Zeroable, Debug, Clone, Copy, PartialEq, Default)]
pub struct AngleSet {
    /// `f32[token][pairs]`
    pub cos: Address,
    pub sin: Address,
    /// `f32[pairs]`
    pub frequencies: Address,
    /// `u32[pairs]`: 0 frame, 1 row, 2 column; none: the position.
    pub axes: Address,
    pub pairs: u32,
    pub factor: f32,
}

/// `stream = table[id] * scale`, its product with the first norm's gain, and its sum of squares.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct FusedEmbed {
    /// `bf16[vocab][hidden]`
    pub table: Address,
    /// `f32[hidden]`
    pub gain: Address,
    pub stream: Address,
    pub x: Address,
    pub sums: Address,
    pub angles: [AngleSet; 2],
    pub hidden: u32,
    pub sum_count: u32,
    pub scale: f32,
    pub flags: u32,
    /// Of eight tokens in a tiled `x`.
    pub groups: u32,
    pub reserved: u32,
}

/// What happens to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Epilogue {
    /// `out = y + bias`
    Store,
    /// `out += factor * (y + bias); next = bf16(out * gain)`, and sums of squares of `out`.
    Residual,
    /// `next = bf16(activation(gate) * up)`
    Gated,
    /// `tokens` = the index of the largest `y + bias`.
    Largest,
}

/// The activation of [`Epilogue::Gated`].
pub const SILU: u32 = 0;
pub const GELU_TANH: u32 = 1;

/// A matrix in fragment order times `x`, which a norm may still scale by its sums.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct FusedLinear {
    pub weights: Address,
    pub x: Address,
    /// `f32[token][sum_count]`; none: `x` is not normed.
    pub sums: Address,
    /// `f32[rows]`; may be none.
    pub bias: Address,
    pub out: Address,
    pub next: Address,
    pub gain: Address,
    pub next_sums: Address,
    /// `[token][blocks]`
    pub candidates: Address,
    /// 0 before and after.
    pub arrivals: Address,
    /// `u32[token]`
    pub tokens: Address,
    /// `u32[]`: the token of `x` and `sums` that each token of the launch reads; none: itself.
    pub index: Address,
    pub rows: u32,
    pub cols: u32,
    /// Into how many parts `cols` are cut, which decides the order of sums.
    pub parts: u32,
    pub sum_count: u32,
    pub eps: f32,
    pub factor: f32,
    pub activation: u32,
    pub flags: u32,
    /// Of eight tokens in a tiled `x`.
    pub groups: u32,
    pub reserved: u32,
}

/// Attention of one new token for each row, with norm and rope of its heads; writes its key and value.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct FusedAttention {
    pub kv: KvRef,
    /// `f32[token][(heads + 2 * kv.heads) * head_dim]`
    pub qkv: Address,
    pub cos: Address,
    pub sin: Address,
    /// `f32[head_dim]`; none: heads have no norm.
    pub query_gain: Address,
    pub key_gain: Address,
    /// `bf16[token][heads * head_dim]`
    pub out: Address,
    pub heads: u32,
    pub pairs: u32,
    /// 0: all positions.
    pub reach_len: u32,
    /// Token `m` of the launch belongs to row `first_row + m`.
    pub first_row: u32,
    pub scale: f32,
    /// 0: none.
    pub softcap: f32,
    pub eps: f32,
    pub flags: u32,
    /// Of eight tokens in a tiled `x`.
    pub groups: u32,
    pub reserved: u32,
}

/// Norm and rope of the heads of rows of several tokens; writes their keys and values.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct FusedQkvFinish {
    pub kv: KvRef,
    /// `f32[token][(heads + 2 * kv.heads) * head_dim]`
    pub qkv: Address,
    pub cos: Address,
    pub sin: Address,
    /// `f32[head_dim]`; none: heads have no norm.
    pub query_gain: Address,
    pub key_gain: Address,
    /// `bf16[token][heads * head_dim]`, in natural order.
    pub query: Address,
    pub heads: u32,
    pub pairs: u32,
    pub eps: f32,
    pub flags: u32,
}

/// Attention of rows of several tokens over their pages.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq)]
pub struct FusedPromptAttention {
    pub kv: KvRef,
    pub query: Address,
    /// `bf16[token][heads * head_dim]`, as an `x`.
    pub out: Address,
    pub heads: u32,
    /// 0: all positions.
    pub reach_len: u32,
    /// The rows that the launch covers.
    pub first_row: u32,
    pub row_count: u32,
    pub scale: f32,
    /// 0: none.
    pub softcap: f32,
    pub flags: u32,
    pub groups: u32,
}

/// A row-major bf16 matrix in fragment order. With `up`, tiles hold eight rows of each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PackFragments {
    pub out: Address,
    pub matrix: Address,
    pub up: Address,
    pub rows: u32,
    pub cols: u32,
}

/// Moves each token's positions on by one, for a step whose tokens are those that this one chose.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advance {
    /// `u32[token]`
    pub positions: Address,
    /// `u32[token][3]`
    pub rope: Address,
    /// `u32[token]`
    pub seen_end: Address,
}

/// An operation of the fast path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FusedOp {
    Embed(FusedEmbed),
    Linear(Epilogue, FusedLinear),
    Attention(FusedAttention),
    QkvFinish(FusedQkvFinish),
    PromptAttention(FusedPromptAttention),
    Pack(PackFragments),
    Advance(Advance),
}

impl FusedOp {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Embed(_) => "FusedEmbed",
            Self::Linear(Epilogue::Store, _) => "FusedStore",
            Self::Linear(Epilogue::Residual, _) => "FusedResidual",
            Self::Linear(Epilogue::Gated, _) => "FusedGated",
            Self::Linear(Epilogue::Largest, _) => "FusedLargest",
            Self::Attention(_) => "FusedAttention",
            Self::QkvFinish(_) => "FusedQkvFinish",
            Self::PromptAttention(_) => "FusedPromptAttention",
            Self::Pack(_) => "PackFragments",
            Self::Advance(_) => "Advance",
        }
    }

    /// Whether its kernel waits for the one before it before it touches what that one writes, so
    /// that it may start early.
    pub fn waits(&self) -> bool {
        !matches!(self, Self::Pack(_) | Self::Advance(_))
    }

    /// The operation in a step of more than eight tokens, whose vectors are in tiles.
    pub fn tiled(mut self, tile_groups: u32) -> Self {
        let (flags, groups) = match &mut self {
            Self::Embed(op) => (&mut op.flags, &mut op.groups),
            Self::Linear(_, op) => (&mut op.flags, &mut op.groups),
            Self::Attention(op) => (&mut op.flags, &mut op.groups),
            Self::PromptAttention(op) => (&mut op.flags, &mut op.groups),
            Self::QkvFinish(_) | Self::Pack(_) | Self::Advance(_) => return self,
        };
        *flags |= TILED;
        *groups = tile_groups;
        self
    }
}

/// The fewest columns of a matrix: with fewer, some of a block's four warps, without which it cannot
/// end a tile of eight tokens, would have nothing to load.
pub const MIN_COLS: u32 = 128;

/// Into how many parts the columns of a matrix are cut: a function of the matrix alone, since it
/// decides the order of sums.
pub fn parts(rows: u32, cols: u32) -> u32 {
    let (blocks, tiles) = (cols / 32, rows.div_ceil(16));
    if tiles <= 128 && blocks >= 256 && blocks.is_multiple_of(128) {
        // One block per multiprocessor: its warps must keep enough loads in flight.
        return 16;
    }
    if blocks >= 64 { 8 } else { 4 }
}

/// Where a column is in a vector of fragment order.
pub fn x_position(column: usize) -> usize {
    (column & !31)
        | ((column & 7) >> 1) << 3
        | ((column >> 4) & 1) << 2
        | ((column >> 3) & 1) << 1
        | (column & 1)
}

/// Where a token's column is in a tiled buffer of `8 * groups` tokens. Eight columns from a multiple
/// of eight on are adjacent.
pub fn x_tiled(token: usize, column: usize, groups: usize) -> usize {
    ((column / 64) * groups + token / 8) * 512
        + token % 8 * 64
        + ((column % 64 / 8) ^ (token % 8)) * 8
        + column % 8
}

/// Where a weight is in a matrix of fragment order, in values.
pub fn fragment_index(row: usize, col: usize, cols: usize) -> usize {
    ((row / 16) * (cols / 16) + col / 16) * 256
        + (4 * (row % 8) + col % 8 / 2) * 8
        + 2 * (row % 16 / 8 + 2 * (col % 16 / 8))
        + col % 2
}
