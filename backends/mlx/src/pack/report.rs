//! What a model's matrices will be on the device, said before they are uploaded.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use loquat_weights::{Matrix, Storage, Weights};

use super::form::{Form, float_type};
use crate::array::Type;

/// Matrices that the file has in one format and the device in one form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// In the file.
    pub format: String,
    /// On the device.
    pub kept: String,
    /// On the device.
    pub bytes: u64,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes as f64 / 1e6;
        write!(
            f,
            "{} matrices: {}, {megabytes:.1} MB",
            self.format, self.kept
        )
    }
}

/// The bytes that the device will hold of a role's matrices.
pub fn predict_bytes(stack: &[Matrix], dtype: Type) -> u64 {
    let form = Form::common(stack, dtype);
    let bytes = |matrix: &Matrix| form.row_bytes(matrix.cols()) as u64 * matrix.rows() as u64;
    stack.iter().map(bytes).sum()
}

/// The choice for each of the model's formats, largest first.
pub fn report(weights: &Weights, dtype: Type) -> Vec<Note> {
    let roles: BTreeSet<_> = weights.matrices().map(|(role, _)| role).collect();
    let mut sums: BTreeMap<(String, String), u64> = BTreeMap::new();
    for stack in roles.into_iter().filter_map(|role| weights.stack(role)) {
        let Some(first) = stack.first() else {
            continue;
        };
        let key = (first.format(), kept_as(first, Form::common(stack, dtype)));
        *sums.entry(key).or_default() += predict_bytes(stack, dtype);
    }
    let notes = sums.into_iter().map(|((format, kept), bytes)| Note {
        format,
        kept,
        bytes,
    });
    let mut notes: Vec<Note> = notes.collect();
    notes.sort_by_key(|note| std::cmp::Reverse(note.bytes));
    notes
}

fn kept_as(matrix: &Matrix, form: Form) -> String {
    let kept = name(form);
    match (matrix.storage(), form) {
        (Storage::Plain(tensor), Form::Plain(of)) if float_type(tensor.dtype) == Some(of) => {
            "as it is".to_owned()
        }
        (_, Form::Plain(_)) => format!("{kept}, decoded"),
        (Storage::Mlx { scales, biases, .. }, Form::Affine { scales: of, .. }) => {
            let mut factors = [Some(scales), biases.as_ref()].into_iter().flatten();
            if factors.all(|tensor| float_type(tensor.dtype) == Some(of)) {
                "as it is".to_owned()
            } else {
                format!("as it is, scales in {}", of.name())
            }
        }
        (Storage::Mlx { .. }, _) => "as it is".to_owned(),
        _ => format!("{kept}, repacked"),
    }
}

fn name(form: Form) -> String {
    match form {
        Form::Plain(of) => of.name().to_owned(),
        Form::Affine { bits, group, .. } => format!("affine {bits}-bit g{group}"),
        Form::SmallFloats(mode) => format!("{} g{}", mode.name(), mode.group()),
    }
}
