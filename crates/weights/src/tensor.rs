//! A tensor in its file's encoding.

use std::ops::Range;

use crate::{Blob, Dtype, WeightsError};

/// A named tensor, still in its file's encoding.
///
/// `shape` is row-major, outermost dimension first, whichever way the file
/// writes it. Readers guarantee that `data` is exactly as long as `shape` and
/// `dtype` require; it need not be aligned for `dtype`.
#[derive(Clone, Debug)]
pub struct RawTensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Blob,
}

/// A tensor's record in a file's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// Bytes of its data.
    pub fn bytes(&self) -> Result<usize, WeightsError> {
        byte_len(self.dtype, &self.shape).ok_or_else(|| WeightsError::TensorBytes {
            tensor: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes: 0,
        })
    }
}

impl RawTensor {
    /// The tensor without its data.
    pub fn info(&self) -> TensorInfo {
        TensorInfo {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
        }
    }

    /// A tensor whose bytes are checked against its type and shape.
    pub fn new(
        name: impl Into<String>,
        dtype: Dtype,
        shape: Vec<usize>,
        data: Blob,
    ) -> Result<RawTensor, WeightsError> {
        let tensor = RawTensor {
            name: name.into(),
            dtype,
            shape,
            data,
        };
        tensor.check_len()?;
        Ok(tensor)
    }

    /// Length of a row, the innermost dimension; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The product of all but the innermost dimension.
    pub fn rows(&self) -> usize {
        match self.shape.split_last() {
            Some((_, outer)) => outer.iter().product(),
            None => 1,
        }
    }

    /// The bytes of row `index`, or `None` past the last row.
    pub fn row(&self, index: usize) -> Option<&[u8]> {
        self.run(index, 1)
    }

    /// The bytes of `count` rows from `index`, or `None` if some do not exist.
    pub fn run(&self, index: usize, count: usize) -> Option<&[u8]> {
        self.data.get(self.byte_range(index, count)?)
    }

    /// Copies `count` rows from `index` from the file, if it is possible.
    pub(crate) fn read_file(&self, index: usize, count: usize, out: &mut [u8]) -> bool {
        let range = self.byte_range(index, count);
        range.is_some_and(|range| self.data.read_file(range, out))
    }

    /// [Releases](Blob::release) `count` rows from `index`, if they exist.
    pub fn release(&self, index: usize, count: usize) {
        let range = self.byte_range(index, count);
        if let Some(rows) = range.and_then(|range| self.data.slice(range)) {
            rows.release();
        }
    }

    fn byte_range(&self, index: usize, count: usize) -> Option<Range<usize>> {
        if index.checked_add(count)? > self.rows() {
            return None;
        }
        let len = self.dtype.row_bytes(self.cols())?;
        let start = index.checked_mul(len)?;
        Some(start..start.checked_add(len.checked_mul(count)?)?)
    }

    pub(crate) fn check_len(&self) -> Result<(), WeightsError> {
        if byte_len(self.dtype, &self.shape) == Some(self.data.len()) {
            return Ok(());
        }
        Err(WeightsError::TensorBytes {
            tensor: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes: self.data.len(),
        })
    }
}

/// Bytes of a whole tensor, or `None` if its rows are not whole blocks or a
/// product overflows.
pub(crate) fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let (cols, outer) = match shape.split_last() {
        Some((&cols, outer)) => (cols, outer),
        None => (1, &[][..]),
    };
    // Zero must not hide an overflow: `rows()` multiplies the same numbers unchecked.
    let rows = outer
        .iter()
        .try_fold(1usize, |n, &dim| n.checked_mul(dim))?;
    dtype.row_bytes(cols)?.checked_mul(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_len_is_checked() {
        let table: [(Dtype, &[usize], Option<usize>); 8] = [
            (Dtype::F16, &[], Some(2)),
            (Dtype::F16, &[2, 3], Some(12)),
            (Dtype::F16, &[2, 0], Some(0)),
            (Dtype::Q4_0, &[3, 32], Some(54)),
            (Dtype::Q4_0, &[32, 3], None),
            (Dtype::U8, &[1 << 32, 1 << 32, 1], None),
            (Dtype::F32, &[1 << 62, 2], None),
            (Dtype::U8, &[1 << 32, 1 << 32, 0], None),
        ];
        for (dtype, shape, expected) in table {
            assert_eq!(byte_len(dtype, shape), expected, "{dtype} {shape:?}");
        }
    }

    #[test]
    fn rows_are_the_innermost_dimension() {
        let data = Blob::from_vec((0..12).collect());
        let tensor = RawTensor::new("t", Dtype::U8, vec![2, 2, 3], data.clone()).unwrap();
        assert_eq!((tensor.rows(), tensor.cols()), (4, 3));
        assert_eq!(tensor.row(3), Some(&[9, 10, 11][..]));
        assert_eq!(tensor.row(4), None);
        assert_eq!(tensor.run(1, 2), Some(&[3, 4, 5, 6, 7, 8][..]));
        assert_eq!((tensor.run(3, 2), tensor.run(1, usize::MAX)), (None, None));
        let error = RawTensor::new("t", Dtype::U8, vec![11], data).unwrap_err();
        assert!(matches!(error, WeightsError::TensorBytes { bytes: 12, .. }));
    }

    #[test]
    fn empty_tensor_has_no_rows() {
        let tensor = RawTensor::new("t", Dtype::F32, vec![0, 4], Blob::from_vec(vec![])).unwrap();
        assert_eq!(tensor.row(0), None);
    }
}
