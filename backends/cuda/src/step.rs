//! What a step is to a kernel: what a launch covers, and where the step's tables are.

use bytemuck::NoUninit;

use crate::ops::Address;

/// What a launch covers, passed by value beside the operation.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// The launch covers tokens from here on.
    pub first: u32,
    /// How many it covers: tokens of the step, emitted positions or rows, as the operation says.
    pub count: u32,
    /// Rows of the step.
    pub rows: u32,
    pub reserved: u32,
    pub tables: Tables,
}

/// Where the step's own data are. Written before each step; the addresses never change.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tables {
    /// `u32[token]`. Positions of media have [`MEDIA_ID`].
    pub ids: Address,
    /// `u32[token]`: the position in its sequence.
    pub positions: Address,
    /// `u32[token][3]`: rotary position by frame, row and column.
    pub rope: Address,
    /// `u32[token]`: the first position that it does not attend to, in layers that look ahead.
    pub seen_end: Address,
    /// `u32[token]`: its row.
    pub token_row: Address,
    /// `u64[level][token]`: the address of a position's `f32` features; 0 for text.
    pub features: Address,
    /// Tokens between two levels of `features`.
    pub feature_stride: u64,
    /// [`RowTable`] of each row.
    pub rows: Address,
    /// [`StateCopy`], those of a row adjacent.
    pub snapshots: Address,
    /// [`PageRun`] of `[group][row]`; rows are `run_stride` apart.
    pub page_runs: Address,
    pub run_stride: u64,
    /// `u32[]`: pages, those of a run adjacent.
    pub pages: Address,
    /// `u32[emitted]`: the tokens after which something is emitted.
    pub emitted: Address,
    /// `DrawTable` of each position whose token is drawn.
    pub draws: Address,
}

/// The id of positions that have features instead.
pub const MEDIA_ID: u32 = u32::MAX;

#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowTable {
    /// Its first token.
    pub first: u32,
    pub tokens: u32,
    /// In [`Tables::snapshots`].
    pub first_snapshot: u32,
    pub snapshots: u32,
    /// The recurrent state before the row; none: zeros.
    pub before: Address,
    /// Receives the state after the row.
    pub after: Address,
}

/// A copy of a row's state to save.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateCopy {
    /// After so many of the row's tokens.
    pub tokens: u32,
    pub reserved: u32,
    pub to: Address,
}

/// A row's pages in a group of layers.
#[repr(C)]
#[derive(NoUninit, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageRun {
    /// In [`Tables::pages`].
    pub start: u32,
    /// The position of the first page's first token, a multiple of [`PAGE`](crate::ops::PAGE).
    pub first: u32,
}
