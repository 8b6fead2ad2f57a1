//! Compares the delta rule with a plain implementation, token by token.

use loquat_spec::{
    Decay, DeltaOutputGate, DeltaRule as Spec, KeySharing, Norm as NormSpec, NormKind,
};

use super::{DeltaKernel, DeltaRule};
use crate::array::{Array, Ops};
use crate::blocks::attention::plain::{
    EPS, assert_close, dot, identity, linear, multiply, norm, product, vector,
};
use crate::blocks::linear_state::LinearState;
use crate::blocks::recurrent::plain::{PlainConv, sigmoid, silu, softplus};
use crate::linear::{JoinedLinear, Run};
use crate::norm::Norm;
use crate::testing::{noise, ops, two_sequences};

const HIDDEN: usize = 8;
const RANK: usize = 3;

/// Six value heads of 3 channels on two key heads of 4.
const SPEC: Spec = Spec {
    key_heads: 2,
    value_heads: 6,
    sharing: KeySharing::Adjacent,
    key_dim: 4,
    value_dim: 3,
    kernel: 4,
    decay: Decay::PerHead,
    gate: DeltaOutputGate::Silu,
    norm: NormSpec {
        kind: NormKind::Rms,
        eps: EPS,
        weight: true,
        bias: false,
    },
};

/// Matrices are [rows][cols]; without a low-rank form, the second matrix is empty.
struct Weights {
    mixed: Vec<f32>,
    gate: [Vec<f32>; 2],
    beta: Vec<f32>,
    decay: [Vec<f32>; 2],
    decay_bias: Vec<f32>,
    rate: Vec<f32>,
    conv: PlainConv,
    norm: Vec<f32>,
}

fn low_rank(matrices: &[Vec<f32>; 2], x: &[f32]) -> Vec<f32> {
    let [first, second] = matrices;
    if second.is_empty() {
        product(first, x)
    } else {
        product(second, &product(first, x))
    }
}

impl Weights {
    fn new(spec: &Spec) -> Self {
        let matrices = |low: bool, rows: usize, seed: u32| {
            if low {
                [noise(RANK * HIDDEN, seed), noise(rows * RANK, seed + 20)]
            } else {
                [noise(rows * HIDDEN, seed), Vec::new()]
            }
        };
        let per_channel = spec.decay != Decay::PerHead;
        let channels = if per_channel { spec.key_dim } else { 1 };
        Self {
            mixed: noise(spec.conv_len() * HIDDEN, 1),
            gate: matrices(spec.gate != DeltaOutputGate::Silu, spec.value_len(), 2),
            beta: noise(spec.value_heads * HIDDEN, 3),
            decay: matrices(per_channel, spec.value_heads * channels, 4),
            decay_bias: noise(spec.value_heads * channels, 5),
            rate: noise(spec.value_heads, 6)
                .iter()
                .map(|x| -x.abs())
                .collect(),
            conv: PlainConv {
                kernel: spec.kernel,
                weights: noise(spec.conv_len() * spec.kernel, 7),
                bias: None,
            },
            norm: noise(spec.value_dim, 8),
        }
    }

    fn block(&self, ops: &Ops, spec: &Spec, native: bool) -> DeltaRule {
        let up = |matrices: &[Vec<f32>; 2]| {
            let second = &matrices[1];
            (!second.is_empty()).then(|| linear(ops, second, RANK))
        };
        let per_head = |values: &[f32]| -> Array {
            let dims = [spec.value_heads as i32, -1];
            ops.reshape(&vector(ops, values), &dims).unwrap()
        };
        let unit = vec![(spec.key_dim as f32).sqrt().recip(); spec.key_dim];
        DeltaRule {
            spec: *spec,
            inputs: self.inputs(ops, spec),
            mixed_parts: 2,
            gate_up: up(&self.gate),
            decay_up: up(&self.decay),
            conv: self.conv.upload(ops, |_| 1.0),
            decay_bias: per_head(&self.decay_bias),
            decay_rate: per_head(&self.rate),
            unit: vector(ops, &unit),
            kernel: if native {
                DeltaKernel::Native
            } else {
                let channels = self.decay_bias.len() / spec.value_heads;
                DeltaKernel::Chunked(LinearState::new(ops, channels).unwrap())
            },
            norm: Norm {
                kind: NormKind::Rms,
                eps: EPS * spec.key_dim as f32,
                weight: Some(vector(ops, &self.norm)),
                bias: None,
            },
            output: identity(ops, spec.value_len()),
        }
    }

    /// Queries and keys in one run, values and the others in separate runs.
    fn inputs(&self, ops: &Ops, spec: &Spec) -> JoinedLinear {
        let (both, values) = self.mixed.split_at(2 * spec.key_len() * HIDDEN);
        let matrices = [both, values, &self.gate[0], &self.beta, &self.decay[0]];
        let runs = matrices.map(|matrix| Run {
            joined: linear(ops, matrix, HIDDEN),
            rows: vec![matrix.len() / HIDDEN],
        });
        JoinedLinear::new(runs.into())
    }

    /// The expected output for a whole sequence.
    fn expected(&self, spec: &Spec, x: &[f32]) -> Vec<f32> {
        let mut memory = vec![0.0; spec.value_len() * spec.key_dim];
        let (mut past, mut out) = (Vec::new(), Vec::new());
        for token in x.chunks_exact(HIDDEN) {
            past.push(product(&self.mixed, token));
            let mut mixed = self.conv.last(&past);
            mixed.iter_mut().for_each(|x| *x = silu(*x));
            let (both, values) = mixed.split_at_mut(2 * spec.key_len());
            for head in both.chunks_exact_mut(spec.key_dim) {
                let length = (dot(head, head) + 1e-6).sqrt();
                head.iter_mut().for_each(|x| *x /= length);
            }
            for head in 0..spec.value_heads {
                let cells = spec.value_dim * spec.key_dim;
                let cells = &mut memory[head * cells..][..cells];
                let values = &values[head * spec.value_dim..][..spec.value_dim];
                out.extend(self.head(spec, head, [token, both, values], cells));
            }
        }
        out
    }

    fn head(
        &self,
        spec: &Spec,
        head: usize,
        [token, both, values]: [&[f32]; 3],
        memory: &mut [f32],
    ) -> Vec<f32> {
        let at = spec.key_head(head) * spec.key_dim;
        let query = &both[at..][..spec.key_dim];
        let key = &both[spec.key_len() + at..][..spec.key_dim];
        let decay = low_rank(&self.decay, token);
        let channels = decay.len() / spec.value_heads;
        let share = sigmoid(product(&self.beta, token)[head]);
        let mut answer = Vec::new();
        for (cells, value) in memory.chunks_exact_mut(spec.key_dim).zip(values) {
            for (channel, cell) in cells.iter_mut().enumerate() {
                let at = head * channels + channel % channels;
                *cell *= (self.rate[head] * softplus(decay[at] + self.decay_bias[at])).exp();
            }
            let written = (value - dot(cells, key)) * share;
            cells
                .iter_mut()
                .zip(key)
                .for_each(|(cell, key)| *cell += written * key);
            answer.push(dot(cells, query) / (spec.key_dim as f32).sqrt());
        }
        norm(NormKind::Rms, &mut answer);
        multiply(&mut answer, self.norm.iter().copied());
        let gate = low_rank(&self.gate, token);
        let gate = gate[head * spec.value_dim..]
            .iter()
            .map(|gate| match spec.gate {
                DeltaOutputGate::Silu => silu(*gate),
                DeltaOutputGate::LowRankSigmoid { .. } => sigmoid(*gate),
            });
        multiply(&mut answer, gate);
        answer
    }
}

/// A name, the difference from [`SPEC`], and whether MLX's function runs it.
type Case = (&'static str, fn(&mut Spec), bool);

const CASES: [Case; 6] = [
    ("plain", |_| (), false),
    ("by MLX", |_| (), true),
    ("in turns", |spec| spec.sharing = KeySharing::Strided, false),
    (
        "strided, native",
        |spec| spec.sharing = KeySharing::Strided,
        true,
    ),
    ("a key head each", |spec| spec.key_heads = 6, false),
    (
        "low rank, decay per channel",
        |spec| {
            spec.decay = Decay::PerChannel { rank: RANK };
            spec.gate = DeltaOutputGate::LowRankSigmoid { rank: RANK };
        },
        false,
    ),
];

#[test]
fn delta_rule_equals_plain_arithmetic() {
    let Some(ops) = ops() else { return };
    for (name, change, native) in CASES {
        let mut spec = SPEC;
        change(&mut spec);
        let weights = Weights::new(&spec);
        let block = weights.block(&ops, &spec, native);
        let passed = two_sequences(&ops, 1, HIDDEN, |step, x| block.run(step, 0, x).unwrap());
        for sequence in passed {
            let expected = weights.expected(&spec, &sequence.inputs);
            assert_close(name, &sequence.outputs, &expected);
        }
    }
}
