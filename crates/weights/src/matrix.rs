//! A weight matrix bound to its role: rows in the spec's order, still in the file's encoding.

use std::ops::Range;

use loquat_spec::RowMap;

use crate::decode::{self, MlxMode};
use crate::{Blob, Dtype, RawTensor, WeightsError};

/// The matrix of one role. Row maps express the slices and row orders of formats, so nothing is
/// copied until a backend packs it; only transposed tensors are copied when bound.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    storage: Storage,
    map: RowMap,
    copied: bool,
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
    /// 8-bit floats with a scale for each block of `block_rows × block_cols`.
    Fp8 {
        codes: RawTensor,
        scales: RawTensor,
        block_rows: usize,
        block_cols: usize,
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
    Fp8 {
        codes: &'a [u8],
        /// One for each `block_cols` values.
        scales: (&'a [u8], Dtype),
        block_cols: usize,
    },
}

impl Matrix {
    /// The caller has checked that the storage holds every row that `map` can name.
    pub(crate) fn new(rows: usize, cols: usize, storage: Storage, map: RowMap) -> Self {
        Self {
            rows,
            cols,
            storage,
            map,
            copied: false,
        }
    }

    /// Whether its values are a copy in memory, not a view of the file.
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// Bytes of a [copy](Self::copied).
    pub fn copied_bytes(&self) -> usize {
        self.rows * self.cols * self.copied_dtype().block_bytes()
    }

    /// Values of plain types stay as they are.
    fn copied_dtype(&self) -> Dtype {
        match &self.storage {
            Storage::Plain(tensor) if tensor.dtype.block_len() == 1 => tensor.dtype,
            _ => Dtype::F32,
        }
    }

    /// The matrix in memory, without its file.
    pub fn copied(&self) -> Result<Self, WeightsError> {
        let dtype = self.copied_dtype();
        let mut bytes = Vec::with_capacity(self.copied_bytes());
        let mut values = vec![0.0; self.cols];
        for row in 0..self.rows {
            match self.encoded_row(row) {
                Some(EncodedRow::Plain {
                    dtype: own,
                    bytes: row,
                }) if own == dtype => {
                    bytes.extend_from_slice(row);
                }
                _ => {
                    self.decode_row(row, &mut values)?;
                    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                }
            }
        }
        let shape = vec![self.rows, self.cols];
        let tensor = RawTensor::new("copy", dtype, shape, Blob::from_vec(bytes))?;
        let in_order = RowMap {
            first: 0,
            block: self.rows.max(1),
            stride: self.rows,
        };
        Ok(Self {
            copied: true,
            ..Self::new(self.rows, self.cols, Storage::Plain(tensor), in_order)
        })
    }

    /// Columns of this matrix as the rows of another, copied: its row `r` is column
    /// `map.file_row(r)`, which the caller has checked.
    pub(crate) fn columns(&self, count: usize, map: RowMap) -> Result<Self, WeightsError> {
        let (dtype, bytes) = match &self.storage {
            Storage::Plain(tensor) if tensor.dtype.block_len() == 1 => {
                let width = tensor.dtype.block_bytes();
                (tensor.dtype, self.column_bytes(count, map, width)?)
            }
            _ => (Dtype::F32, self.column_values(count, map)?),
        };
        let shape = vec![count, self.rows];
        let tensor = RawTensor::new("columns", dtype, shape, Blob::from_vec(bytes))?;
        let in_order = RowMap {
            first: 0,
            block: count.max(1),
            stride: count,
        };
        let storage = Storage::Plain(tensor);
        Ok(Self {
            copied: true,
            ..Self::new(count, self.rows, storage, in_order)
        })
    }

    fn column_bytes(
        &self,
        count: usize,
        map: RowMap,
        width: usize,
    ) -> Result<Vec<u8>, WeightsError> {
        let mut out = vec![0; count * self.rows * width];
        for row in 0..self.rows {
            let Some(EncodedRow::Plain { bytes, .. }) = self.encoded_row(row) else {
                return Err(self.row_out_of_range(row));
            };
            for column in 0..count {
                let (from, to) = (
                    map.file_row(column) * width,
                    (column * self.rows + row) * width,
                );
                out[to..to + width].copy_from_slice(&bytes[from..from + width]);
            }
        }
        Ok(out)
    }

    fn column_values(&self, count: usize, map: RowMap) -> Result<Vec<u8>, WeightsError> {
        let mut out = vec![0; count * self.rows * 4];
        let mut values = vec![0.0; self.cols];
        for row in 0..self.rows {
            self.decode_row(row, &mut values)?;
            for column in 0..count {
                let to = (column * self.rows + row) * 4;
                out[to..to + 4].copy_from_slice(&values[map.file_row(column)].to_le_bytes());
            }
        }
        Ok(out)
    }

    fn row_out_of_range(&self, row: usize) -> WeightsError {
        WeightsError::RowOutOfRange {
            row,
            rows: self.rows,
        }
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

    /// Every tensor of the storage.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = &RawTensor> {
        let (first, rest) = match &self.storage {
            Storage::Plain(tensor) => (tensor, [None, None]),
            Storage::Mlx {
                codes,
                scales,
                biases,
                ..
            } => (codes, [Some(scales), biases.as_ref()]),
            Storage::Fp8 { codes, scales, .. } => (codes, [Some(scales), None]),
        };
        std::iter::once(first).chain(rest.into_iter().flatten())
    }

    /// The storage format, for display: `Q4_K`, `affine 4-bit g64`.
    pub fn format(&self) -> String {
        match &self.storage {
            Storage::Plain(tensor) => tensor.dtype.name().to_owned(),
            Storage::Mlx { mode, .. } => {
                format!("{} {}-bit g{}", mode.name(), mode.bits(), mode.group())
            }
            Storage::Fp8 {
                codes, block_cols, ..
            } => format!("{} g{block_cols}", codes.dtype.name()),
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
            Storage::Fp8 {
                codes,
                scales,
                block_rows,
                ..
            } => per_row(codes) + per_row(scales) / *block_rows as u64,
        }
    }

    /// The bytes of row `row`, or `None` past the last.
    pub fn encoded_row(&self, row: usize) -> Option<EncodedRow<'_>> {
        let in_range = row < self.rows;
        in_range.then(|| self.encoded(row, 1)).flatten()
    }

    /// Row `row` and the following rows that are contiguous in the file, as one row, and their
    /// count; `None` past the last.
    pub fn encoded_run(&self, row: usize) -> Option<(usize, EncodedRow<'_>)> {
        let count = self.contiguous(row)?;
        Some((count, self.encoded(row, count)?))
    }

    /// The number of rows from `row` on that are contiguous in the file; `None` past the last.
    fn contiguous(&self, row: usize) -> Option<usize> {
        let left = self.rows.checked_sub(row).filter(|left| *left > 0)?;
        Some(match self.storage {
            // Rows of other blocks have other scales.
            Storage::Fp8 { .. } => 1,
            _ if self.map.block == self.map.stride => left,
            _ => left.min(self.map.block - row % self.map.block),
        })
    }

    /// Copies rows of a single tensor from their file into `buffer`, without mapping their pages,
    /// and returns their type. `None` if the rows have parts in several tensors, are not in a file,
    /// or cannot be read: use [`Matrix::encoded_row`].
    pub fn read_rows(&self, rows: Range<usize>, buffer: &mut Vec<u8>) -> Option<Dtype> {
        let Storage::Plain(tensor) = &self.storage else {
            return None;
        };
        let row_bytes = tensor.dtype.row_bytes(tensor.cols())?;
        let len = rows.len().checked_mul(row_bytes)?;
        // Content does not matter: every byte is overwritten.
        buffer.resize(len, 0);
        let mut rest = buffer.as_mut_slice();
        let mut row = rows.start;
        while row < rows.end {
            let count = self.contiguous(row)?.min(rows.end - row);
            let (run, after) = rest.split_at_mut(count * row_bytes);
            if !tensor.read_file(self.map.file_row(row), count, run) {
                return None;
            }
            (rest, row) = (after, row + count);
        }
        Some(tensor.dtype)
    }

    fn encoded(&self, row: usize, count: usize) -> Option<EncodedRow<'_>> {
        let row = self.map.file_row(row);
        Some(match &self.storage {
            Storage::Plain(tensor) => EncodedRow::Plain {
                dtype: tensor.dtype,
                bytes: tensor.run(row, count)?,
            },
            Storage::Mlx {
                mode,
                codes,
                scales,
                biases,
            } => EncodedRow::Mlx {
                mode: *mode,
                codes: codes.run(row, count)?,
                scales: (scales.run(row, count)?, scales.dtype),
                biases: match biases {
                    Some(biases) => Some((biases.run(row, count)?, biases.dtype)),
                    None => None,
                },
            },
            Storage::Fp8 {
                codes,
                scales,
                block_rows,
                block_cols,
            } => EncodedRow::Fp8 {
                codes: codes.run(row, count)?,
                scales: (scales.row(row / block_rows)?, scales.dtype),
                block_cols: *block_cols,
            },
        })
    }

    /// Releases the memory of these rows' pages, once a backend has repacked them; the next read
    /// maps them again. Rows of other matrices between them in the file are released too.
    pub fn release(&self, rows: Range<usize>) {
        let rows = rows.start..rows.end.min(self.rows);
        if rows.is_empty() {
            return;
        }
        let first = self.map.file_row(rows.start);
        let count = (self.map.file_row(rows.end - 1) + 1).saturating_sub(first);
        match &self.storage {
            Storage::Plain(tensor) => tensor.release(first, count),
            Storage::Mlx {
                codes,
                scales,
                biases,
                ..
            } => {
                for tensor in [Some(codes), Some(scales), biases.as_ref()] {
                    tensor
                        .into_iter()
                        .for_each(|tensor| tensor.release(first, count));
                }
            }
            Storage::Fp8 {
                codes,
                scales,
                block_rows,
                ..
            } => {
                codes.release(first, count);
                let blocks = first / block_rows..(first + count).div_ceil(*block_rows);
                scales.release(blocks.start, blocks.len());
            }
        }
    }

    /// Row `row` as exact `f32` values. `out` must be `cols` long.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        match self.encoded_row(row) {
            Some(encoded) => encoded.decode(out),
            None => Err(self.row_out_of_range(row)),
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
            EncodedRow::Fp8 {
                codes,
                scales: (scales, dtype),
                block_cols,
            } => decode::decode_fp8_row(codes, scales, dtype, block_cols, out)?,
        }
        Ok(())
    }
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
    fn rows_follow_the_row_map() {
        // The second of two alternating parts of two rows each.
        let map = RowMap {
            first: 2,
            block: 2,
            stride: 4,
        };
        let matrix = Matrix::new(4, 1, numbered(8), map);
        assert_eq!(read(&matrix), [2.0, 3.0, 6.0, 7.0]);
        assert!(matrix.encoded_row(4).is_none());
        let run = |row| matrix.encoded_run(row).map(|(count, _)| count);
        let runs: Vec<_> = (0..5).map(run).collect();
        assert_eq!(runs, [Some(2), Some(1), Some(2), Some(1), None]);
        assert!(matrix.decode_row(4, &mut [0.0]).is_err());
        assert_eq!(matrix.bytes(), 16);
    }

    #[test]
    fn columns_become_rows() {
        let bytes: Vec<u8> = (0..6).flat_map(|n| (n as f32).to_le_bytes()).collect();
        let tensor = RawTensor::new("t", Dtype::F32, vec![2, 3], Blob::from_vec(bytes)).unwrap();
        let map = |block| RowMap {
            first: 0,
            block,
            stride: 2,
        };
        let matrix = Matrix::new(2, 3, Storage::Plain(tensor), map(2));
        // Every second column, then all columns.
        let cases = [
            (2, map(1), vec![[0.0, 3.0], [2.0, 5.0]]),
            (3, map(3), vec![[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]),
        ];
        for (count, map, expected) in cases {
            let turned = matrix.columns(count, map).unwrap();
            assert_eq!((turned.rows(), turned.cols()), (count, 2));
            assert!(turned.is_copied() && !matrix.is_copied());
            for (index, expected) in expected.iter().enumerate() {
                let mut row = [0.0; 2];
                turned.decode_row(index, &mut row).unwrap();
                assert_eq!(&row, expected);
            }
        }
    }
}
