//! Converts matrices from the file's encoding to one that MLX supports.
//!
//! MLX's own formats and floats of the activations' type are uploaded unchanged, GGUF blocks are
//! repacked if MLX has the same arithmetic, and everything else is decoded. Unchanged data goes
//! straight from the file to the device; converted data is in memory one plane at a time.

mod blocks;
mod form;
mod report;
#[cfg(test)]
mod tests;

use std::panic::resume_unwind;
use std::thread;

use half::{bf16, f16};
use loquat_session::OpenError;
use loquat_weights::decode::decode_row;
use loquat_weights::{DecodeFault, Dtype, EncodedRow, Matrix, WeightsError};

use crate::array::{Array, Ops, Packed, Type};
use crate::error::MlxError;
use crate::linear::{Kernel, Table};

use form::Plane;
pub use form::{Form, float_type};
pub use report::{MatrixNote, report};

/// Matrices on the device.
#[derive(Clone)]
pub enum UploadedMatrix {
    /// [..., rows, cols]
    Plain(Array),
    Packed(Packed),
}

impl UploadedMatrix {
    /// The matrices concatenated by rows in this form, as an array whose dimensions before the
    /// columns are `dims`.
    pub fn upload(
        ops: &Ops,
        form: Form,
        matrices: &[&Matrix],
        dims: &[usize],
    ) -> Result<Self, OpenError> {
        let cols = matrices.first().map_or(0, |matrix| matrix.cols());
        let plane = |plane: Plane| -> Result<Array, OpenError> {
            let of = form.plane_type(plane);
            let mut dims: Vec<i32> = dims.iter().map(|dim| *dim as i32).collect();
            dims.push(form.plane_cols(plane, cols) as i32);
            match stored_plane(form, plane, matrices) {
                Some(parts) => Ok(ops.upload_weight(&parts, &dims, of)?),
                None => {
                    let converted = convert_plane(form, plane, matrices)?;
                    Ok(ops.upload_weight(&[&converted], &dims, of)?)
                }
            }
        };
        let Some(packing) = form.packing() else {
            return Ok(Self::Plain(plane(Plane::Values)?));
        };
        Ok(Self::Packed(Packed {
            codes: plane(Plane::Codes)?,
            scales: plane(Plane::Scales)?,
            biases: if form.planes().contains(&Plane::Biases) {
                Some(plane(Plane::Biases)?)
            } else {
                None
            },
            packing,
        }))
    }

    /// The form for multiplication by activations.
    pub fn kernel(self, ops: &Ops) -> Result<Kernel, MlxError> {
        match self {
            Self::Plain(rows) => {
                let last = rows.shape().len() as i32 - 1;
                let mut order: Vec<i32> = (0..=last).collect();
                order.swap(last as usize - 1, last as usize);
                Ok(Kernel::Plain(ops.transpose(&rows, &order)?))
            }
            Self::Packed(packed) => Ok(Kernel::Packed(packed)),
        }
    }

    pub fn table(self) -> Table {
        match self {
            Self::Plain(rows) => Table::Plain(rows),
            Self::Packed(packed) => Table::Packed(packed),
        }
    }
}

/// The plane as stored in the file, in parts; `None` if it must be converted.
fn stored_plane<'a>(form: Form, plane: Plane, matrices: &[&'a Matrix]) -> Option<Vec<&'a [u8]>> {
    let mut parts = Vec::new();
    for matrix in matrices {
        let mut row = 0;
        while row < matrix.rows() {
            let (count, run) = matrix.encoded_run(row)?;
            parts.push(stored_run(form, plane, run)?);
            row += count;
        }
    }
    Some(parts)
}

fn stored_run(form: Form, plane: Plane, run: EncodedRow<'_>) -> Option<&[u8]> {
    let (bytes, dtype) = match (plane, run) {
        (Plane::Values, EncodedRow::Plain { dtype, bytes }) => (bytes, dtype),
        (Plane::Codes, EncodedRow::Mlx { codes, .. }) => return Some(codes),
        (Plane::Scales, EncodedRow::Mlx { scales, .. }) => match form {
            Form::SmallFloats(_) => return Some(scales.0),
            Form::Plain(_) | Form::Affine { .. } => scales,
        },
        (Plane::Biases, EncodedRow::Mlx { biases, .. }) => biases?,
        _ => return None,
    };
    (float_type(dtype) == Some(form.plane_type(plane))).then_some(bytes)
}

fn convert_plane(form: Form, plane: Plane, matrices: &[&Matrix]) -> Result<Vec<u8>, WeightsError> {
    let width =
        |matrix: &Matrix| form.plane_cols(plane, matrix.cols()) * form.plane_type(plane).bytes();
    let len = matrices.iter().map(|matrix| matrix.rows() * width(matrix));
    let mut bytes = vec![0; len.sum()];
    let mut rest = bytes.as_mut_slice();
    for matrix in matrices {
        let (own, others) = rest.split_at_mut(matrix.rows() * width(matrix));
        fill(form, plane, matrix, own)?;
        rest = others;
    }
    Ok(bytes)
}

/// With fewer bytes per thread, starting threads costs more than they save.
const MIN_THREAD_BYTES: usize = 1 << 18;

/// Converts a matrix's rows of the plane on all cores.
///
/// A shard for one of several devices would be a range of these rows, here and in [`stored_plane`].
fn fill(form: Form, plane: Plane, matrix: &Matrix, out: &mut [u8]) -> Result<(), WeightsError> {
    let width = (out.len() / matrix.rows().max(1)).max(1);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(out.len() / MIN_THREAD_BYTES).max(1);
    let share = matrix.rows().div_ceil(threads).max(1);
    let fill_share = |(index, out): (usize, &mut [u8])| {
        let mut values = vec![0.0; matrix.cols()];
        for (row, out) in (index * share..).zip(out.chunks_mut(width)) {
            let encoded = matrix.encoded_row(row);
            let missing = WeightsError::RowOutOfRange {
                row,
                rows: matrix.rows(),
            };
            write_row(form, plane, encoded.ok_or(missing)?, &mut values, out)?;
        }
        Ok(())
    };
    let mut shares = out.chunks_mut(share * width).enumerate();
    if threads == 1 {
        return shares.try_for_each(fill_share);
    }
    thread::scope(|scope| {
        let spawn = |share| scope.spawn(move || fill_share(share));
        let workers: Vec<_> = shares.map(spawn).collect();
        workers.into_iter().try_for_each(|worker| {
            let filled = worker.join();
            filled.unwrap_or_else(|panic| resume_unwind(panic))
        })
    })
}

/// Converts one row of the plane. `values` has room for the matrix's row.
fn write_row(
    form: Form,
    plane: Plane,
    row: EncodedRow,
    values: &mut [f32],
    out: &mut [u8],
) -> Result<(), WeightsError> {
    let of = form.plane_type(plane);
    let groups = form.plane_cols(Plane::Scales, values.len());
    match (plane, row) {
        (Plane::Values, row) => row.decode(values)?,
        (Plane::Codes, EncodedRow::Plain { dtype, bytes }) => {
            blocks::write_codes(dtype, bytes, out);
            return Ok(());
        }
        (
            Plane::Scales,
            EncodedRow::Plain {
                dtype: Dtype::Mxfp4,
                bytes,
            },
        ) => {
            for (out, exponent) in out.iter_mut().zip(blocks::exponents(bytes)) {
                *out = exponent;
            }
            return Ok(());
        }
        (_, EncodedRow::Plain { dtype, bytes }) => {
            for (value, (scale, bias)) in values.iter_mut().zip(blocks::factors(dtype, bytes)) {
                *value = if plane == Plane::Scales { scale } else { bias };
            }
        }
        (Plane::Scales, EncodedRow::Mlx { scales, .. }) => {
            decode_row(scales.1, scales.0, &mut values[..groups])?;
        }
        (
            Plane::Biases,
            EncodedRow::Mlx {
                biases: Some(biases),
                ..
            },
        ) => {
            decode_row(biases.1, biases.0, &mut values[..groups])?;
        }
        // No form of such rows has this plane.
        (_, EncodedRow::Mlx { .. } | EncodedRow::Fp8 { .. }) => {
            return Err(DecodeFault::Length {
                what: "plane of a row",
                expected: out.len(),
                found: 0,
            }
            .into());
        }
    }
    let count = out.len() / of.bytes();
    encode(&values[..count], of, out);
    Ok(())
}

/// The values in a float type.
pub fn encode(values: &[f32], of: Type, out: &mut [u8]) {
    match of {
        Type::F16 => each(values, out, |value| f16::from_f32(value).to_le_bytes()),
        Type::BF16 => each(values, out, |value| bf16::from_f32(value).to_le_bytes()),
        _ => each(values, out, f32::to_le_bytes),
    }
}

fn each<const N: usize>(values: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = encode(*value);
    }
}
