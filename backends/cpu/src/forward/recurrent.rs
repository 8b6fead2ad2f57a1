//! Mixers with a recurrent state.
//!
//! The tokens of a row are processed one after another, so that chunks of any length give the same
//! bits; rows, heads and the channels of convolutions run in parallel.

use loquat_cpu_kernels::{DeltaStep, KvElement, MambaStep};
use loquat_spec::{DeltaOutputGate, MambaNorm};

use super::convolution::Convolution;
use super::{Forward, Plan, PlannedRow, PlannedState, add, compute, for_rows, scale};
use crate::adapted::multiply_adapted;
use crate::buffers::fit;
use crate::linear::{Linear, Product, Products, for_tokens};
use crate::model::{Branch, DeltaWeights, MambaWeights, ShortConvWeights};
use crate::pool::Pool;
use crate::shared::SharedMut;

/// Avoids division by zero for queries and keys of a delta rule.
const UNIT_EPS: f32 = 1e-6;

impl<T: KvElement> Forward<'_, T> {
    /// `c * conv(b * x)` into `scratch.inner`.
    pub(super) fn short_conv(&mut self, layer: usize, branch: &Branch, weights: &ShortConvWeights) {
        self.begin_branch(branch, [&weights.input]);
        let tokens = self.tokens();
        let channels = weights.spec.channels;
        self.project(&weights.input, weights.input_bias.as_deref());
        let scratch = &mut *self.scratch;
        scratch.inner.resize(tokens, channels);
        let (query, inner) = (&scratch.query, &mut scratch.inner.values);
        for_rows(self.pool, 2 * channels, (inner, channels), &|token, out| {
            let row = &query[3 * token * channels..3 * (token + 1) * channels];
            let (b, x) = (&row[..channels], &row[2 * channels..]);
            for ((out, b), x) in out.iter_mut().zip(b).zip(x) {
                *out = b * x;
            }
        });
        let state = self.states.layer(layer).conv;
        let convolution = Convolution {
            conv: &weights.conv,
            stride: channels,
            offset: 0,
            state: state.start,
            silu: false,
        };
        let inner = &mut scratch.inner.values;
        convolution.run(self.kernels, self.pool, self.plan, inner);
        for_rows(self.pool, channels, (inner, channels), &|token, out| {
            let c = &query[(3 * token + 1) * channels..(3 * token + 2) * channels];
            for (out, c) in out.iter_mut().zip(c) {
                *out *= c;
            }
        });
    }

    /// The gated, normed heads' outputs into `scratch.inner`.
    pub(super) fn delta_rule(&mut self, layer: usize, branch: &Branch, weights: &DeltaWeights) {
        let [query, key, value] = &weights.inputs;
        let [decay, gate] =
            [&weights.decay, &weights.gate].map(|part| part.down.as_ref().unwrap_or(&part.up));
        self.begin_branch(branch, [query, key, value, &weights.beta, decay, gate]);
        let tokens = self.tokens();
        let scratch = &mut *self.scratch;
        let buffers = [&mut scratch.query, &mut scratch.key, &mut scratch.value];
        let mut products = Products::new();
        for (linear, buffer) in weights.inputs.iter().zip(buffers) {
            fit(buffer, tokens * linear.rows());
            products.push(Product::new(linear, &scratch.input, buffer));
        }
        fit(&mut scratch.beta, tokens * weights.beta.rows());
        products.push(Product::new(
            &weights.beta,
            &scratch.input,
            &mut scratch.beta,
        ));
        let runs = &self.plan.adapters.runs;
        multiply_adapted(compute!(self, scratch), runs, products);
        let mut decay = std::mem::take(&mut self.scratch.decay);
        self.low_rank(&weights.decay, &mut decay);
        self.scratch.decay = decay;
        let mut gate = std::mem::take(&mut self.scratch.gate);
        self.low_rank(&weights.gate, &mut gate);
        self.scratch.gate = gate;
        self.convolve_delta(layer, weights);
        self.prepare_delta(weights);
        self.update_delta_state(layer, weights);
        self.gate_delta(weights);
    }

    fn convolve_delta(&mut self, layer: usize, weights: &DeltaWeights) {
        let mut at = self.states.layer(layer).conv.start;
        let scratch = &mut *self.scratch;
        let buffers = [&mut scratch.query, &mut scratch.key, &mut scratch.value];
        for (conv, buffer) in weights.convs.iter().zip(buffers) {
            let convolution = Convolution {
                conv,
                stride: conv.channels,
                offset: 0,
                state: at,
                silu: true,
            };
            convolution.run(self.kernels, self.pool, self.plan, buffer);
            at += conv.past_len();
        }
    }

    /// Normalizes queries and keys, and computes decays and write strengths.
    fn prepare_delta(&mut self, weights: &DeltaWeights) {
        let (kernels, spec) = (self.kernels, &weights.spec);
        let scratch = &mut *self.scratch;
        let (key_len, heads) = (spec.key_len(), spec.value_heads);
        let decays = weights.decay_bias.len();
        let query_scale = 1.0 / (spec.key_dim as f32).sqrt();
        let query = SharedMut::new(&mut scratch.query);
        let key = SharedMut::new(&mut scratch.key);
        let decay = SharedMut::new(&mut scratch.decay);
        let beta = SharedMut::new(&mut scratch.beta);
        let cost = 2 * key_len + 16 * decays;
        for_tokens(self.pool, self.plan.tokens.len(), cost, &|token| {
            // SAFETY: each token's task touches its own rows, and the table was chosen for this
            // machine.
            let (query, key, decay, beta) = unsafe {
                (
                    query.slice(token * key_len, key_len),
                    key.slice(token * key_len, key_len),
                    decay.slice(token * decays, decays),
                    beta.slice(token * heads, heads),
                )
            };
            for part in [&mut *query, key] {
                for head in part.chunks_exact_mut(spec.key_dim) {
                    // SAFETY: the table was chosen for this machine.
                    unsafe { (kernels.unit_length)(head, UNIT_EPS) };
                }
            }
            scale(query, query_scale);
            add(decay, Some(&weights.decay_bias));
            let per_head = decays / heads;
            for (decay, rate) in decay.chunks_exact_mut(per_head).zip(&weights.rate) {
                for value in decay {
                    *value = (rate * softplus(*value)).exp();
                }
            }
            for value in beta {
                *value = 1.0 / (1.0 + (-*value).exp());
            }
        });
    }

    fn update_delta_state(&mut self, layer: usize, weights: &DeltaWeights) {
        let (kernels, plan, spec) = (self.kernels, self.plan, &weights.spec);
        let scratch = &mut *self.scratch;
        let (key_dim, value_dim, heads) = (spec.key_dim, spec.value_dim, spec.value_heads);
        let (key_len, value_len) = (spec.key_len(), spec.value_len());
        let decays = weights.decay_bias.len();
        let per_head = decays / heads;
        scratch.inner.resize(plan.tokens.len(), value_len);
        let (query, key, value) = (&scratch.query, &scratch.key, &scratch.value);
        let (decay, beta) = (&scratch.decay, &scratch.beta);
        let out = SharedMut::new(&mut scratch.inner.values);
        let start = self.states.layer(layer).memory.start;
        let size = key_dim * value_dim;
        each_head(self.pool, plan, heads, &|row, state, head| {
            state.carry(start + head * size, size, row.tokens, |memory, offset| {
                let token = row.first + offset;
                let key_head = spec.key_head(head);
                let of_key = token * key_len + key_head * key_dim;
                let of_value = token * value_len + head * value_dim;
                let of_decay = token * decays + head * per_head;
                let step = DeltaStep {
                    query: &query[of_key..of_key + key_dim],
                    key: &key[of_key..of_key + key_dim],
                    value: &value[of_value..of_value + value_dim],
                    decay: &decay[of_decay..of_decay + per_head],
                    beta: beta[token * heads + head],
                };
                // SAFETY: each row and head writes its own values, and the table was chosen for
                // this machine.
                unsafe { (kernels.delta_step)(&step, memory, out.slice(of_value, value_dim)) };
            });
        });
    }

    fn gate_delta(&mut self, weights: &DeltaWeights) {
        let (kernels, spec) = (self.kernels, &weights.spec);
        let len = spec.value_len();
        let gate = &self.scratch.gate;
        let out = SharedMut::new(&mut self.scratch.inner.values);
        for_tokens(self.pool, self.plan.tokens.len(), 4 * len, &|token| {
            // SAFETY: each token's task touches its own row.
            let out = unsafe { out.slice(token * len, len) };
            for head in out.chunks_exact_mut(spec.value_dim) {
                weights.norm.apply(kernels, head);
            }
            let gate = &gate[token * len..(token + 1) * len];
            // SAFETY: the table was chosen for this machine.
            unsafe {
                match spec.gate {
                    DeltaOutputGate::Silu => (kernels.silu_gate)(out, gate),
                    DeltaOutputGate::LowRankSigmoid { .. } => (kernels.sigmoid_gate)(out, gate),
                }
            }
        });
    }

    /// The gated, normed heads' outputs into `scratch.inner`.
    pub(super) fn mamba2(&mut self, layer: usize, branch: &Branch, weights: &MambaWeights) {
        self.begin_branch(branch, [&weights.input]);
        let spec = &weights.spec;
        self.project(&weights.input, weights.input_bias.as_deref());
        let (inner, width) = (spec.inner_len(), spec.projected_len());
        let shared = spec.groups * spec.state;
        let parts = [inner, inner, shared, shared, spec.heads];
        let projected = &mut self.scratch.query;
        if spec.scales.iter().any(|factor| *factor != 1.0) {
            for_rows(self.pool, width, (projected, width), &|_, row| {
                let mut rest = row;
                for (len, factor) in parts.into_iter().zip(spec.scales) {
                    let (part, after) = rest.split_at_mut(len);
                    scale(part, factor);
                    rest = after;
                }
            });
        }
        let convolution = Convolution {
            conv: &weights.conv,
            stride: width,
            offset: inner,
            state: self.states.layer(layer).conv.start,
            silu: true,
        };
        convolution.run(self.kernels, self.pool, self.plan, projected);
        self.update_mamba_state(layer, weights);
        self.gate_mamba(weights);
    }

    fn update_mamba_state(&mut self, layer: usize, weights: &MambaWeights) {
        let (kernels, plan, spec) = (self.kernels, self.plan, &weights.spec);
        let (inner, width) = (spec.inner_len(), spec.projected_len());
        let (head_dim, state_len) = (spec.head_dim, spec.state);
        let scratch = &mut *self.scratch;
        scratch.inner.resize(plan.tokens.len(), inner);
        let projected = &scratch.query;
        let out = SharedMut::new(&mut scratch.inner.values);
        let start = self.states.layer(layer).memory.start;
        let size = head_dim * state_len;
        let (low, high) = spec.step_limits;
        each_head(self.pool, plan, spec.heads, &|row, state, head| {
            let group = head / (spec.heads / spec.groups);
            state.carry(start + head * size, size, row.tokens, |memory, offset| {
                let token = row.first + offset;
                let projected = &projected[token * width..(token + 1) * width];
                let x = inner + head * head_dim;
                let b = 2 * inner + group * state_len;
                let c = b + spec.groups * state_len;
                let raw = projected[width - spec.heads + head] + weights.step_bias[head];
                let size_of_step = softplus(raw).max(low).min(high);
                let step = MambaStep {
                    x: &projected[x..x + head_dim],
                    b: &projected[b..b + state_len],
                    c: &projected[c..c + state_len],
                    decay: (weights.rate[head] * size_of_step).exp(),
                    step: size_of_step,
                    skip: weights.skip[head],
                };
                let to = token * inner + head * head_dim;
                // SAFETY: each row and head writes its own values, and the table was chosen for
                // this machine.
                unsafe { (kernels.mamba_step)(&step, memory, out.slice(to, head_dim)) };
            });
        });
    }

    fn gate_mamba(&mut self, weights: &MambaWeights) {
        let (kernels, spec) = (self.kernels, &weights.spec);
        let (inner, width) = (spec.inner_len(), spec.projected_len());
        let projected = &self.scratch.query;
        let out = SharedMut::new(&mut self.scratch.inner.values);
        let norm_parts = |out: &mut [f32], groups: usize| {
            let part = inner / groups;
            for (index, values) in out.chunks_exact_mut(part).enumerate() {
                if let Some(norm) = &weights.norm {
                    norm.apply_part(kernels, values, index * part);
                }
            }
        };
        for_tokens(self.pool, self.plan.tokens.len(), 4 * inner, &|token| {
            // SAFETY: each token's task touches its own row, and the table was chosen for this
            // machine.
            let out = unsafe { out.slice(token * inner, inner) };
            if let MambaNorm::BeforeGate { groups, .. } = spec.norm {
                norm_parts(out, groups);
            }
            let gate = &projected[token * width..token * width + inner];
            // SAFETY: as above.
            unsafe { (kernels.silu_gate)(out, gate) };
            if let MambaNorm::AfterGate { groups, .. } = spec.norm {
                norm_parts(out, groups);
            }
        });
    }

    /// `scratch.input` through `linear` and its bias, into `scratch.query`.
    fn project(&mut self, linear: &Linear, bias: Option<&[f32]>) {
        let tokens = self.tokens();
        let scratch = &mut *self.scratch;
        fit(&mut scratch.query, tokens * linear.rows());
        let out = &mut scratch.query;
        multiply_adapted(
            compute!(self, scratch),
            &self.plan.adapters.runs,
            [Product::new(linear, &scratch.input, out)],
        );
        if bias.is_some() {
            let rows = (&mut *scratch.query, linear.rows());
            for_rows(self.pool, linear.rows(), rows, &|_, row| add(row, bias));
        }
    }
}

/// Runs `body` for each row and head, in parallel.
pub(super) fn each_head<T: KvElement>(
    pool: &mut Pool,
    plan: &Plan<T>,
    heads: usize,
    body: &(dyn Fn(&PlannedRow, &PlannedState, usize) + Sync),
) {
    pool.run(plan.rows.len() * heads, &|task| {
        let row = &plan.rows[task / heads];
        if let Some(state) = &row.state {
            body(row, state, task % heads);
        }
    });
}

impl PlannedState {
    /// Advances the part of the state at `at` through the row's tokens, calling `step` with it and
    /// each token's index in the row.
    fn carry(&self, at: usize, len: usize, tokens: usize, mut step: impl FnMut(&mut [f32], usize)) {
        // SAFETY: the buffer after the row is the row's own, and no two tasks share a part.
        let part = unsafe { self.after.slice_mut(at, len) };
        match self.before {
            // SAFETY: no thread writes the state before a row during a step.
            Some(before) => part.copy_from_slice(unsafe { before.slice(at, len) }),
            None => part.fill(0.0),
        }
        let mut snapshots = self.snapshots.iter().peekable();
        for offset in 0..tokens {
            step(part, offset);
            if let Some((_, copy)) = snapshots.next_if(|(after, _)| *after == offset + 1) {
                // SAFETY: as for the buffer after the row.
                unsafe { copy.slice_mut(at, len) }.copy_from_slice(part);
            }
        }
    }
}

/// `ln(1 + e^x)`
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
