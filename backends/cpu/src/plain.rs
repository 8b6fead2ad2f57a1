//! Multiplies by weights directly from the file, or decoded a few rows at a time.

use std::cell::RefCell;
use std::ops::Range;

use loquat_cpu_kernels::{Format, Kernels, PlainOut, PlainRows, Rounded, TILE_ROWS};
use loquat_session::Precision;
use loquat_weights::{Dtype, EncodedRow, Matrix};

use crate::linear::Activations;
use crate::shared::SharedMut;

/// A matrix without a packed copy.
pub struct Plain {
    matrix: Matrix,
    arithmetic: Arithmetic,
}

#[derive(Clone, Copy)]
enum Arithmetic {
    /// The weights as stored, times exact activations.
    Exact(Format),
    /// The weights as stored, times activations rounded to bf16.
    Bf16,
    /// The weights decoded to `f32`, times exact activations.
    Decoded,
}

/// Some rows of output.
pub struct PlainJob<'a> {
    pub input: &'a Activations,
    pub tokens: Range<usize>,
    pub rows: Range<usize>,
    /// `[token][row]`, of which the job alone touches its rows of its tokens.
    pub out: &'a SharedMut<'a, f32>,
    /// Index of the first token's first row in `out`.
    pub out_start: usize,
}

thread_local! {
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

impl Plain {
    pub fn new(matrix: Matrix, precision: Precision) -> Self {
        let dtype = match matrix.encoded_row(0) {
            Some(EncodedRow::Plain { dtype, .. }) => Some(dtype),
            _ => None,
        };
        let arithmetic = match (dtype, precision) {
            (Some(Dtype::BF16), Precision::Fast) => Arithmetic::Bf16,
            (Some(Dtype::BF16), Precision::Reference) => Arithmetic::Exact(Format::Bf16),
            (Some(Dtype::F16), _) => Arithmetic::Exact(Format::F16),
            (Some(Dtype::F32), _) => Arithmetic::Exact(Format::F32),
            _ => Arithmetic::Decoded,
        };
        Self { matrix, arithmetic }
    }

    pub fn rows(&self) -> usize {
        self.matrix.rows()
    }

    /// Row `row` as exact values.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) {
        // Binding has matched every length; a failure must not result in zeros.
        if self.matrix.decode_row(row, out).is_err() {
            out.fill(f32::NAN);
        }
    }

    /// Bytes of an activation, or `None` if rows are decoded for each product.
    pub fn activation_bytes(&self) -> Option<usize> {
        match self.arithmetic {
            Arithmetic::Decoded => None,
            Arithmetic::Exact(_) => Some(4),
            Arithmetic::Bf16 => Some(2),
        }
    }

    /// Whether it reads activations rounded to bf16.
    pub fn reads_bf16(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Bf16)
    }

    pub fn multiply(&self, kernels: &Kernels, job: &PlainJob) {
        match self.arithmetic {
            Arithmetic::Decoded => self.multiply_decoded(kernels, job),
            Arithmetic::Exact(format) => self.multiply_stored(job, format, |rows, out| {
                let x = job.input.rows(job.tokens.clone());
                // SAFETY: the table was chosen for this machine, `out` by `multiply_stored`.
                unsafe { (kernels.plain)(rows, x, out) };
            }),
            Arithmetic::Bf16 => self.multiply_stored(job, Format::Bf16, |rows, out| {
                let x: Rounded = job.input.rounded(job.tokens.clone());
                // SAFETY: the table was chosen for this machine, `out` by `multiply_stored`.
                unsafe { (kernels.plain_bf16)(rows, &x, out) };
            }),
        }
    }

    /// Calls `kernel` with each run of consecutive rows in the file and its output.
    fn multiply_stored(
        &self,
        job: &PlainJob,
        format: Format,
        kernel: impl Fn(&PlainRows, PlainOut),
    ) {
        let (cols, mut row) = (self.matrix.cols(), job.rows.start);
        let row_bytes = cols * format.bytes();
        // Binding has checked that every row exists.
        while let Some((run, EncodedRow::Plain { bytes, .. })) = self.matrix.encoded_run(row) {
            let count = run.min(job.rows.end - row);
            let rows = PlainRows {
                format,
                cols,
                bytes: &bytes[..count * row_bytes],
            };
            kernel(&rows, job.output(row, count, self.rows()));
            row += count;
            if row == job.rows.end {
                return;
            }
        }
    }

    fn multiply_decoded(&self, kernels: &Kernels, job: &PlainJob) {
        let cols = self.matrix.cols();
        DECODED.with_borrow_mut(|decoded| {
            decoded.resize(TILE_ROWS * cols, 0.0);
            let decoded = &mut decoded[..job.rows.len() * cols];
            for (row, out) in job.rows.clone().zip(decoded.chunks_exact_mut(cols)) {
                // Binding has matched every length, so decoding cannot fail; a row that did
                // would be NaN, not silently zero.
                if self.matrix.decode_row(row, out).is_err() {
                    out.fill(f32::NAN);
                }
            }
            let rows = PlainRows::from_values(decoded, cols);
            let out = job.output(job.rows.start, job.rows.len(), self.rows());
            let x = job.input.rows(job.tokens.clone());
            // SAFETY: the table was chosen for this machine, and `out` by `output`.
            unsafe { (kernels.plain)(&rows, x, out) };
        });
    }
}

impl PlainJob<'_> {
    /// The output of `count` rows of every token.
    fn output(&self, row: usize, count: usize, stride: usize) -> PlainOut {
        assert!(row >= self.rows.start && row + count <= self.rows.end);
        let len = self.tokens.len() * stride;
        assert!(row + count <= stride && len <= self.out.len() - self.out_start);
        PlainOut {
            // SAFETY: in bounds by the assertions; the job alone touches its rows.
            start: unsafe { self.out.pointer(self.out_start + row) },
            stride,
        }
    }
}
