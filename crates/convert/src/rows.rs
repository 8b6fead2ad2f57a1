//! A target tensor's rows, read from the source.

use std::ops::Range;

use loquat_spec::{RopeOrder, RowMap};
use loquat_weights::WeightsError;

use crate::merge::MergedMatrix;

/// Matrices of one role inside a tensor that may hold several roles' rows.
pub(crate) struct Part<'a> {
    /// One for each member of the tensor.
    pub stack: Vec<MergedMatrix<'a>>,
    /// Maps row `r` of a member to the member's rows of the tensor.
    pub map: RowMap,
    /// The tensor's rows are this role's columns.
    pub turned: bool,
    pub order: Option<RopeOrder>,
}

impl Part<'_> {
    /// Rows and columns of a member in the tensor.
    fn shape(&self) -> (usize, usize) {
        let (rows, cols) = self.stack.first().map_or((0, 0), |merged| {
            (merged.matrix.rows(), merged.matrix.cols())
        });
        if self.turned {
            (cols, rows)
        } else {
            (rows, cols)
        }
    }

    /// The role's row that is row `local` of a member, if it is this role's.
    fn role_row(&self, local: usize) -> Option<usize> {
        let RowMap {
            first,
            block,
            stride,
        } = self.map;
        let offset = local.checked_sub(first)?;
        let (turn, at) = (offset / stride.max(1), offset % stride.max(1));
        let row = turn * block + at;
        (at < block && row < self.shape().0).then_some(row)
    }
}

/// The rows of one tensor.
pub(crate) struct Rows<'a> {
    pub parts: Vec<Part<'a>>,
    /// Rows of each member.
    pub total: usize,
    pub members: usize,
    /// The tensor is transposed: its rows are the parts' columns.
    pub transposed: bool,
}

/// Reads the rows; holds a copy of transposed parts.
pub(crate) struct Reader<'a> {
    rows: &'a Rows<'a>,
    /// The members' values of each transposed part, or all values of a transposed tensor.
    turned: Vec<Vec<Vec<f32>>>,
}

impl Rows<'_> {
    pub fn count(&self) -> usize {
        if self.transposed {
            self.members * self.inner_cols()
        } else {
            self.members * self.total
        }
    }

    pub fn cols(&self) -> usize {
        if self.transposed {
            self.total
        } else {
            self.inner_cols()
        }
    }

    fn inner_cols(&self) -> usize {
        self.parts.first().map_or(0, |part| part.shape().1)
    }

    pub fn reader(&self) -> Result<Reader<'_>, WeightsError> {
        let mut turned = Vec::new();
        for part in &self.parts {
            let members = if part.turned {
                part.stack.iter().map(columns).collect::<Result<_, _>>()?
            } else {
                Vec::new()
            };
            turned.push(members);
        }
        let mut reader = Reader { rows: self, turned };
        if self.transposed {
            reader.turned = vec![reader.transposed()?];
        }
        Ok(reader)
    }

    /// Releases the memory of these rows' pages.
    pub fn release(&self, rows: Range<usize>) {
        if self.transposed {
            return self.release_all();
        }
        for part in self.parts.iter().filter(|part| !part.turned) {
            for (member, merged) in part.stack.iter().enumerate() {
                let start = member * self.total;
                let own = rows.start.max(start)..rows.end.min(start + self.total);
                let mut read = own.filter_map(|row| part.role_row(row - start));
                if let Some(first) = read.next() {
                    // Reordering moves rows within their head.
                    let slack = part.order.map_or(0, |order| order.head_dim);
                    let last = read.next_back().unwrap_or(first);
                    let rows = first.saturating_sub(slack)..last + slack + 1;
                    merged.matrix.release(rows);
                }
            }
        }
    }

    /// Releases all rows.
    pub fn release_all(&self) {
        for merged in self.parts.iter().flat_map(|part| &part.stack) {
            merged.matrix.release(0..merged.matrix.rows());
        }
    }
}

impl Reader<'_> {
    /// Row `row` of the tensor.
    pub fn read(&self, row: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        if self.rows.transposed {
            let cols = self.rows.cols();
            let (member, at) = (row / self.rows.inner_cols(), row % self.rows.inner_cols());
            out.copy_from_slice(&self.turned[0][member][at * cols..(at + 1) * cols]);
            return Ok(());
        }
        self.inner(row, out)
    }

    fn inner(&self, row: usize, out: &mut [f32]) -> Result<(), WeightsError> {
        let (member, local) = (row / self.rows.total, row % self.rows.total);
        for (part, turned) in self.rows.parts.iter().zip(&self.turned) {
            let Some(at) = part.role_row(local) else {
                continue;
            };
            if part.turned {
                out.copy_from_slice(&turned[member][at * out.len()..(at + 1) * out.len()]);
                return Ok(());
            }
            let at = part.order.map_or(at, |order| order.source(at));
            return part.stack[member].decode_row(at, out);
        }
        Err(WeightsError::RowOutOfRange {
            row,
            rows: self.rows.count(),
        })
    }

    /// Each member with its columns as rows.
    fn transposed(&self) -> Result<Vec<Vec<f32>>, WeightsError> {
        let (total, cols) = (self.rows.total, self.rows.inner_cols());
        let mut members = vec![vec![0.0; total * cols]; self.rows.members];
        let mut values = vec![0.0; cols];
        for (index, member) in members.iter_mut().enumerate() {
            for row in 0..total {
                self.inner(index * total + row, &mut values)?;
                scatter(&values, row, total, member);
            }
        }
        Ok(members)
    }
}

/// A matrix's columns, one after another.
fn columns(merged: &MergedMatrix<'_>) -> Result<Vec<f32>, WeightsError> {
    let matrix = merged.matrix;
    let mut turned = vec![0.0; matrix.rows() * matrix.cols()];
    let mut values = vec![0.0; matrix.cols()];
    for row in 0..matrix.rows() {
        merged.decode_row(row, &mut values)?;
        scatter(&values, row, matrix.rows(), &mut turned);
    }
    Ok(turned)
}

fn scatter(values: &[f32], row: usize, rows: usize, out: &mut [f32]) {
    for (column, value) in values.iter().enumerate() {
        out[column * rows + row] = *value;
    }
}

#[cfg(test)]
mod tests {
    use loquat_spec::RopePairs;

    use super::*;

    #[test]
    fn orders_undo_each_other() {
        let order = |to| RopeOrder {
            head_dim: 8,
            dims: 6,
            to,
        };
        let halves: Vec<f32> = (0..16).map(|row| row as f32).collect();
        let neighbours = order(RopePairs::Interleaved).reordered(&halves);
        assert_eq!(neighbours[..8], [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 7.0]);
        assert_eq!(neighbours[8..11], [8.0, 11.0, 9.0]);
        assert_eq!(order(RopePairs::Halves).reordered(&neighbours), halves);
    }
}
