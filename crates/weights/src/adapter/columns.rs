//! Lengths of the columns of an adapted embedding.
//!
//! DoRA gives each row of a matrix a length. Of an embedding, whose table peft sees transposed, these
//! are columns: every token's values are multiplied by the same factors. mlx-lm's are of rows.

use std::sync::Arc;

use super::{LengthsOf, LowRank};

/// What the length of each column of `W + scale · b · a` follows from, for any scale.
#[derive(Clone, Debug)]
pub struct ColumnLengths {
    magnitude: Arc<[f32]>,
    /// Squared length of the model's column.
    base: Vec<f32>,
    /// Its product with the factors' column.
    cross: Vec<f32>,
    /// Squared length of the factors' column.
    own: Vec<f32>,
}

impl ColumnLengths {
    /// Bytes for so many columns.
    pub const fn bytes(cols: usize) -> usize {
        4 * cols * size_of::<f32>()
    }

    /// Reads the whole table; `decode` writes one of its rows. `None` if a length is not a finite
    /// number, or the change has no magnitudes of columns.
    pub fn compute<E>(
        change: &LowRank,
        mut decode: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let Some(magnitude) = &change.magnitude else {
            return Ok(None);
        };
        if change.lengths_of != LengthsOf::Columns {
            return Ok(None);
        }
        let cols = change.a.cols();
        let (mut row, mut own) = (vec![0.0f32; cols], vec![0.0f32; cols]);
        let mut sums = vec![[0.0f64; 3]; cols];
        for token in 0..change.b.rows() {
            decode(token, &mut row)?;
            own.fill(0.0);
            for (k, factor) in change.b.row(token).iter().enumerate() {
                for (own, value) in own.iter_mut().zip(change.a.row(k)) {
                    *own += factor * value;
                }
            }
            for ((sums, base), own) in sums.iter_mut().zip(&row).zip(&own) {
                let (base, own) = (f64::from(*base), f64::from(*own));
                sums[0] += base * base;
                sums[1] += base * own;
                sums[2] += own * own;
            }
        }
        let part = |index: usize| sums.iter().map(|sums| sums[index] as f32).collect();
        let lengths = Self {
            magnitude: Arc::clone(magnitude),
            base: part(0),
            cross: part(1),
            own: part(2),
        };
        let finite = sums.iter().flatten().all(|sum| (*sum as f32).is_finite());
        Ok(finite.then_some(lengths))
    }

    /// What the columns of `W + scale · b · a` are multiplied by.
    pub fn factors(&self, scale: f32) -> impl Iterator<Item = f32> {
        let columns = self.base.iter().zip(&self.cross).zip(&self.own);
        columns
            .zip(self.magnitude.iter())
            .map(move |(((base, cross), own), magnitude)| {
                let square = base + scale * (2.0 * cross + scale * own);
                // Rounding must not make it negative.
                magnitude / square.max(f32::MIN_POSITIVE).sqrt()
            })
    }
}
