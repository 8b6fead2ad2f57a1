//! What the lengths of adapted rows and columns follow from (DoRA), computed when an adapter is
//! loaded from the model's matrix on the device.

use std::num::NonZero;
use std::thread;

use crate::device::{Device, DeviceError};
use crate::interpret::decode;
use crate::ops::MatrixRef;

/// Bytes of a matrix that are read from the device at once.
const CHUNK: usize = 32 << 20;
/// Multiplications that are worth a thread.
const THREAD_WORK: usize = 1 << 24;

/// The factors of a matrix's change.
pub struct Change<'a> {
    /// `[rank][cols]`
    pub a: &'a [f32],
    /// `[rows][rank]`
    pub b: &'a [f32],
    pub rank: usize,
}

impl Change<'_> {
    /// A row of `b * a`.
    fn row(&self, row: usize, out: &mut [f32]) {
        out.fill(0.0);
        let factors = &self.b[row * self.rank..(row + 1) * self.rank];
        for (factor, a) in factors.iter().zip(self.a.chunks_exact(out.len())) {
            for (out, value) in out.iter_mut().zip(a) {
                *out += factor * value;
            }
        }
    }
}

/// The squared length of the model's row, its product with the change's, and the squared length of
/// that.
pub type Sums = [f32; 3];

fn terms(base: f32, change: f32) -> [f64; 3] {
    let (base, change) = (f64::from(base), f64::from(change));
    [base * base, base * change, change * change]
}

/// Sums over each row.
pub fn row_sums(
    device: &mut dyn Device,
    base: &MatrixRef,
    change: &Change<'_>,
) -> Result<Vec<Sums>, DeviceError> {
    let cols = base.cols as usize;
    let row_bytes = cols * base.format.bytes();
    let mut all = vec![[0.0; 3]; base.rows as usize];
    for_chunks(device, base, |first, stored| {
        let rows = stored.len() / row_bytes;
        let threads = (rows * cols * change.rank / THREAD_WORK).clamp(1, parallelism());
        let per_thread = rows.div_ceil(threads);
        let sums = &mut all[first..first + rows];
        thread::scope(|scope| {
            let stored = stored.chunks(per_thread * row_bytes);
            for (index, (sums, stored)) in sums.chunks_mut(per_thread).zip(stored).enumerate() {
                let first = first + index * per_thread;
                let mut compute = move || sum_rows(base, change, (first, stored), sums);
                if threads == 1 {
                    compute();
                } else {
                    scope.spawn(compute);
                }
            }
        });
    })?;
    Ok(all)
}

fn sum_rows(base: &MatrixRef, change: &Change<'_>, rows: (usize, &[u8]), sums: &mut [Sums]) {
    let (first, stored) = rows;
    let cols = base.cols as usize;
    let (mut own, mut changed) = (vec![0.0; cols], vec![0.0; cols]);
    let stored = stored.chunks_exact(cols * base.format.bytes());
    for ((row, stored), sums) in (first..).zip(stored).zip(sums) {
        decode(stored, base.format, &mut own);
        change.row(row, &mut changed);
        let mut totals = [0.0; 3];
        for (own, changed) in own.iter().zip(&changed) {
            let terms = terms(*own, *changed);
            for (total, term) in totals.iter_mut().zip(terms) {
                *total += term;
            }
        }
        *sums = totals.map(|total| total as f32);
    }
}

/// Sums over each column.
pub fn column_sums(
    device: &mut dyn Device,
    base: &MatrixRef,
    change: &Change<'_>,
) -> Result<Vec<Sums>, DeviceError> {
    let cols = base.cols as usize;
    let (mut own, mut changed) = (vec![0.0; cols], vec![0.0; cols]);
    let mut totals = vec![[0.0; 3]; cols];
    for_chunks(device, base, |first, stored| {
        let stored = stored.chunks_exact(cols * base.format.bytes());
        for (row, stored) in (first..).zip(stored) {
            decode(stored, base.format, &mut own);
            change.row(row, &mut changed);
            for (totals, (own, changed)) in totals.iter_mut().zip(own.iter().zip(&changed)) {
                for (total, term) in totals.iter_mut().zip(terms(*own, *changed)) {
                    *total += term;
                }
            }
        }
    })?;
    let rounded = totals
        .into_iter()
        .map(|totals| totals.map(|total| total as f32));
    Ok(rounded.collect())
}

fn parallelism() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Reads a matrix in chunks of rows, each with the index of its first.
fn for_chunks(
    device: &mut dyn Device,
    matrix: &MatrixRef,
    mut consume: impl FnMut(usize, &[u8]),
) -> Result<(), DeviceError> {
    let rows = matrix.rows as usize;
    let row_bytes = matrix.cols as usize * matrix.format.bytes();
    if row_bytes == 0 {
        return Ok(());
    }
    let per_chunk = (CHUNK / row_bytes).clamp(1, rows.max(1));
    let mut chunk = vec![0; per_chunk * row_bytes];
    for first in (0..rows).step_by(per_chunk) {
        let bytes = per_chunk.min(rows - first) * row_bytes;
        let from = matrix.values.offset((first * row_bytes) as u64);
        device.read(from, &mut chunk[..bytes])?;
        consume(first, &chunk[..bytes]);
    }
    Ok(())
}
