//! Projectors: from the tower's output to features.

use loquat_spec::{MergeOrder, ProjectorStep};

use super::buffers::TowerBuffer as B;
use super::lower::{Placement, TowerLowering, Vectors, matrix};
use super::tables::StepTable;
use super::weights::StepWeights;
use crate::ops::{Add, Address, CopyParts, Gather};

/// Vectors on their way through a projector. Queries, keys and values are not used meanwhile.
struct Projected {
    values: Vectors,
    count: usize,
    /// Where they are, and buffers for other vectors.
    buffers: [B; 3],
}

impl TowerLowering<'_> {
    /// Runs a projector over the stream, and stores the features of its level.
    pub(super) fn project(&mut self, level: usize) {
        let (spec, weights, tables) = (self.spec, self.weights, self.tables);
        let projector = match level {
            0 => &spec.projector,
            level => &spec.deepstack[level - 1].projector,
        };
        let mut projected = Projected {
            values: self.buffer(B::Query, spec.hidden_size),
            count: tables.patches,
            buffers: [B::Query, B::Key, B::Value],
        };
        // Class tokens are dropped, and patches are in the order that positions follow.
        let stream = self.buffer(B::Stream, spec.hidden_size);
        let order = tables.address(tables.output);
        self.gather(stream, order, projected.values, projected.count);
        let loaded = weights.projectors[level]
            .iter()
            .zip(&tables.projectors[level]);
        for (step, (weights, table)) in projector.steps.iter().zip(loaded) {
            self.step(&mut projected, step, weights, *table);
        }
        self.store(&projected, level);
    }

    fn step(
        &mut self,
        x: &mut Projected,
        step: &ProjectorStep,
        weights: &StepWeights,
        table: StepTable,
    ) {
        match (step, weights) {
            (ProjectorStep::Merge { side, values }, _) => self.merge(x, *side, *values, table),
            (ProjectorStep::AveragePool { side }, _) => {
                if let StepTable::Mean(means) = table {
                    let vectors = matrix(x.values, x.count);
                    x.count /= side * side;
                    let out = self.other(x, x.values.len);
                    self.sum_rows(vectors, means, out, (x.count, false));
                    x.replace(out);
                }
            }
            (ProjectorStep::Scale(factor), _) => {
                let op = Add {
                    a: x.values.at,
                    b: Address::NONE,
                    out: x.values.at,
                    a_stride: x.values.stride(),
                    b_stride: 0,
                    out_stride: x.values.stride(),
                    len: x.values.stride(),
                    left: *factor,
                    right: 0.0,
                };
                self.push(op, x.count);
            }
            (ProjectorStep::Activation(activation), _) => {
                self.activate(*activation, x.values, None, x.count);
            }
            (
                _,
                StepWeights::Standardize {
                    negative_bias,
                    scale,
                },
            ) => {
                self.affine(x.values, (Address::NONE, *negative_bias), x.count);
                self.affine(x.values, (*scale, Address::NONE), x.count);
            }
            (_, StepWeights::Norm(norm)) => self.norm(norm, x.values, x.values, x.count),
            (_, StepWeights::Linear(linear)) => {
                let out = self.other(x, linear.matrix.rows as usize);
                self.linear(linear, x.values, out, x.count);
                x.replace(out);
            }
            (
                _,
                StepWeights::Gated {
                    dense,
                    gate,
                    up,
                    down,
                },
            ) => {
                let inner = self.other(x, dense.size);
                let factors = self.buffer(x.buffers[2], dense.size);
                self.linear(gate, x.values, inner, x.count);
                self.linear(up, x.values, factors, x.count);
                self.activate(dense.activation, inner, Some(factors), x.count);
                // Back to where the input was.
                x.values.len = down.matrix.rows as usize;
                self.linear(down, inner, x.values, x.count);
            }
            // Every step with weights is loaded as such.
            (_, StepWeights::Plain) => {}
        }
    }

    fn merge(&mut self, x: &mut Projected, side: usize, order: MergeOrder, table: StepTable) {
        if let StepTable::Order(order) = table {
            let out = self.other(x, x.values.len);
            self.gather(x.values, self.tables.address(order), out, x.count);
            x.replace(out);
        }
        // Vectors of a block are adjacent: together they are one.
        let (block, len) = (side * side, x.values.len);
        x.count /= block;
        x.values.len = block * len;
        if order == MergeOrder::ChannelFirst && block > 1 {
            let out = self.other(x, block * len);
            for index in 0..block {
                let op = CopyParts {
                    input: x.values.at.values(index * len),
                    out: out.at.values(index),
                    input_stride: x.values.stride(),
                    out_stride: out.stride(),
                    parts: len as u32,
                    input_step: 1,
                    out_step: block as u32,
                    len: 1,
                };
                self.push(op, x.count);
            }
            x.replace(out);
        }
    }

    /// Another buffer, for vectors of `len`.
    fn other(&self, x: &Projected, len: usize) -> Vectors {
        self.buffer(x.buffers[1], len)
    }

    fn gather(&mut self, input: Vectors, index: Address, out: Vectors, count: usize) {
        let op = Gather {
            input: input.at,
            out: out.at,
            index,
            input_stride: input.stride(),
            out_stride: out.stride(),
            len: input.stride(),
            reserved: 0,
        };
        self.push(op, count);
    }

    fn store(&mut self, x: &Projected, level: usize) {
        let target = self.target;
        let of_level = |position: usize| Vectors {
            at: target
                .values
                .values((level * target.positions + position) * target.hidden),
            len: target.hidden,
        };
        match target.placement {
            Placement::From(first) => {
                let op = CopyParts {
                    input: x.values.at,
                    out: of_level(first).at,
                    input_stride: x.values.stride(),
                    out_stride: target.hidden as u32,
                    parts: 1,
                    input_step: 0,
                    out_step: 0,
                    len: target.hidden as u32,
                };
                self.push(op, x.count);
            }
            Placement::Sums {
                features,
                row_end,
                adds,
            } => {
                let vectors = matrix(x.values, x.count);
                let (out, positions) = (of_level(0), target.positions);
                self.sum_rows(vectors, features, out, (positions, adds));
                if let (Some(end), Some(ends)) = (self.weights.row_end, row_end) {
                    self.sum_rows(end, ends, out, (positions, true));
                }
            }
        }
    }
}

impl Projected {
    /// The vectors are now in the other buffer.
    fn replace(&mut self, values: Vectors) {
        self.values = values;
        self.buffers.swap(0, 1);
    }
}
