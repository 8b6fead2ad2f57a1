//! Operations that carry a state over the tokens of a row, one after another: a row in chunks gives
//! the same bits as the whole row.

use super::{Launch, Result, at, dot, sigmoid, vector};
use crate::ops::{Convolve, DeltaGates, DeltaUpdate, MambaUpdate, RowTable};

/// A part of the recurrent state.
struct StatePart {
    start: usize,
    len: usize,
}

impl Launch<'_> {
    /// Advances a part of the state through a row's tokens by `step`, and saves the copies of it
    /// that the row asks for.
    fn carry(
        &mut self,
        row: &RowTable,
        part: &StatePart,
        mut step: impl FnMut(&mut Self, &mut [f32], usize) -> Result<()>,
    ) -> Result<()> {
        if row.tokens == 0 && row.after.is_none() {
            return Ok(());
        }
        let before = at(row.before, part.start);
        let read = if before.is_none() {
            None
        } else {
            Some(self.access.f32s_in_place("before", before, part.len)?)
        };
        let mut state = read.unwrap_or_else(|| vec![0.0; part.len]);
        let copies = self.snapshots(row)?;
        for index in 0..row.tokens {
            step(self, &mut state, (row.first + index) as usize)?;
            for copy in copies.iter().filter(|copy| copy.tokens == index + 1) {
                self.access
                    .write("snapshots", at(copy.to, part.start), &state)?;
            }
        }
        self.access
            .write("after", at(row.after, part.start), &state)
    }

    /// The rows that the launch covers.
    fn covered_rows(&mut self) -> Result<Vec<(usize, RowTable)>> {
        let covered = self.covered();
        covered.map(|index| Ok((index, self.row(index)?))).collect()
    }

    pub(super) fn convolve(&mut self, op: &Convolve) -> Result<()> {
        let (channels, kernel) = (op.channels as usize, op.kernel as usize);
        self.access.require(kernel > 0, "kernel", "is 0")?;
        self.access.set_shared();
        let weights = self.access.f32s("weights", op.weights, channels * kernel)?;
        let bias = self.access.optional_f32s("bias", op.bias, channels)?;
        let mut step = |launch: &mut Self, past: &mut [f32], token: usize| -> Result<()> {
            let values = vector(op.values, token, op.stride);
            let mut x = launch.access.f32s_in_place("values", values, channels)?;
            // A row without past inputs is added, so that the state is a window of it.
            let inputs = [&*past, &x].concat();
            for (channel, x) in x.iter_mut().enumerate() {
                let weights = &weights[channel * kernel..(channel + 1) * kernel];
                let mut total = bias.as_ref().map_or(0.0, |bias| bias[channel]);
                for (tap, weight) in weights.iter().enumerate() {
                    total += weight * inputs[tap * channels + channel];
                }
                *x = if op.silu == 0 {
                    total
                } else {
                    total / (1.0 + (-total).exp())
                };
            }
            past.copy_from_slice(&inputs[channels..]);
            launch.access.write("values", values, &x)
        };
        for (index, row) in self.covered_rows()? {
            self.access.set_unit(index);
            if kernel == 1 {
                // It reads no other token, and its layer may have no state.
                for token in row.first..row.first + row.tokens {
                    step(self, &mut [], token as usize)?;
                }
                continue;
            }
            let part = StatePart {
                start: op.state as usize,
                len: (kernel - 1) * channels,
            };
            self.carry(&row, &part, &mut step)?;
        }
        Ok(())
    }

    pub(super) fn delta_gates(&mut self, op: &DeltaGates) -> Result<()> {
        let (heads, per_head) = (op.heads as usize, op.per_head as usize);
        self.access.set_shared();
        let bias = self.access.f32s("bias", op.bias, heads * per_head)?;
        let rate = self.access.f32s("rate", op.rate, heads)?;
        for token in self.covered() {
            self.access.set_unit(token);
            let from = at(op.decay, token * heads * per_head);
            let mut decay = self.access.f32s_in_place("decay", from, heads * per_head)?;
            for (index, (decay, bias)) in decay.iter_mut().zip(&bias).enumerate() {
                *decay = (rate[index / per_head] * softplus(*decay + bias)).exp();
            }
            self.access.write("decay", from, &decay)?;
            let from = vector(op.beta, token, op.heads);
            let mut beta = self.access.f32s_in_place("beta", from, heads)?;
            beta.iter_mut().for_each(|beta| *beta = sigmoid(*beta));
            self.access.write("beta", from, &beta)?;
        }
        Ok(())
    }

    pub(super) fn delta_update(&mut self, op: &DeltaUpdate) -> Result<()> {
        let (key_dim, value_dim) = (op.key_dim as usize, op.value_dim as usize);
        let (key_heads, heads) = (op.key_heads as usize, op.value_heads as usize);
        let per_head = op.per_head as usize;
        let access = &self.access;
        let divides = key_heads > 0 && heads.is_multiple_of(key_heads);
        access.require(divides, "value_heads", "not a multiple of the key heads")?;
        let is_known = per_head == 1 || per_head == key_dim;
        access.require(is_known, "per_head", "neither 1 nor key_dim")?;
        let size = key_dim * value_dim;
        let part = StatePart {
            start: op.state as usize,
            len: heads * size,
        };
        for (index, row) in self.covered_rows()? {
            self.access.set_unit(index);
            self.carry(&row, &part, |launch, state, token| {
                let access = &mut launch.access;
                let key_len = key_heads * key_dim;
                let query = access.f32s("query", at(op.query, token * key_len), key_len)?;
                let key = access.f32s("key", at(op.key, token * key_len), key_len)?;
                let values = token * heads * value_dim;
                let value =
                    access.f32s_in_place("value", at(op.value, values), heads * value_dim)?;
                let decays = at(op.decay, token * heads * per_head);
                let decay = access.f32s("decay", decays, heads * per_head)?;
                let beta = access.f32s("beta", at(op.beta, token * heads), heads)?;
                let mut out = vec![0.0; heads * value_dim];
                for head in 0..heads {
                    let key_head = if op.strided == 0 {
                        head / (heads / key_heads)
                    } else {
                        head % key_heads
                    };
                    let of_key = key_head * key_dim..(key_head + 1) * key_dim;
                    let of_value = head * value_dim..(head + 1) * value_dim;
                    let step = DeltaStep {
                        query: &query[of_key.clone()],
                        key: &key[of_key],
                        value: &value[of_value.clone()],
                        decay: &decay[head * per_head..(head + 1) * per_head],
                        beta: beta[head],
                    };
                    let state = &mut state[head * size..(head + 1) * size];
                    step.run(state, &mut out[of_value]);
                }
                access.write("out", at(op.out, values), &out)
            })?;
        }
        Ok(())
    }

    pub(super) fn mamba_update(&mut self, op: &MambaUpdate) -> Result<()> {
        let (heads, head_dim) = (op.heads as usize, op.head_dim as usize);
        let (groups, state_len) = (op.groups as usize, op.state_len as usize);
        let (inner, shared) = (heads * head_dim, groups * state_len);
        let width = 2 * (inner + shared) + heads;
        let access = &mut self.access;
        let divides = groups > 0 && heads.is_multiple_of(groups);
        access.require(divides, "heads", "not a multiple of the groups")?;
        let fits = op.width as usize == width;
        access.require(fits, "width", "not gate, x, B, C and steps")?;
        access.set_shared();
        let step_bias = access.f32s("step_bias", op.step_bias, heads)?;
        let rate = access.f32s("rate", op.rate, heads)?;
        let skip = access.f32s("skip", op.skip, heads)?;
        let part = StatePart {
            start: op.state as usize,
            len: inner * state_len,
        };
        for (index, row) in self.covered_rows()? {
            self.access.set_unit(index);
            self.carry(&row, &part, |launch, state, token| {
                let projected = vector(op.projected, token, op.width);
                let after_gate = at(projected, inner);
                let values = launch.access.f32s("projected", after_gate, width - inner)?;
                let (x, rest) = values.split_at(inner);
                let (b, rest) = rest.split_at(shared);
                let (c, steps) = rest.split_at(shared);
                let mut out = vec![0.0; inner];
                let rows = state.chunks_exact_mut(state_len.max(1));
                for (channel, (state, out)) in rows.zip(&mut out).enumerate() {
                    let head = channel / head_dim;
                    let group = head / (heads / groups);
                    let of_group = group * state_len..(group + 1) * state_len;
                    // The bounds replace NaN.
                    let step = softplus(steps[head] + step_bias[head]);
                    let step = step.max(op.min_step).min(op.max_step);
                    let decay = (rate[head] * step).exp();
                    let added = step * x[channel];
                    for (value, b) in state.iter_mut().zip(&b[of_group.clone()]) {
                        *value = *value * decay + added * b;
                    }
                    *out = dot(state, &c[of_group]) + skip[head] * x[channel];
                }
                let to = at(op.out, token * inner);
                launch.access.write("out", to, &out)
            })?;
        }
        Ok(())
    }
}

/// One token of a delta rule's head.
struct DeltaStep<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: &'a [f32],
    beta: f32,
}

impl DeltaStep<'_> {
    fn run(&self, state: &mut [f32], out: &mut [f32]) {
        let width = out.len().max(1);
        for (row, values) in state.chunks_exact_mut(width).enumerate() {
            let decay = self.decay[if self.decay.len() == 1 { 0 } else { row }];
            for (value, out) in values.iter_mut().zip(out.iter_mut()) {
                *value *= decay;
                *out += self.key[row] * *value;
            }
        }
        let found = out.iter().zip(self.value);
        let delta: Vec<f32> = found
            .map(|(out, value)| (value - out) * self.beta)
            .collect();
        out.fill(0.0);
        for (row, values) in state.chunks_exact_mut(width).enumerate() {
            for ((value, delta), out) in values.iter_mut().zip(&delta).zip(out.iter_mut()) {
                *value += self.key[row] * delta;
                *out += self.query[row] * *value;
            }
        }
    }
}

/// `ln(1 + e^x)`
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
