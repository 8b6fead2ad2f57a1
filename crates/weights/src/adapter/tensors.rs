//! Tensors of adapters as decoded values.

use super::Factor;
use crate::{RawTensor, decode};

/// The values of a tensor; a fault names it.
pub(super) fn values(tensor: &RawTensor) -> Result<Vec<f32>, String> {
    let mut values = vec![0.0; tensor.rows() * tensor.cols()];
    for (row, out) in values.chunks_exact_mut(tensor.cols().max(1)).enumerate() {
        let bytes = tensor.row(row).unwrap_or_default();
        decode::decode_row(tensor.dtype, bytes, out)
            .map_err(|error| format!("`{}`: {error}", tensor.name))?;
    }
    if values.iter().all(|value| value.is_finite()) {
        Ok(values)
    } else {
        let name = &tensor.name;
        Err(format!("`{name}` has a value that is not a finite number"))
    }
}

/// A tensor of two dimensions, or each part of one of three.
pub(super) fn factors(tensor: &RawTensor) -> Result<Vec<Factor>, String> {
    let (count, rows, cols) = match *tensor.shape.as_slice() {
        [rows, cols] => (1, rows, cols),
        [count, rows, cols] => (count, rows, cols),
        _ => {
            let (name, shape) = (&tensor.name, &tensor.shape);
            return Err(format!(
                "`{name}` is {shape:?}, must have 2 or 3 dimensions"
            ));
        }
    };
    if count == 0 || rows == 0 || cols == 0 {
        return Err(format!("`{}` is empty: {:?}", tensor.name, tensor.shape));
    }
    let values = values(tensor)?;
    let parts = values.chunks_exact(rows * cols);
    // Each part has exactly as many values.
    Ok(parts
        .filter_map(|part| Factor::new(rows, cols, part.to_vec()))
        .collect())
}
