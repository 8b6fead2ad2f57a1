//! Projectors: from the tower's output to features.

use loquat_session::tower::{ProjectedGrids, TowerBatch};
use loquat_spec::{Activation, Dense, MergeOrder};

use super::{Compute, Matrix, Tower, activate, add_scaled, apply};
use crate::model::Norm;

/// A step of a projector with its weights.
pub enum LoadedStep {
    Merge { side: usize, values: MergeOrder },
    AveragePool { side: usize },
    Scale(f32),
    Standardize { bias: Vec<f32>, scale: Vec<f32> },
    Norm(Norm),
    Linear(Box<LoadedMatrix>),
    Activation(Activation),
    Gated(Box<GatedStep>),
}

/// `down(activation(gate(x)) * up(x))`
pub struct GatedStep {
    pub spec: Dense,
    pub gate: LoadedMatrix,
    pub up: LoadedMatrix,
    pub down: LoadedMatrix,
}

/// Opaque outside of the tower.
pub struct LoadedMatrix(pub(super) Matrix);

/// Vectors of some views, and their grids.
pub struct Rows {
    values: Vec<f32>,
    width: usize,
    grids: ProjectedGrids,
}

impl Tower {
    /// The output of a projector for all views, one after another.
    pub(super) fn project(
        &self,
        compute: &mut Compute<'_>,
        x: &[f32],
        batch: &TowerBatch,
        steps: &[LoadedStep],
    ) -> Vec<f32> {
        let hidden = self.spec.hidden_size;
        let mut values = Vec::with_capacity(x.len());
        for view in &batch.views {
            let patches = view.patches();
            values.extend_from_slice(&x[patches.start * hidden..patches.end * hidden]);
        }
        let mut rows = Rows {
            values,
            width: hidden,
            grids: ProjectedGrids::new(batch),
        };
        for step in steps {
            rows.run(compute, step);
        }
        rows.values
    }
}

impl Rows {
    fn run(&mut self, compute: &mut Compute<'_>, step: &LoadedStep) {
        match step {
            LoadedStep::Merge { side, values } => self.merge(*side, *values),
            LoadedStep::AveragePool { side } => self.average(*side),
            LoadedStep::Scale(scale) => {
                self.values.iter_mut().for_each(|value| *value *= scale);
            }
            LoadedStep::Standardize { bias, scale } => {
                for row in self.values.chunks_exact_mut(self.width) {
                    for ((value, bias), scale) in row.iter_mut().zip(bias).zip(scale) {
                        *value = (*value - bias) * scale;
                    }
                }
            }
            LoadedStep::Norm(norm) => apply(compute, norm, &mut self.values, self.width),
            LoadedStep::Linear(matrix) => self.values = self.multiply(compute, matrix),
            LoadedStep::Activation(activation) => {
                let values = (&mut self.values[..], self.width);
                activate(compute, *activation, values, &mut []);
            }
            LoadedStep::Gated(step) => {
                let GatedStep {
                    spec,
                    gate,
                    up,
                    down,
                } = &**step;
                let width = self.width;
                let mut inner = self.multiply(compute, gate);
                self.width = width;
                let mut up = self.multiply(compute, up);
                activate(compute, spec.activation, (&mut inner, spec.size), &mut up);
                self.values = inner;
                self.values = self.multiply(compute, down);
            }
        }
        if let LoadedStep::Linear(matrix) = step {
            self.width = matrix.0.linear.rows();
        }
    }

    fn multiply(&mut self, compute: &mut Compute<'_>, matrix: &LoadedMatrix) -> Vec<f32> {
        let rows = self.values.len() / self.width;
        let outputs = matrix.0.linear.rows();
        let mut out = vec![0.0; rows * outputs];
        matrix.0.run(compute, (&self.values, self.width), &mut out);
        self.width = outputs;
        out
    }

    /// For each block of `side × side`, the rows' indices, in row-major order.
    fn blocks(&mut self, side: usize) -> Vec<usize> {
        let rows = self.values.len() / self.width.max(1);
        let indices = self.grids.merge(side);
        indices.unwrap_or_else(|| (0..rows).collect())
    }

    fn merge(&mut self, side: usize, order: MergeOrder) {
        let (indices, width) = (self.blocks(side), self.width);
        let mut merged = Vec::with_capacity(self.values.len());
        for block in indices.chunks_exact(side * side) {
            match order {
                MergeOrder::ChannelLast => {
                    for index in block {
                        let row = index * width..(index + 1) * width;
                        merged.extend_from_slice(&self.values[row]);
                    }
                }
                MergeOrder::ChannelFirst => {
                    for channel in 0..width {
                        let values = block
                            .iter()
                            .map(|index| self.values[index * width + channel]);
                        merged.extend(values);
                    }
                }
            }
        }
        self.values = merged;
        self.width = width * side * side;
    }

    fn average(&mut self, side: usize) {
        let (indices, width) = (self.blocks(side), self.width);
        let share = 1.0 / (side * side) as f32;
        let mut pooled = vec![0.0; self.values.len() / (side * side)];
        let blocks = indices.chunks_exact(side * side);
        for (block, out) in blocks.zip(pooled.chunks_exact_mut(width)) {
            for index in block {
                add_scaled(out, &self.values[index * width..(index + 1) * width], 1.0);
            }
            out.iter_mut().for_each(|value| *value *= share);
        }
        self.values = pooled;
    }
}
