//! The most likely token of each row of logits.

use loquat_cpu_kernels::KvElement;

use super::Forward;
use crate::buffers::{Buffer, fit};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// Logits that a thread searches at a time.
const PART: usize = 1 << 14;

impl<T: KvElement> Forward<'_, T> {
    /// Writes the index of each row's largest logit to `out`.
    pub fn largest(&mut self, logits: &[f32], out: &mut Buffer<Option<u32>>) {
        rows_argmax(self.pool, logits, self.model.vocab_size, out);
    }
}

/// The [`argmax`] of each row of `width` values; `out` has room for parts while it runs.
fn rows_argmax(pool: &mut Pool, values: &[f32], width: usize, out: &mut Buffer<Option<u32>>) {
    let (rows, parts) = (values.len() / width, width.div_ceil(PART));
    fit(out, rows * parts);
    let found = SharedMut::new(out);
    pool.run(rows * parts, &|task| {
        let (row, first) = (task / parts, task % parts * PART);
        let row = &values[row * width..(row + 1) * width];
        let index = argmax(&row[first..(first + PART).min(width)]);
        // SAFETY: each task writes its own result.
        unsafe { found.slice(task, 1)[0] = index.map(|index| first as u32 + index) };
    });
    for row in 0..rows {
        let value = |index: u32| values[row * width + index as usize];
        let found = out[row * parts..(row + 1) * parts].iter().flatten();
        // Of equal values, the first part's.
        let best = found.copied().reduce(|best, next| {
            if value(next) > value(best) {
                next
            } else {
                best
            }
        });
        out[row] = best;
    }
    fit(out, rows);
}

/// The index of the largest value, the lowest index of equal values; `None` if all values are NaN.
fn argmax(values: &[f32]) -> Option<u32> {
    const BLOCK: usize = 1024;
    let mut block = 0;
    let mut largest = f32::NEG_INFINITY;
    for (index, values) in values.chunks(BLOCK).enumerate() {
        let value = max(values);
        if value > largest {
            (block, largest) = (index, value);
        }
    }
    let mut candidates = values.iter().enumerate().skip(block * BLOCK);
    let found = candidates.find(|(_, value)| **value == largest && largest > f32::NEG_INFINITY);
    found.map(|(index, _)| index as u32)
}

/// The largest number, in lanes that compilers vectorize.
fn max(values: &[f32]) -> f32 {
    const LANES: usize = 32;
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for values in chunks {
        lanes = std::array::from_fn(|i| larger(values[i], lanes[i]));
    }
    let all = rest.iter().chain(&lanes);
    all.fold(f32::NEG_INFINITY, |largest, value| larger(*value, largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_returns_the_first_largest() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let table: [(&[f32], Option<u32>); 9] = [
            (&[], None),
            (&[nan, nan], None),
            (&[-inf, nan, -inf], None),
            (&[nan, -3.0, nan], Some(1)),
            (&[1.0, 2.0, 2.0], Some(1)),
            (&[-0.0, 0.0], Some(0)),
            (&[0.0, -0.0], Some(0)),
            (&[1.0, inf, inf, nan], Some(1)),
            (&[f32::MIN, -inf], Some(0)),
        ];
        for (values, expected) in table {
            assert_eq!(argmax(values), expected, "{values:?}");
            // Also among many others, across lanes and blocks.
            for padding in [1, 31, 32, 1023, 1024, 3001] {
                for filler in [nan, -inf] {
                    let filler = vec![filler; padding];
                    let around = [&filler, values, &filler].concat();
                    let expected = expected.map(|at| at + padding as u32);
                    assert_eq!(argmax(&around), expected, "{padding} around {values:?}");
                }
            }
        }
        let falling: Vec<f32> = (0..5000).map(|i| -(i as f32)).collect();
        assert_eq!(argmax(&falling), Some(0));
        let rising: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        assert_eq!(argmax(&rising), Some(4999));
        assert_eq!(argmax(&[rising.as_slice(), &rising].concat()), Some(4999));
    }

    #[test]
    fn parts_have_no_effect_on_argmax() {
        let width = 2 * PART + 77;
        let mut values = vec![f32::NAN; 4 * width];
        // Equal values in two parts; only in the last part; after a lower one; none.
        let largest = [
            (5, 1.0),
            (PART + 3, 1.0),
            (width + 2 * PART + 76, -4.0),
            (2 * width + 9, 2.0),
            (2 * width + PART, 3.0),
        ];
        for (at, value) in largest {
            values[at] = value;
        }
        let expected = [Some(5), Some(2 * PART as u32 + 76), Some(PART as u32), None];
        for threads in [1, 2, 5] {
            let mut out = Buffer::default();
            rows_argmax(&mut Pool::new(threads).unwrap(), &values, width, &mut out);
            assert_eq!(*out, expected);
        }
    }
}
