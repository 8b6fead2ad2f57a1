//! How a model's matrices will be stored on the device, before they are uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use loquat_spec::Role;
use loquat_weights::{Matrix, Storage, Weights};

use super::form::{Form, float_type};
use crate::array::Type;

/// Matrices of one file format that the device stores in one form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MatrixNote {
    /// In the file.
    pub format: String,
    /// On the device.
    pub stored: String,
    /// On the device.
    pub bytes: u64,
}

impl fmt::Display for MatrixNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes as f64 / 1e6;
        write!(
            f,
            "{} matrices: {}, {megabytes:.1} MB",
            self.format, self.stored
        )
    }
}

/// Bytes of a role's matrices on the device.
pub fn predict_bytes(stack: &[Matrix], dtype: Type) -> u64 {
    let form = Form::common(stack, dtype);
    let bytes = |matrix: &Matrix| form.row_bytes(matrix.cols()) as u64 * matrix.rows() as u64;
    stack.iter().map(bytes).sum()
}

/// One note per format of the model's matrices with these roles, largest first.
pub fn report(
    weights: &Weights,
    dtype: Type,
    is_loaded: impl Fn(&Role) -> bool,
) -> Vec<MatrixNote> {
    let roles = weights.matrices().map(|(role, _)| role).filter(is_loaded);
    let roles: BTreeSet<_> = roles.collect();
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for stack in roles.into_iter().filter_map(|role| weights.stack(role)) {
        let Some(first) = stack.first() else {
            continue;
        };
        let key = (first.format(), stored_as(first, Form::common(stack, dtype)));
        *sums.entry(key).or_default() += predict_bytes(stack, dtype);
    }
    let notes = sums
        .into_iter()
        .map(|((format, stored), bytes)| MatrixNote {
            format,
            stored,
            bytes,
        });
    let mut notes: Vec<MatrixNote> = notes.collect();
    notes.sort_by_key(|note| std::cmp::Reverse(note.bytes));
    notes
}

fn stored_as(matrix: &Matrix, form: Form) -> String {
    let stored = name(form);
    match (matrix.storage(), form) {
        (Storage::Plain(tensor), Form::Plain(of)) if float_type(tensor.dtype) == Some(of) => {
            "unchanged".to_owned()
        }
        (_, Form::Plain(_)) => format!("{stored}, decoded"),
        (Storage::Mlx { scales, biases, .. }, Form::Affine { scales: of, .. }) => {
            let mut factors = [Some(scales), biases.as_ref()].into_iter().flatten();
            if factors.all(|tensor| float_type(tensor.dtype) == Some(of)) {
                "unchanged".to_owned()
            } else {
                format!("unchanged, scales in {}", of.name())
            }
        }
        (Storage::Mlx { .. }, _) => "unchanged".to_owned(),
        _ => format!("{stored}, repacked"),
    }
}

fn name(form: Form) -> String {
    match form {
        Form::Plain(of) => of.name().to_owned(),
        Form::Affine { bits, group, .. } => format!("affine {bits}-bit g{group}"),
        Form::SmallFloats(mode) => format!("{} g{}", mode.name(), mode.group()),
    }
}
