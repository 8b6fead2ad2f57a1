//! Lengths of adapted rows (DoRA).

use std::ops::Range;

use loquat_session::SessionError;
use loquat_weights::LowRank;

use crate::array::{Array, Binary, Ops, Packed, Reduce, Type, Unary, slice_axis};
use crate::error::MlxError;
use crate::linear::Kernel;

/// The rows of one role in a kernel.
pub struct BaseRows {
    pub kernel: Kernel,
    /// The first of the kernel's rows.
    pub first: usize,
    pub rows: usize,
    /// Matrices of a stack; `None`: the role is one matrix.
    pub count: Option<usize>,
}

/// What the lengths of adapted rows follow from, for any scale. Each [rows], or [matrices, rows],
/// float32.
///
/// The factor of a row at scale `u` is its factor at scale 1 divided by the root of its squared
/// length, `base + u * (cross + u * own)`, of which scale 1 has 1.
pub struct RowLengths {
    /// At scale 1.
    factor: Array,
    base: Array,
    cross: Array,
    own: Array,
}

/// Values that are decoded at once.
const DECODED: usize = 1 << 22;

/// Bytes of temporary values while the lengths are computed: the model's rows, the adapter's, and
/// two products of them.
pub const LOAD_BYTES: u64 = 4 * (DECODED * size_of::<f32>()) as u64;

impl BaseRows {
    pub fn is_stack(&self) -> bool {
        self.count.is_some()
    }

    /// Whether changes are those of matrices of this shape.
    pub fn fits(&self, members: &[Option<LowRank>]) -> bool {
        let rows = |change: &LowRank| change.b.rows() == self.rows;
        members.len() == self.count.unwrap_or(1) && members.iter().flatten().all(rows)
    }

    /// Some rows of one of the matrices, [rows, cols], float32.
    fn decoded(&self, ops: &Ops, member: usize, rows: Range<usize>) -> Result<Array, MlxError> {
        let rows = self.first + rows.start..self.first + rows.end;
        let of_member = |array: &Array, axis: usize| {
            let array = match self.count {
                Some(_) => slice_axis(ops, array, 0, member..member + 1)?,
                None => array.clone(),
            };
            let axis = axis + usize::from(self.is_stack());
            let part = slice_axis(ops, &array, axis, rows.clone())?;
            let shape = part.shape();
            ops.reshape(&part, &shape[shape.len() - 2..])
        };
        match &self.kernel {
            Kernel::Plain(weight) => {
                let rows = ops.transpose(&of_member(weight, 1)?, &[1, 0])?;
                ops.astype(&rows, Type::F32)
            }
            Kernel::Packed(packed) => {
                let rows = Packed {
                    codes: of_member(&packed.codes, 0)?,
                    scales: of_member(&packed.scales, 0)?,
                    biases: match &packed.biases {
                        Some(biases) => Some(of_member(biases, 0)?),
                        None => None,
                    },
                    packing: packed.packing,
                };
                ops.dequantize(&rows, Type::F32)
            }
        }
    }

    /// The squared length of each row, its product with the adapter's row, and that row's squared
    /// length.
    fn sums(&self, ops: &Ops, member: usize, change: &LowRank) -> Result<[Vec<f32>; 3], MlxError> {
        let (rank, cols) = (change.rank(), change.a.cols());
        let a = ops.upload_f32(change.a.values(), &[rank as i32, cols as i32])?;
        let step = (DECODED / cols.max(1)).max(1);
        let mut sums: [Vec<f32>; 3] = Default::default();
        for first in (0..self.rows).step_by(step) {
            let rows = first..self.rows.min(first + step);
            let b = &change.b.values()[rows.start * rank..rows.end * rank];
            let b = ops.upload_f32(b, &[rows.len() as i32, rank as i32])?;
            let base = self.decoded(ops, member, rows.clone())?;
            let own = ops.matmul(&b, &a)?;
            for (sums, (left, right)) in
                sums.iter_mut()
                    .zip([(&base, &base), (&base, &own), (&own, &own)])
            {
                let product = ops.multiply(left, right)?;
                let sum = ops.reduce(Reduce::Sum, &product, 1, false)?;
                let at = sums.len();
                sums.resize(at + rows.len(), 0.0);
                ops.read_f32(&sum, &mut sums[at..])?;
            }
        }
        Ok(sums)
    }
}

impl RowLengths {
    /// For a matrix of `rows`.
    pub const fn bytes(rows: usize) -> usize {
        4 * rows * size_of::<f32>()
    }

    pub fn load(
        ops: &Ops,
        base: &BaseRows,
        members: &[Option<LowRank>],
    ) -> Result<Self, SessionError> {
        let mut parts: [Vec<f32>; 4] = Default::default();
        for (member, change) in members.iter().enumerate() {
            let with_magnitude = change
                .as_ref()
                .and_then(|change| Some((change, change.magnitude.as_ref()?)));
            let Some((change, magnitude)) = with_magnitude else {
                // Factors of 1 at every scale.
                for (part, value) in parts.iter_mut().zip([1.0, 1.0, 0.0, 0.0]) {
                    part.resize(part.len() + base.rows, value);
                }
                continue;
            };
            let sums = base.sums(ops, member, change)?;
            let [of_base, cross, own] = &sums;
            let rows = of_base.iter().zip(cross).zip(own).zip(magnitude.iter());
            for (((of_base, cross), own), magnitude) in rows {
                let scale = change.scale;
                let terms = [*of_base, 2.0 * scale * cross, scale * scale * own];
                // Rounding must not make it negative.
                let square = terms.iter().sum::<f32>().max(f32::MIN_POSITIVE);
                let values = [
                    magnitude / square.sqrt(),
                    terms[0] / square,
                    terms[1] / square,
                    terms[2] / square,
                ];
                for (part, value) in parts.iter_mut().zip(values) {
                    part.push(value);
                }
            }
        }
        if !parts.iter().flatten().all(|value| value.is_finite()) {
            let why = "the lengths of its rows are not finite numbers";
            return Err(SessionError::InvalidAdapter(why.to_owned()));
        }
        let dims: Vec<usize> = base.count.into_iter().chain([base.rows]).collect();
        let upload = |part: &[f32]| super::upload(ops, part, &dims, Type::F32);
        Ok(Self {
            factor: upload(&parts[0])?,
            base: upload(&parts[1])?,
            cross: upload(&parts[2])?,
            own: upload(&parts[3])?,
        })
    }

    /// What each row is multiplied by at this scale.
    pub fn factors(&self, ops: &Ops, scale: f32) -> Result<Array, MlxError> {
        if scale == 1.0 {
            return Ok(self.factor.clone());
        }
        let inner = ops.add(&self.cross, &ops.scale(&self.own, scale)?)?;
        let square = ops.add(&self.base, &ops.scale(&inner, scale)?)?;
        let smallest = ops.full(&[1], f32::MIN_POSITIVE, Type::F32)?;
        let square = ops.binary(Binary::Maximum, &square, &smallest)?;
        ops.multiply(&self.factor, &ops.unary(Unary::InverseRoot, &square)?)
    }
}
