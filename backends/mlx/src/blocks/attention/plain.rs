//! A plain implementation of attention's parts for tests.

use loquat_spec::{NormKind, RopePairs};

use crate::array::{Array, Ops};
use crate::linear::{Kernel, Linear};
use crate::norm::Rope;

pub const EPS: f32 = 1e-5;
/// Angles per position of the two rotated pairs.
const FREQUENCIES: [f32; 2] = [1.0, 0.125];

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub fn product(matrix: &[f32], vector: &[f32]) -> Vec<f32> {
    let rows = matrix.chunks_exact(vector.len());
    rows.map(|row| dot(row, vector)).collect()
}

pub fn norm(kind: NormKind, values: &mut [f32]) {
    let count = values.len() as f32;
    if kind == NormKind::Layer {
        let mean = values.iter().sum::<f32>() / count;
        values.iter_mut().for_each(|value| *value -= mean);
    }
    let length = (dot(values, values) / count + EPS).sqrt();
    values.iter_mut().for_each(|value| *value /= length);
}

pub fn multiply(values: &mut [f32], factors: impl Iterator<Item = f32>) {
    for (value, factor) in values.iter_mut().zip(factors) {
        *value *= factor;
    }
}

/// Rotates the head's first four values.
pub fn rotate(pairs: RopePairs, position: usize, head: &mut [f32]) {
    for (pair, frequency) in FREQUENCIES.into_iter().enumerate() {
        let (sin, cos) = (position as f32 * frequency).sin_cos();
        let (first, second) = match pairs {
            RopePairs::Halves => (pair, pair + FREQUENCIES.len()),
            RopePairs::Interleaved => (2 * pair, 2 * pair + 1),
        };
        let (a, b) = (head[first], head[second]);
        (head[first], head[second]) = (a * cos - b * sin, a * sin + b * cos);
    }
}

/// The same RoPE on MLX.
pub fn rope(ops: &Ops, pairs: RopePairs) -> Rope {
    Rope {
        dims: 2 * FREQUENCIES.len() as i32,
        pairs,
        periods: vector(ops, &FREQUENCIES.map(f32::recip)),
        factors: None,
        sectioned: None,
    }
}

/// Values weighted by the softmax of their scores and the sink's.
pub fn mix<'a>(scored: impl Iterator<Item = (f32, &'a [f32])>, sink: Option<f32>) -> Vec<f32> {
    let mut mixed = Vec::new();
    let mut sum = sink.map_or(0.0, f32::exp);
    for (score, value) in scored {
        mixed.resize(value.len(), 0.0);
        sum += score.exp();
        for (mixed, value) in mixed.iter_mut().zip(value) {
            *mixed += score.exp() * value;
        }
    }
    mixed.iter_mut().for_each(|value| *value /= sum);
    mixed
}

pub fn vector(ops: &Ops, values: &[f32]) -> Array {
    ops.upload_f32(values, &[values.len() as i32]).unwrap()
}

/// A matrix of `cols` columns.
pub fn linear(ops: &Ops, values: &[f32], cols: usize) -> Linear {
    let dims = [(values.len() / cols) as i32, cols as i32];
    let matrix = ops.upload_f32(values, &dims).unwrap();
    Linear {
        kernel: Kernel::Plain(ops.transpose(&matrix, &[1, 0]).unwrap()),
        bias: None,
        parts: Vec::new(),
    }
}

/// The identity matrix, as an output matrix.
pub fn identity(ops: &Ops, len: usize) -> Linear {
    let ones = (0..len * len).map(|at| f32::from(at % len == at / len));
    linear(ops, &ones.collect::<Vec<_>>(), len)
}

pub fn assert_close(name: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        // Sums of some ten products of about one, in another order.
        let difference = (found - expected).abs();
        assert!(
            difference < 3e-5,
            "{name}, value {at}: {found} instead of {expected}"
        );
    }
}
