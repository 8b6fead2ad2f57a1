//! Embeddings, features of media, gathered vectors, and sums of rows.

use super::access::decode;
use super::{Launch, Result, at, bytes_at, vector};
use crate::ops::{AddEmbedding, AddFeatures, Embed, Gather, MEDIA_ID, MatrixRef, SumRows};

impl Launch<'_> {
    pub(super) fn embed(&mut self, op: &Embed) -> Result<()> {
        let width = op.table.cols as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let id = self.id(token)?;
            let mut x = if id == MEDIA_ID {
                let features = self.features(0, token)?;
                self.access.f32s("features", features, width)?
            } else {
                let mut x = self.matrix_row("table", &op.table, id)?;
                x.iter_mut().for_each(|x| *x *= op.scale);
                x
            };
            if !op.positions.values.is_none() {
                let fits = op.positions.cols == op.table.cols;
                self.access
                    .require(fits, "positions", "not as wide as the table")?;
                let position = self.position(token)? as u32;
                let learned = self.matrix_row("positions", &op.positions, position)?;
                x.iter_mut()
                    .zip(learned)
                    .for_each(|(x, learned)| *x += learned);
            }
            let out = vector(op.out, token, op.table.cols);
            self.access.write("out", out, &x)?;
        }
        Ok(())
    }

    pub(super) fn add_embedding(&mut self, op: &AddEmbedding) -> Result<()> {
        let width = op.table.cols as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let id = match self.id(token)? {
                MEDIA_ID => op.media_id,
                id => id,
            };
            let embedded = self.matrix_row("table", &op.table, id)?;
            let out = vector(op.out, token, op.table.cols);
            let mut values = self.access.f32s_in_place("out", out, width)?;
            for (value, embedded) in values.iter_mut().zip(embedded) {
                *value = (*value + embedded * op.scale) * op.factor;
            }
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    pub(super) fn add_features(&mut self, op: &AddFeatures) -> Result<()> {
        let width = op.width as usize;
        for token in self.covered() {
            self.access.set_unit(token);
            let features = self.features(op.level as usize, token)?;
            if features.is_none() {
                continue;
            }
            let features = self.access.f32s("features", features, width)?;
            let out = vector(op.out, token, op.width);
            let mut values = self.access.f32s_in_place("out", out, width)?;
            values.iter_mut().zip(features).for_each(|(x, y)| *x += y);
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    pub(super) fn gather(&mut self, op: &Gather) -> Result<()> {
        let table = if op.index.is_none() {
            self.tables.emitted
        } else {
            op.index
        };
        for index in self.covered() {
            self.access.set_unit(index);
            let from = self.token_u32s("index", table, index, 1)?[0] as usize;
            let from = vector(op.input, from, op.input_stride);
            let values = self.access.f32s("input", from, op.len as usize)?;
            let out = vector(op.out, index, op.out_stride);
            self.access.write("out", out, &values)?;
        }
        Ok(())
    }

    pub(super) fn sum_rows(&mut self, op: &SumRows) -> Result<()> {
        let width = op.matrix.cols as usize;
        for index in self.covered() {
            self.access.set_unit(index);
            let terms = self.access.u32s("terms", at(op.terms, index), 2)?;
            let (first, end) = (terms[0] as usize, terms[1] as usize);
            self.access
                .require(first <= end, "terms", "they end before they begin")?;
            let rows = self.access.u32s("rows", at(op.rows, first), end - first)?;
            let weights = self
                .access
                .f32s("weights", at(op.weights, first), end - first)?;
            let mut sum = vec![0.0; width];
            for (row, weight) in rows.into_iter().zip(weights) {
                let values = self.matrix_row("matrix", &op.matrix, row)?;
                sum.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += value * weight);
            }
            let out = vector(op.out, index, op.out_stride);
            if op.adds != 0 {
                let before = self.access.f32s_in_place("out", out, width)?;
                sum.iter_mut()
                    .zip(before)
                    .for_each(|(sum, before)| *sum += before);
            }
            self.access.write("out", out, &sum)?;
        }
        Ok(())
    }

    pub(super) fn matrix_row(
        &mut self,
        operand: &'static str,
        matrix: &MatrixRef,
        row: u32,
    ) -> Result<Vec<f32>> {
        if row >= matrix.rows {
            let why = format!("row {row} of {}", matrix.rows);
            return Err(self.access.invalid(operand, why));
        }
        let width = matrix.cols as usize;
        let bytes = u64::from(row) * (width * matrix.format.bytes()) as u64;
        let from = bytes_at(matrix.values, bytes);
        let stored = self.access.stored(operand, from, width, matrix.format)?;
        let mut out = vec![0.0; width];
        decode(stored, matrix.format, &mut out);
        Ok(out)
    }
}
