//! A weight matrix bound to its role: rows in the spec's order, still in the file's encoding.

use crate::decode::{self, MlxMode};
use crate::{Dtype, RawTensor, WeightsError};

/// One role's matrix. Reordering and slicing that formats need are row maps, so nothing is
/// copied until a backend packs it.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    storage: Storage,
    /// The role's first row in the file's tensor.
    first_row: usize,
    /// Rows of one head, where the file interleaves its halves.
    interleaved_head: Option<usize>,
}

#[derive(Clone, Debug)]
pub enum Storage {
    Plain(RawTensor),
    Mlx {
        mode: MlxMode,
        codes: RawTensor,
        scales: RawTensor,
        biases: Option<RawTensor>,
    },
}

/// One row's bytes, for backends that repack.
#[derive(Clone, Copy, Debug)]
pub enum EncodedRow<'a> {
    Plain {
        dtype: Dtype,
        bytes: &'a [u8],
    },
    Mlx {
        mode: MlxMode,
        codes: &'a [u8],
        scales: (&'a [u8], Dtype),
        biases: Option<(&'a [u8], Dtype)>,
    },
}

impl Matrix {
    /// The caller has checked that the storage holds rows `first_row..first_row + rows`.
    pub(crate) fn new(rows: usize, cols: usize, storage: Storage, first_row: usize) -> Self {
        Self {
            rows,
            cols,
            storage,
            first_row,
            interleaved_head: None,
        }
    }

    /// Says that the file interleaves the two halves of each of `heads` heads.
    pub(crate) fn interleaved(mut self, heads: usize) -> Self {
        self.interleaved_head = Some(self.rows / heads);
        self
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// How the values are stored, for people: `Q4_K`, `affine 4-bit g64`.
    pub fn format(&self) -> String {
        match &self.storage {
            Storage::Plain(tensor) => tensor.dtype.name().to_owned(),
            Storage::Mlx { mode, .. } => {
                format!("{} {}-bit g{}", mode.name(), mode.bits(), mode.group())
            }
        }
    }

    /// Bytes this role's rows take in the file.
    pub fn bytes(&self) -> u64 {
        let per_row = |tensor: &RawTensor| {
            let rows = tensor.rows().max(1);
            (tensor.data.len() / rows * self.rows) as u64
        };
        match &self.storage {
            Storage::Plain(tensor) => per_row(tensor),
            Storage::Mlx {
                codes,
                scales,
                biases,
                ..
            } => per_row(codes) + per_row(scales) + biases.as_ref().map_or(0, per_row),
        }
    }

    /// The bytes of row `row`, or `None` past the last.
    pub fn encoded_row(&self, row: usize) -> Option<EncodedRow<'_>> {
        if row >= self.rows {
            return None;
        }
        let row = self.first_row + file_row(row, self.interleaved_head);
        Some(match &self.storage {
            Storage::Plain(tensor) => EncodedRow::Plain {
                dtype: tensor.dtype,
                bytes: tensor.row(row)?,
            },
            Storage::Mlx {
                mode,
                codes,
                scales,
                biases,
            } => EncodedRow::Mlx {
                mode: *mode,
                codes: codes.row(row)?,
                scales: (scales.row(row)?, scales.dtype),
                biases: match biases {
                    Some(biases) => Some((biases.row(row)?, biases.dtype)),
                    None => None,
                },
            },
        })
    }

    /// Row `row` as exact `f32` values. `out` must be `cols` long.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        match self.encoded_row(row) {
            Some(encoded) => encoded.decode(out),
            None => Err(WeightsError::RowOutOfRange {
                row,
                rows: self.rows,
            }),
        }
    }
}

impl EncodedRow<'_> {
    pub fn decode(&self, out: &mut [f32]) -> Result<(), WeightsError> {
        match *self {
            EncodedRow::Plain { dtype, bytes } => decode::decode_row(dtype, bytes, out)?,
            EncodedRow::Mlx {
                mode,
                codes,
                scales: (scales, scales_dtype),
                biases,
            } => decode::decode_mlx_row(mode, codes, scales, scales_dtype, biases, out)?,
        }
        Ok(())
    }
}

/// Where the file keeps our `row`: value `j` of half `p` of a head stands at `2j + p` there.
pub(crate) fn file_row(row: usize, interleaved_head: Option<usize>) -> usize {
    let Some(head) = interleaved_head else {
        return row;
    };
    let (start, within) = (row / head * head, row % head);
    let (half, j) = (within / (head / 2), within % (head / 2));
    start + 2 * j + half
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blob;

    fn numbered(rows: usize) -> Storage {
        let bytes = (0..rows)
            .flat_map(|row| (row as f32).to_le_bytes())
            .collect();
        let tensor = RawTensor::new("t", Dtype::F32, vec![rows, 1], Blob::from_vec(bytes));
        Storage::Plain(tensor.unwrap())
    }

    fn read(matrix: &Matrix) -> Vec<f32> {
        let mut value = [0.0];
        (0..matrix.rows())
            .map(|row| {
                matrix.decode_row(row, &mut value).unwrap();
                value[0]
            })
            .collect()
    }

    #[test]
    fn interleaved_rows_come_back_in_halves() {
        let matrix = Matrix::new(8, 1, numbered(8), 0).interleaved(2);
        assert_eq!(read(&matrix), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }

    #[test]
    fn fused_rows_start_where_the_role_does() {
        let matrix = Matrix::new(2, 1, numbered(8), 4);
        assert_eq!(read(&matrix), [4.0, 5.0]);
        assert!(matrix.encoded_row(2).is_none());
        assert!(matrix.decode_row(2, &mut [0.0]).is_err());
        assert_eq!(matrix.bytes(), 8);
    }
}
