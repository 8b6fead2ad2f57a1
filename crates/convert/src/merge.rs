//! Adapters that are folded into the weights, row by row.

use std::collections::HashMap;
use std::path::Path;

use loquat_spec::{Role, Transform};
use loquat_weights::{
    AdapterWeights, Checkpoint, ColumnLengths, LengthsOf, LowRank, Matrix, WeightsError,
};

use crate::ConvertError;

/// An adapter to fold into the model.
#[derive(Clone, Copy, Debug)]
pub struct MergedAdapter<'a> {
    /// As for [`AdapterWeights::open`].
    pub path: &'a Path,
    /// Multiplies the adapter's own scale; not 0.
    pub scale: f32,
}

/// What is folded into the model.
#[derive(Default)]
pub(crate) struct Merge {
    /// The low-rank changes of each matrix, with the scales that requests chose.
    changes: HashMap<(Role, usize), Vec<MergedChange>>,
    matrices: HashMap<Role, Vec<Matrix>>,
    vectors: HashMap<Role, Vec<f32>>,
    /// What people should know of the adapters.
    pub notes: Vec<String>,
}

/// A low-rank change of a matrix.
struct MergedChange {
    change: LowRank,
    /// The adapter's and the requested one.
    scale: f32,
    /// What the columns are multiplied by, of an embedding with magnitudes.
    columns: Option<Vec<f32>>,
}

/// A matrix as the result is to have it.
#[derive(Clone, Copy)]
pub(crate) struct MergedMatrix<'a> {
    pub matrix: &'a Matrix,
    changes: &'a [MergedChange],
}

impl Merge {
    pub fn open(
        checkpoint: &Checkpoint,
        adapters: &[MergedAdapter<'_>],
        model: Option<&str>,
    ) -> Result<Self, ConvertError> {
        let base = checkpoint.adapter_base();
        let mut merge = Self::default();
        for adapter in adapters {
            let weights = AdapterWeights::open(adapter.path, &base)?;
            if !adapter.scale.is_finite() || adapter.scale == 0.0 {
                return Err(ConvertError::AdapterScale {
                    adapter: weights.info().name.clone(),
                    found: adapter.scale,
                });
            }
            let warning = model.and_then(|model| weights.info().base_warning(model));
            merge.notes.extend(warning);
            if checkpoint.spec.head.tied {
                check_tied(&weights)?;
            }
            merge.add(checkpoint, &weights, adapter.scale)?;
        }
        Ok(merge)
    }

    fn add(
        &mut self,
        checkpoint: &Checkpoint,
        weights: &AdapterWeights,
        scale: f32,
    ) -> Result<(), ConvertError> {
        for (role, member, change) in weights.low_ranks() {
            let scale = change.scale * scale;
            let columns = match role {
                Role::Embedding => column_factors(checkpoint, change, scale)?,
                _ => None,
            };
            let changes = self.changes.entry((role, member)).or_default();
            changes.push(MergedChange {
                change: change.clone(),
                scale,
                columns,
            });
        }
        let replaced = weights.replaced();
        for role in replaced.roles() {
            let before = match (replaced.stack(role), replaced.vector(role)) {
                (Some(stack), _) => self.matrices.insert(role, stack.to_vec()).is_some(),
                (_, Some(values)) => self.vectors.insert(role, values.to_vec()).is_some(),
                (None, None) => false,
            };
            if before {
                return Err(ConvertError::AdapterConflict { role });
            }
        }
        Ok(())
    }

    /// The role's matrices instead of the source's.
    pub fn stack(&self, role: Role) -> Option<&[Matrix]> {
        self.matrices.get(&role).map(Vec::as_slice)
    }

    /// The role's vector instead of the source's, as backends see it.
    pub fn vector(&self, role: Role) -> Option<(Vec<f32>, Transform)> {
        let values = self.vectors.get(&role)?;
        Some((values.clone(), Transform::None))
    }

    pub fn matrix<'a>(&'a self, role: Role, member: usize, matrix: &'a Matrix) -> MergedMatrix<'a> {
        let changes = self.changes.get(&(role, member));
        MergedMatrix {
            matrix,
            changes: changes.map_or(&[], Vec::as_slice),
        }
    }
}

/// What an embedding's columns are multiplied by; `None` if it has no magnitudes of columns.
fn column_factors(
    checkpoint: &Checkpoint,
    change: &LowRank,
    scale: f32,
) -> Result<Option<Vec<f32>>, ConvertError> {
    if change.magnitude.is_none() || change.lengths_of == LengthsOf::Rows {
        return Ok(None);
    }
    let weights = checkpoint.bind()?;
    // Binding has found every role.
    let Some(table) = weights.matrix(Role::Embedding) else {
        return Ok(None);
    };
    let lengths = ColumnLengths::compute(change, |row, out| table.decode_row(row, out))?;
    let lengths = lengths.ok_or(ConvertError::AdapterLengths {
        role: Role::Embedding,
    })?;
    Ok(Some(lengths.factors(scale).collect()))
}

/// A table that is embedding and head at once can only change as both.
fn check_tied(weights: &AdapterWeights) -> Result<(), ConvertError> {
    let factors = |role| weights.low_rank(role)?.first()?.as_ref();
    let (embedding, head) = (factors(Role::Embedding), factors(Role::Head));
    let is_same = match (embedding, head) {
        (None, None) => true,
        (Some(embedding), Some(head)) => {
            let plain = embedding.magnitude.is_none() && head.magnitude.is_none();
            plain && embedding.a == head.a && embedding.b == head.b
        }
        _ => false,
    };
    let replaced = weights.replaced();
    if is_same
        && replaced.matrix(Role::Embedding).is_none()
        && replaced.matrix(Role::Head).is_none()
    {
        return Ok(());
    }
    Err(ConvertError::TiedAdapter {
        adapter: weights.info().name.clone(),
    })
}

impl MergedMatrix<'_> {
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        self.matrix.decode_row(row, out)?;
        if self.changes.is_empty() {
            return Ok(());
        }
        let base = out.to_vec();
        let mut own = vec![0.0f32; base.len()];
        for merged in self.changes {
            let MergedChange {
                change,
                scale,
                columns,
            } = merged;
            own.fill(0.0);
            for (k, factor) in change.b.row(row).iter().enumerate() {
                for (own, value) in own.iter_mut().zip(change.a.row(k)) {
                    *own += scale * factor * value;
                }
            }
            if let Some(columns) = columns {
                let values = out.iter_mut().zip(&base).zip(&own);
                for (((out, base), own), factor) in values.zip(columns) {
                    *out += (base + own) * factor - base;
                }
                continue;
            }
            let length = change.magnitude.as_ref().map(|magnitude| {
                let sums = base.iter().zip(&own).map(|(base, own)| base + own);
                let square: f64 = sums.map(|sum| f64::from(sum).powi(2)).sum();
                magnitude[row] / (square as f32).max(f32::MIN_POSITIVE).sqrt()
            });
            for ((out, base), own) in out.iter_mut().zip(&base).zip(&own) {
                match length {
                    // The sum of several adapters is that of their differences from the base.
                    Some(factor) => *out += (base + own) * factor - base,
                    None => *out += own,
                }
            }
        }
        Ok(())
    }
}
