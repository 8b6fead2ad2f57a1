//! Feed-forwards without experts.

use std::ops::Range;

use loquat_cpu_kernels::{Kernels, KvElement};
use loquat_spec::Activation;

use super::{Forward, add, compute, for_rows, scale};
use crate::adapted::multiply_adapted;
use crate::adapter::Applied;
use crate::buffers::fit;
use crate::linear::{Linear, Product, for_parts};
use crate::model::{Branch, DenseWeights, Vector};
use crate::shared::SharedMut;

impl<T: KvElement> Forward<'_, T> {
    /// Writes the activated inner values of a feed-forward to `scratch.inner`.
    pub(super) fn dense(&mut self, branch: &Branch, weights: &DenseWeights) {
        self.begin_branch(branch, weights.readers());
        self.dense_inside(weights);
    }

    /// Like [`Self::dense`], with the input already in `scratch.input`.
    pub(super) fn dense_inside(&mut self, weights: &DenseWeights) {
        let tokens = self.tokens();
        let scratch = &mut *self.scratch;
        scratch.inner.resize(tokens, weights.size);
        let (input, inner) = (&scratch.input, &mut scratch.inner.values);
        let plan = self.plan;
        let runs = &plan.adapters.runs;
        let up = match &weights.gate {
            Some(gate) => {
                fit(&mut scratch.gate, tokens * weights.size);
                multiply_adapted(
                    compute!(self, scratch),
                    runs,
                    [
                        Product::new(gate, input, inner),
                        Product::new(&weights.up, input, &mut scratch.gate),
                    ],
                );
                &mut scratch.gate[..]
            }
            None => {
                multiply_adapted(
                    compute!(self, scratch),
                    runs,
                    [Product::new(&weights.up, input, inner)],
                );
                &mut []
            }
        };
        let (kernels, size) = (self.kernels, weights.size);
        let up_len = if up.is_empty() { 0 } else { size };
        let inner = SharedMut::new(inner);
        let up = SharedMut::new(up);
        for_parts(self.pool, (tokens, size), 4, &|token, part| {
            let up_part = if up_len == 0 { 0..0 } else { part.clone() };
            // SAFETY: each task touches its own part of a token's rows.
            let (inner, up) = unsafe {
                (
                    inner.slice(token * size + part.start, part.len()),
                    up.slice(token * up_len + up_part.start, up_part.len()),
                )
            };
            weights.activate((kernels, plan.applied(token)), part, inner, up);
        });
    }

    /// `activation(gate(x)) * input` with the layer's own input, into `scratch.inner`.
    pub(super) fn per_layer_input(
        &mut self,
        layer: usize,
        branch: &Branch,
        dim: usize,
        activation: Activation,
        gate: &Linear,
    ) {
        self.begin_branch(branch, [gate]);
        let (kernels, tokens) = (self.kernels, self.tokens());
        let all = dim * self.model.layers.len();
        let scratch = &mut *self.scratch;
        scratch.inner.resize(tokens, dim);
        let inner = &mut scratch.inner.values;
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [Product::new(gate, &scratch.input, inner)],
        );
        let (inner, per_layer) = (&mut scratch.inner.values, &scratch.per_layer);
        for_rows(self.pool, 4 * dim, (inner, dim), &|token, inner| {
            let from = token * all + layer * dim;
            // SAFETY: the table was chosen for this machine.
            unsafe { (kernels.activate)(activation, inner, &per_layer[from..from + dim]) };
        });
    }
}

impl DenseWeights {
    pub(super) fn readers(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up])
    }

    /// Applies the activation of one token to a part of its gate and up, or of the only input if
    /// there is no gate.
    fn activate(
        &self,
        (kernels, applied): (&Kernels, &[Applied]),
        part: Range<usize>,
        gate: &mut [f32],
        up: &mut [f32],
    ) {
        let bias = |values: &mut [f32], bias: &Option<Vector>| {
            let bias = bias.as_ref().map(|bias| bias.adapted(applied));
            add(values, bias.map(|bias| &bias[part.clone()]));
        };
        match &self.gate {
            Some(_) => {
                bias(gate, &self.gate_bias);
                bias(up, &self.up_bias);
                scale(gate, self.gate_scale);
            }
            None => bias(gate, &self.up_bias),
        }
        // SAFETY: the table was chosen for this machine.
        unsafe { (kernels.activate)(self.activation, gate, up) };
    }
}
