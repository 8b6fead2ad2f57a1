//! Bound values for comparisons.

use loquat_weights::Weights;

/// Every bound value, by role.
pub fn values(weights: &Weights) -> Vec<(String, Vec<u32>)> {
    let mut values: Vec<_> = weights
        .matrices()
        .map(|(role, matrix)| {
            let mut all = vec![0.0; matrix.rows() * matrix.cols()];
            for (row, out) in all.chunks_mut(matrix.cols()).enumerate() {
                matrix.decode_row(row, out).unwrap();
            }
            (
                role.to_string(),
                all.into_iter().map(f32::to_bits).collect(),
            )
        })
        .collect();
    values.extend(weights.vectors().map(|(role, vector)| {
        let bits = vector.iter().map(|value| value.to_bits()).collect();
        (role.to_string(), bits)
    }));
    values
}
