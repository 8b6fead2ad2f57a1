//! Products with matrices.

use super::access::decode;
use super::{Launch, Result, at, bytes_at, dot, vector};
use crate::ops::{Address, Linear, MatrixRef};

/// Where a product's vectors are.
struct Vectors {
    buffer: Address,
    stride: u32,
}

impl Launch<'_> {
    pub(super) fn linear(&mut self, op: &Linear) -> Result<()> {
        self.access.require(
            op.batch <= 1 || op.bias.is_none(),
            "bias",
            "batched products have none",
        )?;
        let (rows, cols) = (op.matrix.rows as usize, op.matrix.cols as usize);
        self.access.set_shared();
        let bias = self.access.optional_f32s("bias", op.bias, rows)?;
        let matrix_bytes = (rows * cols * op.matrix.format.bytes()) as u64;
        for batch in 0..op.batch as usize {
            let input = Vectors {
                buffer: at(op.input, batch * op.input_step as usize),
                stride: op.input_stride,
            };
            let matrix = MatrixRef {
                values: bytes_at(op.matrix.values, batch as u64 * matrix_bytes),
                ..op.matrix
            };
            let inputs = self.inputs(&input, cols)?;
            self.access.set_shared();
            let values = self.multiply_all("matrix", &matrix, &inputs)?;
            for (index, token) in self.covered().enumerate() {
                self.access.set_unit(token);
                let mut values = values[index * rows..(index + 1) * rows].to_vec();
                add_vector(&mut values, bias.as_deref());
                let out = at(op.out, batch * op.out_step as usize);
                self.access
                    .write("out", vector(out, token, op.out_stride), &values)?;
            }
        }
        Ok(())
    }

    /// The inputs of all covered tokens, contiguous.
    fn inputs(&mut self, input: &Vectors, len: usize) -> Result<Vec<f32>> {
        let mut inputs = Vec::new();
        for token in self.covered() {
            self.access.set_unit(token);
            let from = vector(input.buffer, token, input.stride);
            inputs.extend(self.access.f32s("input", from, len)?);
        }
        Ok(inputs)
    }

    /// `[input][row]`. Each row is decoded once for all inputs.
    fn multiply_all(
        &mut self,
        operand: &'static str,
        matrix: &MatrixRef,
        inputs: &[f32],
    ) -> Result<Vec<f32>> {
        let (rows, cols) = (matrix.rows as usize, matrix.cols as usize);
        let count = self.step.count as usize;
        let mut out = vec![0.0; count * rows];
        let stored = self
            .access
            .stored(operand, matrix.values, rows * cols, matrix.format)?;
        multiply(stored, matrix, inputs, &mut out);
        Ok(out)
    }
}

/// `out[input][row] = matrix[row] · inputs[input]`
pub(super) fn multiply(stored: &[u8], matrix: &MatrixRef, inputs: &[f32], out: &mut [f32]) {
    let (rows, cols) = (matrix.rows as usize, matrix.cols as usize);
    let row_bytes = cols * matrix.format.bytes();
    if row_bytes == 0 {
        return;
    }
    let mut decoded = vec![0.0; cols];
    for (row, stored) in stored.chunks_exact(row_bytes).enumerate() {
        decode(stored, matrix.format, &mut decoded);
        for (input, out) in inputs.chunks_exact(cols).zip(out.chunks_exact_mut(rows)) {
            out[row] = dot(&decoded, input);
        }
    }
}

/// Adds a vector, if there is one.
pub(super) fn add_vector(values: &mut [f32], vector: Option<&[f32]>) {
    for (value, added) in values.iter_mut().zip(vector.unwrap_or_default()) {
        *value += added;
    }
}
