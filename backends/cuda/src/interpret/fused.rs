//! Operations of the fast path. They round to bf16 where the kernels do, and add parts of sums as
//! they do; within a part, the order of sums differs.

mod attention;
mod linear;
mod prompt;

use super::access::decode;
use super::{Launch, Result, at, bytes_at, vector};
use crate::fused::{
    Advance, AngleSet, FusedEmbed, FusedOp, PACKED, PackFragments, TILED, fragment_index,
    x_position, x_tiled,
};
use crate::ops::{Address, Angles, Format, MEDIA_ID};

/// Rows of a tile of weights.
const TILE: usize = 16;
/// Columns within which fragment order permutes a vector.
const X_BLOCK: usize = 32;
/// Bytes that a kernel loads at once.
const WIDE_LOAD: usize = 16;

/// Columns that are adjacent in a tile.
const PIECE: usize = 8;

/// The vectors of a buffer in one of the orders of `x`.
#[derive(Clone, Copy)]
struct XVectors {
    operand: &'static str,
    at: Address,
    width: usize,
    /// Of a tiled buffer.
    groups: Option<usize>,
}

impl XVectors {
    /// In fragment order.
    fn fragments(operand: &'static str, at: Address, width: u32) -> Self {
        Self {
            operand,
            at,
            width: width as usize,
            groups: None,
        }
    }

    /// In tiles if the flags say so.
    fn in_order(self, flags: u32, groups: u32) -> Self {
        Self {
            groups: (flags & TILED != 0).then_some(groups as usize),
            ..self
        }
    }

    /// `values` of two bytes further.
    fn value(&self, values: usize) -> Address {
        bytes_at(self.at, 2 * values as u64)
    }

    fn piece(&self, token: usize, piece: usize, groups: usize) -> Address {
        self.value(x_tiled(token, piece * PIECE, groups))
    }
}

impl Launch<'_> {
    pub(super) fn fused(&mut self, op: &FusedOp) -> Result<()> {
        match op {
            FusedOp::Embed(op) => self.fused_embed(op),
            FusedOp::Linear(epilogue, op) => self.fused_linear(*epilogue, op),
            FusedOp::Attention(op) => self.fused_attention(op),
            FusedOp::QkvFinish(op) => self.finish_qkv(op),
            FusedOp::PromptAttention(op) => self.prompt_attention(op),
            FusedOp::Pack(op) => self.pack_fragments(op),
            FusedOp::Advance(op) => self.advance(op),
        }
    }

    fn fused_embed(&mut self, op: &FusedEmbed) -> Result<()> {
        let (hidden, sum_count) = (op.hidden as usize, op.sum_count as usize);
        let x = XVectors::fragments("x", op.x, op.hidden).in_order(op.flags, op.groups);
        self.check_x(&x)?;
        let has_sum = sum_count > 0;
        self.access.require(has_sum, "sum_count", "is 0")?;
        // The grid has a plane for each set that has pairs, the first ones.
        let in_order = op.angles[0].pairs > 0 || op.angles[1].pairs == 0;
        self.access
            .require(in_order, "angles", "the second set without the first")?;
        self.access.set_shared();
        let gain = self.access.f32s("gain", op.gain, hidden)?;
        for token in self.covered() {
            self.access.set_unit(token);
            let values = self.fused_embedding(op, token)?;
            let stream = vector(op.stream, token, op.hidden);
            self.access.write("stream", stream, &values)?;
            let normed: Vec<f32> = values.iter().zip(&gain).map(|(v, gain)| v * gain).collect();
            self.write_x(&x, token, &normed)?;
            let mut sums = vec![0.0; sum_count];
            sums[0] = values.iter().map(|value| value * value).sum();
            let to = vector(op.sums, token, op.sum_count);
            self.access.write("sums", to, &sums)?;
        }
        for set in op.angles.iter().filter(|set| set.pairs > 0) {
            self.angles(&general_angles(set))?;
        }
        Ok(())
    }

    /// A token's embedding or features; zeros for media without features.
    fn fused_embedding(&mut self, op: &FusedEmbed, token: usize) -> Result<Vec<f32>> {
        let hidden = op.hidden as usize;
        let id = self.id(token)?;
        if id == MEDIA_ID {
            let features = self.features(0, token)?;
            if features.is_none() {
                return Ok(vec![0.0; hidden]);
            }
            return self.access.f32s("features", features, hidden);
        }
        let id = id as usize;
        let mut values = vec![0.0; hidden];
        if op.flags & PACKED == 0 {
            let from = bytes_at(op.table, (id * hidden * 2) as u64);
            let stored = self.access.stored("table", from, hidden, Format::Bf16)?;
            decode(stored, Format::Bf16, &mut values);
        } else {
            let tile = self.weight_tile("table", op.table, id / TILE, hidden)?;
            for (column, value) in values.iter_mut().enumerate() {
                *value = tile[fragment_index(id % TILE, column, hidden)];
            }
        }
        values.iter_mut().for_each(|value| *value *= op.scale);
        Ok(values)
    }

    fn pack_fragments(&mut self, op: &PackFragments) -> Result<()> {
        let (rows, cols) = (op.rows as usize, op.cols as usize);
        let whole = cols.is_multiple_of(16);
        self.access
            .require(whole, "cols", "not a multiple of 16, a fragment's columns")?;
        let has_up = !op.up.is_none();
        let fits = !has_up || rows.is_multiple_of(TILE / 2);
        self.access
            .require(fits, "rows", "not a multiple of 8, a tile's gates")?;
        self.access.set_shared();
        // Pairs of values stay together, as words whose bits do not change.
        let words = cols / 2;
        let matrix = self.access.u32s("matrix", op.matrix, rows * words)?;
        let up = if has_up {
            self.access.u32s("up", op.up, rows * words)?
        } else {
            Vec::new()
        };
        let packed = if has_up {
            2 * rows
        } else {
            rows.next_multiple_of(TILE)
        };
        let mut out = vec![0; packed * words];
        for row in 0..packed {
            let (from, source) = match (has_up, row % TILE < TILE / 2) {
                (false, _) => (row, &matrix),
                (true, true) => (row / TILE * 8 + row % 8, &matrix),
                (true, false) => (row / TILE * 8 + row % 8, &up),
            };
            if from >= rows {
                continue;
            }
            for word in 0..words {
                out[fragment_index(row, 2 * word, cols) / 2] = source[from * words + word];
            }
        }
        self.access.write_u32s("out", op.out, &out)
    }

    fn advance(&mut self, op: &Advance) -> Result<()> {
        let is_whole = self.step.first == 0;
        self.access
            .require(is_whole, "step", "does not begin at the first token")?;
        let tables = [
            ("positions", op.positions, 1),
            ("rope", op.rope, 3),
            ("seen_end", op.seen_end, 1),
        ];
        for token in self.covered() {
            self.access.set_unit(token);
            for (operand, table, width) in tables {
                let from = at(table, token * width);
                let mut words = self.access.u32s_in_place(operand, from, width)?;
                words
                    .iter_mut()
                    .for_each(|word| *word = word.wrapping_add(1));
                self.access.write_u32s(operand, from, &words)?;
            }
        }
        Ok(())
    }

    /// Checks that kernels can load vectors of `x`, that fragment order permutes within one.
    fn check_x(&self, x: &XVectors) -> Result<()> {
        let whole = x.width > 0 && x.width.is_multiple_of(X_BLOCK);
        self.access
            .require(whole, x.operand, "its width is not a multiple of 32")?;
        self.access.check_span(x.operand, x.at, 0, WIDE_LOAD)
    }

    fn check_token(&self, x: &XVectors, token: usize) -> Result<()> {
        let fits = x.groups.is_none_or(|groups| token / 8 < groups);
        self.access
            .require(fits, x.operand, "a token is past its groups of tiles")
    }

    /// A token's vector, in the order of its columns.
    fn read_x(&mut self, x: &XVectors, token: usize) -> Result<Vec<f32>> {
        self.check_token(x, token)?;
        let (operand, mut values) = (x.operand, vec![0.0; x.width]);
        let Some(groups) = x.groups else {
            let from = x.value(token * x.width);
            let stored = self.access.stored(operand, from, x.width, Format::Bf16)?;
            decode(stored, Format::Bf16, &mut values);
            return Ok((0..x.width)
                .map(|column| values[x_position(column)])
                .collect());
        };
        for (piece, values) in values.chunks_exact_mut(PIECE).enumerate() {
            let from = x.piece(token, piece, groups);
            let stored = self.access.stored(operand, from, PIECE, Format::Bf16)?;
            decode(stored, Format::Bf16, values);
        }
        Ok(values)
    }

    /// Rounds a token's vector, and writes it.
    fn write_x(&mut self, x: &XVectors, token: usize, values: &[f32]) -> Result<()> {
        self.check_token(x, token)?;
        let Some(groups) = x.groups else {
            let mut ordered = vec![0.0; values.len()];
            for (column, value) in values.iter().enumerate() {
                ordered[x_position(column)] = *value;
            }
            let to = x.value(token * x.width);
            return self
                .access
                .write_stored(x.operand, to, &ordered, Format::Bf16);
        };
        for (piece, values) in values.chunks_exact(PIECE).enumerate() {
            let to = x.piece(token, piece, groups);
            self.access
                .write_stored(x.operand, to, values, Format::Bf16)?;
        }
        Ok(())
    }

    /// Sixteen rows of a matrix in fragment order, still in that order.
    fn weight_tile(
        &mut self,
        operand: &'static str,
        weights: Address,
        tile: usize,
        cols: usize,
    ) -> Result<Vec<f32>> {
        let from = bytes_at(weights, (tile * TILE * cols * 2) as u64);
        let stored = self
            .access
            .stored(operand, from, TILE * cols, Format::Bf16)?;
        let mut values = vec![0.0; TILE * cols];
        decode(stored, Format::Bf16, &mut values);
        Ok(values)
    }
}

fn general_angles(set: &AngleSet) -> Angles {
    let AngleSet {
        cos,
        sin,
        frequencies,
        axes,
        pairs,
        factor,
    } = *set;
    Angles {
        cos,
        sin,
        frequencies,
        axes,
        pairs,
        factor,
    }
}
