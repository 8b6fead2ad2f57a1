//! Delta rules and Mamba-2.

use super::super::fixture::{Bench, assert_close, values};
use super::recurrent::{Mixer, OTHERS, check};
use crate::ops::{Address, DeltaGates, DeltaUpdate, MambaUpdate, Op};

struct Delta {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    per_channel: bool,
    strided: bool,
}

impl Delta {
    fn per_head(&self) -> usize {
        if self.per_channel { self.key_dim } else { 1 }
    }
}

impl Mixer for Delta {
    fn inputs(&self) -> Vec<usize> {
        let keys = self.key_heads * self.key_dim;
        let decays = self.value_heads * self.per_head();
        vec![keys, keys, self.outputs(), decays, self.value_heads]
    }

    fn outputs(&self) -> usize {
        self.value_heads * self.value_dim
    }

    fn state_len(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    fn op(&self, _: &mut Bench, inputs: &[Address], out: Address) -> (Op, Address) {
        let op = DeltaUpdate {
            query: inputs[0],
            key: inputs[1],
            value: inputs[2],
            out,
            decay: inputs[3],
            beta: inputs[4],
            key_heads: self.key_heads as u32,
            value_heads: self.value_heads as u32,
            key_dim: self.key_dim as u32,
            value_dim: self.value_dim as u32,
            per_head: self.per_head() as u32,
            state: OTHERS as u32,
            strided: self.strided.into(),
            reserved: 0,
        };
        (op.into(), out)
    }

    fn step(&self, state: &mut [f64], inputs: &[Vec<f64>]) -> Vec<f64> {
        let mut all = Vec::new();
        for head in 0..self.value_heads {
            let key_head = if self.strided {
                head % self.key_heads
            } else {
                head * self.key_heads / self.value_heads
            };
            let of_key = |i: usize| &inputs[i][key_head * self.key_dim..][..self.key_dim];
            let (query, key) = (of_key(0), of_key(1));
            let size = self.key_dim * self.value_dim;
            let state = &mut state[head * size..(head + 1) * size];
            for column in 0..self.value_dim {
                let mut predicted = 0.0;
                for row in 0..self.key_dim {
                    let decay = inputs[3][head * self.per_head() + row % self.per_head()];
                    let value = &mut state[row * self.value_dim + column];
                    *value *= decay;
                    predicted += *value * key[row];
                }
                let value = inputs[2][head * self.value_dim + column];
                let delta = (value - predicted) * inputs[4][head];
                let mut out = 0.0;
                for row in 0..self.key_dim {
                    let value = &mut state[row * self.value_dim + column];
                    *value += key[row] * delta;
                    out += *value * query[row];
                }
                all.push(out);
            }
        }
        all
    }
}

#[test]
fn delta_rule_carries_its_memory() {
    for (per_channel, strided) in [(false, false), (true, false), (false, true), (true, true)] {
        check(&Delta {
            key_heads: 2,
            value_heads: 4,
            key_dim: 3,
            value_dim: 5,
            per_channel,
            strided,
        });
    }
    check(&Delta {
        key_heads: 1,
        value_heads: 1,
        key_dim: 1,
        value_dim: 1,
        per_channel: false,
        strided: false,
    });
}

struct Mamba {
    heads: usize,
    head_dim: usize,
    groups: usize,
    state_len: usize,
}

impl Mamba {
    fn vectors(&self) -> [Vec<f32>; 3] {
        let [step_bias, mut rate, skip] = [60, 61, 62].map(|seed| values(self.heads, seed));
        // Memories decay.
        rate.iter_mut().for_each(|rate| *rate = -rate.abs());
        [step_bias, rate, skip]
    }
}

impl Mixer for Mamba {
    fn inputs(&self) -> Vec<usize> {
        vec![2 * (self.outputs() + self.groups * self.state_len) + self.heads]
    }

    fn outputs(&self) -> usize {
        self.heads * self.head_dim
    }

    fn state_len(&self) -> usize {
        self.outputs() * self.state_len
    }

    fn op(&self, bench: &mut Bench, inputs: &[Address], out: Address) -> (Op, Address) {
        let [step_bias, rate, skip] = self.vectors().map(|values| bench.f32s(&values));
        let op = MambaUpdate {
            projected: inputs[0],
            out,
            step_bias,
            rate,
            skip,
            width: self.inputs()[0] as u32,
            heads: self.heads as u32,
            head_dim: self.head_dim as u32,
            groups: self.groups as u32,
            state_len: self.state_len as u32,
            state: OTHERS as u32,
            min_step: 0.5,
            max_step: 0.9,
        };
        (op.into(), out)
    }

    fn step(&self, state: &mut [f64], inputs: &[Vec<f64>]) -> Vec<f64> {
        let [step_bias, rate, skip] = self.vectors();
        let (inner, shared) = (self.outputs(), self.groups * self.state_len);
        let x = &inputs[0][inner..2 * inner];
        let b = &inputs[0][2 * inner..2 * inner + shared];
        let c = &inputs[0][2 * inner + shared..2 * (inner + shared)];
        let steps = &inputs[0][2 * (inner + shared)..];
        let mut all = Vec::new();
        for head in 0..self.heads {
            let group = head * self.groups / self.heads;
            let step = (1.0 + (steps[head] + f64::from(step_bias[head])).exp()).ln();
            let step = step.clamp(0.5, 0.9f32.into());
            let decay = (f64::from(rate[head]) * step).exp();
            for channel in head * self.head_dim..(head + 1) * self.head_dim {
                let mut out = f64::from(skip[head]) * x[channel];
                for i in 0..self.state_len {
                    let value = &mut state[channel * self.state_len + i];
                    *value = *value * decay + step * x[channel] * b[group * self.state_len + i];
                    out += *value * c[group * self.state_len + i];
                }
                all.push(out);
            }
        }
        all
    }
}

#[test]
fn mamba_carries_its_memory() {
    check(&Mamba {
        heads: 4,
        head_dim: 3,
        groups: 2,
        state_len: 5,
    });
    check(&Mamba {
        heads: 1,
        head_dim: 1,
        groups: 1,
        state_len: 17,
    });
}

#[test]
fn delta_gates_are_between_zero_and_one() {
    let (tokens, heads) = (3, 2);
    for per_head in [1, 5] {
        let len = heads * per_head;
        let (decay, beta) = (values(tokens * len, 1), values(tokens * heads, 2));
        let (bias, rate) = (values(len, 3), values(heads, 4));
        let mut bench = Bench::default();
        let op = DeltaGates {
            decay: bench.f32s(&decay),
            beta: bench.f32s(&beta),
            bias: bench.f32s(&bias),
            rate: bench.f32s(&rate),
            heads: heads as u32,
            per_head: per_head as u32,
        };
        bench.run(op, tokens);
        let expected: Vec<f32> = (0..tokens * len)
            .map(|i| {
                let x = f64::from(decay[i] + bias[i % len]);
                let rate = f64::from(rate[i % len / per_head]);
                (rate * (1.0 + x.exp()).ln()).exp() as f32
            })
            .collect();
        assert_close(&bench.read(op.decay, tokens * len), &expected);
        let expected: Vec<f32> = beta.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
        assert_close(&bench.read(op.beta, tokens * heads), &expected);
    }
}
