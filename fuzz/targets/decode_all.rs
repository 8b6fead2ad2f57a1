//! Checks every tensor that a reader returns.

use loquat_weights::decode::decode_row;
use loquat_weights::{DecodeFault, RawTensor};

/// Decodes every row. The work is bounded by the size of the file: tensors without data are
/// skipped, and all rows are within the data.
pub fn decode_all(tensors: &[RawTensor]) {
    for tensor in tensors.iter().filter(|tensor| !tensor.data.is_empty()) {
        let mut out = vec![0.0; tensor.cols()];
        for index in 0..tensor.rows() {
            let row = tensor.row(index).expect("every row is in the data");
            match decode_row(tensor.dtype, row, &mut out) {
                Ok(()) | Err(DecodeFault::Dtype { .. }) => {}
                Err(fault) => panic!("{}: {fault}", tensor.name),
            }
        }
    }
}
