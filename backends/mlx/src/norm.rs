//! Norms and RoPE, which several blocks share.

use loquat_spec::{NormKind, Role, RopePairs, RopeSections};

use crate::adapted::Segment;
use crate::array::{Array, Binary, Ops, slice_axis};
use crate::error::MlxError;

/// Over the last dimension.
#[derive(Clone)]
pub struct Norm {
    pub kind: NormKind,
    pub eps: f32,
    pub weight: Option<Array>,
    pub bias: Option<Array>,
}

impl Norm {
    pub fn apply(&self, ops: &Ops, x: &Array) -> Result<Array, MlxError> {
        match self.kind {
            NormKind::Rms => {
                let normed = ops.rms_norm(x, self.weight.as_ref(), self.eps)?;
                match &self.bias {
                    Some(bias) => ops.add(&normed, bias),
                    None => Ok(normed),
                }
            }
            NormKind::Layer => {
                ops.layer_norm(x, self.weight.as_ref(), self.bias.as_ref(), self.eps)
            }
        }
    }
}

/// A norm that adapters may change.
#[derive(Clone)]
pub struct StreamNorm {
    pub norm: Norm,
    /// Of the weight and the bias, if it has them.
    pub roles: [Option<Role>; 2],
}

impl StreamNorm {
    /// For a segment's tokens.
    pub fn of_segment(&self, segment: &Segment) -> Norm {
        let of = |index: usize, own: &Option<Array>| {
            let replaced = segment.vector(self.roles[index]);
            replaced.or(own.as_ref()).cloned()
        };
        Norm {
            kind: self.norm.kind,
            eps: self.norm.eps,
            weight: of(0, &self.norm.weight),
            bias: of(1, &self.norm.bias),
        }
    }
}

/// Rotates heads by their positions.
#[derive(Clone)]
pub struct Rope {
    pub dims: i32,
    pub pairs: RopePairs,
    /// The inverse of each pair's angle per position, float32.
    pub periods: Array,
    /// A factor for each value of a head; `None` if all are one.
    pub factors: Option<Array>,
    /// For positions of three axes.
    pub sectioned: Option<SectionedRope>,
}

/// What rotates heads whose tokens have a frame, a row and a column of their own.
#[derive(Clone, PartialEq)]
pub struct SectionedRope {
    pub sections: RopeSections,
    /// Each pair's angle per position.
    pub frequencies: Vec<f32>,
    /// Multiplies cosines and sines.
    pub factor: f32,
}

/// Which values of a vector rotate together: `outer` runs of `2 * inner` values, in each of which
/// partners are `inner` apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairLayout {
    pub outer: i32,
    pub inner: i32,
}

impl PairLayout {
    /// For vectors of `dims` values.
    pub fn new(pairs: RopePairs, dims: i32) -> Self {
        match pairs {
            RopePairs::Halves => Self {
                outer: 1,
                inner: dims / 2,
            },
            RopePairs::Interleaved => Self {
                outer: dims / 2,
                inner: 1,
            },
        }
    }

    /// Rotates vectors in the last dimension. Cosines and sines, float32, have a value for each
    /// pair there and are broadcast over the other dimensions.
    pub fn rotate(self, ops: &Ops, x: &Array, [cos, sin]: [&Array; 2]) -> Result<Array, MlxError> {
        let (shape, axis) = (x.shape(), x.shape().len());
        let split = |array: &Array, parts: i32| {
            let mut dims = array.shape();
            dims.truncate(axis - 1);
            dims.extend([self.outer, parts, self.inner]);
            ops.reshape(array, &dims)
        };
        let (whole, cos, sin) = (split(x, 2)?, split(cos, 1)?, split(sin, 1)?);
        let first = slice_axis(ops, &whole, axis, 0..1)?;
        let second = slice_axis(ops, &whole, axis, 1..2)?;
        let turned = [
            ops.binary(
                Binary::Subtract,
                &ops.multiply(&first, &cos)?,
                &ops.multiply(&second, &sin)?,
            )?,
            ops.add(&ops.multiply(&second, &cos)?, &ops.multiply(&first, &sin)?)?,
        ];
        let turned = ops.concatenate(&[&turned[0], &turned[1]], axis as i32)?;
        ops.astype(&ops.reshape(&turned, &shape)?, x.dtype())
    }
}

impl SectionedRope {
    /// Cosines and sines, `[position][pair]`.
    pub fn angles(&self, positions: &[[usize; 3]]) -> [Vec<f32>; 2] {
        let count = positions.len() * self.frequencies.len();
        let (mut cos, mut sin) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for position in positions {
            for (pair, frequency) in self.frequencies.iter().enumerate() {
                let axis = self.sections.axis(pair);
                let (s, c) = (position[axis] as f32 * frequency).sin_cos();
                cos.push(c * self.factor);
                sin.push(s * self.factor);
            }
        }
        [cos, sin]
    }
}

impl Rope {
    /// `heads`: [rows, heads, tokens, dim]; `offsets`: the rows' first positions.
    pub fn rotate(&self, ops: &Ops, heads: &Array, offsets: &Array) -> Result<Array, MlxError> {
        let neighbours = self.pairs == RopePairs::Interleaved;
        let turned = ops.rope(heads, self.dims, neighbours, offsets, &self.periods)?;
        match &self.factors {
            Some(factors) => ops.multiply(&turned, factors),
            None => Ok(turned),
        }
    }

    /// `heads`: [rows, heads, tokens, dim]; `angles`: each token's cosines and sines, [rows, 1,
    /// tokens, pairs].
    pub fn rotate_by(
        &self,
        ops: &Ops,
        heads: &Array,
        angles: [&Array; 2],
    ) -> Result<Array, MlxError> {
        let (dims, dim) = (self.dims as usize, heads.dim(3) as usize);
        let rotated = slice_axis(ops, heads, 3, 0..dims)?;
        let rotated = PairLayout::new(self.pairs, self.dims).rotate(ops, &rotated, angles)?;
        if dims == dim {
            return Ok(rotated);
        }
        ops.concatenate(&[&rotated, &slice_axis(ops, heads, 3, dims..dim)?], 3)
    }
}

#[cfg(test)]
mod tests {
    use loquat_spec::SectionOrder;

    use super::*;
    use crate::testing::{self, noise, read};

    const DIMS: usize = 8;
    const DIM: usize = 10;
    const TOKENS: usize = 5;

    fn rope(ops: &Ops, pairs: RopePairs) -> Rope {
        let frequencies = vec![1.0, 0.5, 0.25, 0.125];
        let periods: Vec<f32> = frequencies.iter().map(|angle| 1.0 / angle).collect();
        Rope {
            dims: DIMS as i32,
            pairs,
            periods: ops.upload_f32(&periods, &[4]).unwrap(),
            factors: None,
            sectioned: Some(SectionedRope {
                sections: RopeSections {
                    counts: [2, 1, 1],
                    order: SectionOrder::Sequential,
                },
                frequencies,
                factor: 1.0,
            }),
        }
    }

    /// One row of two heads.
    fn rotated_by(ops: &Ops, rope: &Rope, heads: &Array, places: &[[usize; 3]]) -> Vec<f32> {
        let angles = rope.sectioned.as_ref().unwrap().angles(places);
        let dims = [1, 1, TOKENS as i32, DIMS as i32 / 2];
        let [cos, sin] = angles.map(|values| ops.upload_f32(&values, &dims).unwrap());
        read(ops, &rope.rotate_by(ops, heads, [&cos, &sin]).unwrap())
    }

    #[test]
    fn places_of_text_rotate_like_text() {
        let Some(ops) = testing::ops() else { return };
        let values = noise(2 * TOKENS * DIM, 3);
        let heads = ops.upload_f32(&values, &[1, 2, TOKENS as i32, DIM as i32]);
        let (heads, offsets) = (heads.unwrap(), ops.upload_i32(&[7], &[1]).unwrap());
        for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
            let rope = rope(&ops, pairs);
            let expected = read(&ops, &rope.rotate(&ops, &heads, &offsets).unwrap());
            let places: Vec<[usize; 3]> = (7..7 + TOKENS).map(|at| [at; 3]).collect();
            let found = rotated_by(&ops, &rope, &heads, &places);
            for (a, b) in found.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-5, "{pairs:?}: {a} and {b}");
            }
        }
    }

    #[test]
    fn pairs_rotate_by_their_own_axis() {
        let Some(ops) = testing::ops() else { return };
        let values = noise(2 * TOKENS * DIM, 4);
        let heads = ops
            .upload_f32(&values, &[1, 2, TOKENS as i32, DIM as i32])
            .unwrap();
        let rope = rope(&ops, RopePairs::Halves);
        let places: Vec<[usize; 3]> = (0..TOKENS).map(|at| [3, 3 + at, 9 - at]).collect();
        let found = rotated_by(&ops, &rope, &heads, &places);
        let rows = values.chunks(DIM).zip(found.chunks(DIM)).enumerate();
        for (row, (before, after)) in rows {
            let place = places[row % TOKENS];
            for (pair, axis) in [0, 0, 1, 2].into_iter().enumerate() {
                let (sin, cos) = (place[axis] as f32 * 0.5f32.powi(pair as i32)).sin_cos();
                let (a, b) = (before[pair], before[pair + 4]);
                let expected = [a * cos - b * sin, b * cos + a * sin];
                for (found, expected) in [after[pair], after[pair + 4]].iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-6, "row {row}, pair {pair}");
                }
            }
            assert_eq!(after[DIMS..], before[DIMS..], "row {row}");
        }
    }
}
