//! Adapters: what they add to products and embeddings.

use super::{Launch, Result, at, dot, vector};
use crate::ops::{Address, EmbedLowRank, LowRank, ScaleRows};

/// The lengths of adapted rows or columns, for any scale.
struct Lengths {
    /// `[4][count]`
    values: Vec<f32>,
    count: usize,
}

impl Lengths {
    fn length(&self, row: usize, scale: f32) -> f32 {
        let part = |part: usize| self.values[part * self.count + row];
        let square = part(1) + scale * (2.0 * part(2) + scale * part(3));
        // Rounding must not make it negative.
        part(0) / square.max(f32::MIN_POSITIVE).sqrt()
    }
}

impl Launch<'_> {
    pub(super) fn low_rank(&mut self, op: &LowRank) -> Result<()> {
        let (rows, cols, rank) = (op.rows as usize, op.cols as usize, op.rank as usize);
        let parts = op.parts as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let matrices = self.part_matrices(op.experts, token, parts)?;
            let weights = vector(op.weights, token, op.parts);
            let weights = self.access.optional_f32s("weights", weights, parts)?;
            for (part, matrix) in matrices.into_iter().enumerate() {
                let input = vector(op.input, token, op.input_stride);
                let input = at(input, part * op.input_step as usize);
                let mut input = self.access.f32s("input", input, cols)?;
                if let Some(weights) = &weights {
                    input.iter_mut().for_each(|x| *x *= weights[part]);
                }
                let a = at(op.a, matrix * rank * cols);
                let a = self.access.f32s("a", a, rank * cols)?;
                let inner = a.chunks_exact(cols.max(1)).map(|row| dot(row, &input));
                let inner: Vec<f32> = inner.collect();
                let b = at(op.b, matrix * rows * rank);
                let b = self.access.f32s("b", b, rows * rank)?;
                let lengths = self.lengths(op.lengths, matrix, rows)?;
                let out = vector(op.out, token, op.out_stride);
                let out = at(out, part * op.out_step as usize);
                let mut values = self.access.f32s_in_place("out", out, rows)?;
                let changes = b.chunks_exact(rank.max(1));
                for ((row, value), b) in values.iter_mut().enumerate().zip(changes) {
                    let length = lengths
                        .as_ref()
                        .map_or(1.0, |own| own.length(row, op.scale));
                    *value += op.scale * length * dot(b, &inner);
                }
                self.access.write("out", out, &values)?;
            }
        }
        Ok(())
    }

    pub(super) fn scale_rows(&mut self, op: &ScaleRows) -> Result<()> {
        let (rows, parts) = (op.rows as usize, op.parts as usize);
        let own = op.lengths.iter().zip(op.scales);
        let own: Vec<_> = own.take_while(|(lengths, _)| !lengths.is_none()).collect();
        for token in self.covered() {
            self.access.set_unit(token);
            let matrices = self.part_matrices(op.experts, token, parts)?;
            for (part, matrix) in matrices.into_iter().enumerate() {
                let mut factors = vec![1.0; rows];
                for (lengths, scale) in &own {
                    let lengths = self.lengths(**lengths, matrix, rows)?;
                    for (row, factor) in factors.iter_mut().enumerate() {
                        let length = lengths.as_ref().map_or(1.0, |own| own.length(row, *scale));
                        *factor += length - 1.0;
                    }
                }
                let bias = at(op.bias, matrix * rows);
                let bias = self.access.optional_f32s("bias", bias, rows)?;
                let out = vector(op.out, token, op.out_stride);
                let out = at(out, part * op.out_step as usize);
                let mut values = self.access.f32s_in_place("out", out, rows)?;
                for ((row, value), factor) in values.iter_mut().enumerate().zip(factors) {
                    let bias = bias.as_ref().map_or(0.0, |bias| bias[row]);
                    *value = (*value - bias) * factor + bias;
                }
                self.access.write("out", out, &values)?;
            }
        }
        Ok(())
    }

    pub(super) fn embed_low_rank(&mut self, op: &EmbedLowRank) -> Result<()> {
        let (width, rank) = (op.table.cols as usize, op.rank as usize);
        self.access.set_shared();
        let a = self.access.f32s("a", op.a, rank * width)?;
        let lengths = self.lengths(op.lengths, 0, width)?;
        for token in self.covered() {
            self.access.set_unit(token);
            let id = self.id(token)?;
            if id >= op.table.rows {
                continue;
            }
            let b = vector(op.b, id as usize, op.rank);
            let b = self.access.f32s("b", b, rank)?;
            let own = match &lengths {
                Some(_) => self.matrix_row("table", &op.table, id)?,
                None => Vec::new(),
            };
            let out = vector(op.out, token, op.table.cols);
            let mut values = self.access.f32s_in_place("out", out, width)?;
            for (col, value) in values.iter_mut().enumerate() {
                let column = a.iter().skip(col).step_by(width);
                let change: f32 = b.iter().zip(column).map(|(b, a)| b * a).sum();
                let mut change = op.scale * change;
                if let Some(lengths) = &lengths {
                    let length = lengths.length(col, op.scale);
                    change = (length - 1.0) * own[col] + length * change;
                }
                *value += op.factor * change;
            }
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    /// The matrix of each of a token's parts.
    fn part_matrices(
        &mut self,
        experts: Address,
        token: usize,
        parts: usize,
    ) -> Result<Vec<usize>> {
        if experts.is_none() {
            return Ok((0..parts).collect());
        }
        let experts = self.token_u32s("experts", experts, token, parts)?;
        Ok(experts.into_iter().map(|expert| expert as usize).collect())
    }

    /// The lengths of a matrix's rows, or of an embedding's columns.
    fn lengths(&mut self, all: Address, matrix: usize, count: usize) -> Result<Option<Lengths>> {
        let own = at(all, matrix * 4 * count);
        let values = self.access.optional_f32s("lengths", own, 4 * count)?;
        Ok(values.map(|values| Lengths { values, count }))
    }
}
