//! Compares Mamba-2 with a plain implementation, token by token.

use loquat_spec::{Mamba2 as Spec, MambaNorm, Norm as NormSpec, NormKind};

use super::{Mamba2, PartNorm, StepSizes};
use crate::array::Ops;
use crate::blocks::attention::plain::{
    EPS, assert_close, dot, identity, linear, multiply, norm, product, vector,
};
use crate::blocks::linear_state::LinearState;
use crate::blocks::recurrent::plain::{PlainConv, silu, softplus};
use crate::norm::Norm;
use crate::testing::{noise, ops, two_sequences};

const HIDDEN: usize = 8;
const NORM: NormSpec = NormSpec {
    kind: NormKind::Rms,
    eps: EPS,
    weight: true,
    bias: false,
};

/// Four heads of 3 channels and 5 states in two groups.
const SPEC: Spec = Spec {
    heads: 4,
    head_dim: 3,
    groups: 2,
    state: 5,
    kernel: 4,
    conv_bias: true,
    projection_bias: false,
    norm: MambaNorm::None,
    step_limits: (0.0, f32::INFINITY),
    scales: [1.0; 5],
};

struct Weights {
    input: Vec<f32>,
    conv: PlainConv,
    step_bias: Vec<f32>,
    rate: Vec<f32>,
    skip: Vec<f32>,
    norm: Vec<f32>,
}

impl Weights {
    fn new(spec: &Spec) -> Self {
        Self {
            input: noise(spec.projected_len() * HIDDEN, 1),
            conv: PlainConv {
                kernel: spec.kernel,
                weights: noise(spec.conv_len() * spec.kernel, 2),
                bias: spec.conv_bias.then(|| noise(spec.conv_len(), 3)),
            },
            step_bias: noise(spec.heads, 4),
            rate: noise(spec.heads, 5).iter().map(|x| -x.abs()).collect(),
            skip: noise(spec.heads, 6),
            norm: noise(spec.inner_len(), 7),
        }
    }

    fn block(&self, ops: &Ops, spec: &Spec) -> Mamba2 {
        let [inner, shared] = [spec.inner_len(), spec.groups * spec.state];
        let scale = |channel| match channel {
            channel if channel < inner => spec.scales[1],
            channel if channel < inner + shared => spec.scales[2],
            _ => spec.scales[3],
        };
        let skip = vector(ops, &self.skip);
        let skip_dims = [spec.groups as i32, -1, 1];
        Mamba2 {
            spec: *spec,
            input: linear(ops, &self.input, HIDDEN),
            conv: self.conv.upload(ops, scale),
            steps: StepSizes {
                scale: vector(ops, &[spec.scales[4]]),
                bias: vector(ops, &self.step_bias),
                low: vector(ops, &[spec.step_limits.0]),
                high: vector(ops, &[spec.step_limits.1]),
                rate: vector(ops, &self.rate),
            },
            linear_state: LinearState::new(ops, 1).unwrap(),
            skip: ops.reshape(&skip, &skip_dims).unwrap(),
            norm: self.part_norm(ops, &spec.norm),
            output: identity(ops, inner),
        }
    }

    fn part_norm(&self, ops: &Ops, norm: &MambaNorm) -> Option<PartNorm> {
        let (parts, before_gate) = match norm {
            MambaNorm::None => return None,
            MambaNorm::AfterGate { groups, .. } => (*groups as i32, false),
            MambaNorm::BeforeGate { groups, .. } => (*groups as i32, true),
        };
        let dims: &[i32] = if parts == 1 { &[-1] } else { &[parts, -1] };
        let weight = ops.reshape(&vector(ops, &self.norm), dims).unwrap();
        Some(PartNorm {
            parts,
            norm: Norm {
                kind: NormKind::Rms,
                eps: EPS,
                weight: Some(weight),
                bias: None,
            },
            before_gate,
        })
    }

    /// The expected output for a whole sequence.
    fn expected(&self, spec: &Spec, x: &[f32]) -> Vec<f32> {
        let shared = spec.groups * spec.state;
        let lens = [
            spec.inner_len(),
            spec.inner_len(),
            shared,
            shared,
            spec.heads,
        ];
        let mut memory = vec![0.0; spec.inner_len() * spec.state];
        let (mut past, mut out) = (Vec::new(), Vec::new());
        for token in x.chunks_exact(HIDDEN) {
            let mut projected = product(&self.input, token);
            let scales = lens.iter().zip(spec.scales);
            multiply(
                &mut projected,
                scales.flat_map(|(len, scale)| std::iter::repeat_n(scale, *len)),
            );
            let (gate, rest) = projected.split_at(spec.inner_len());
            let (mixed, raw) = rest.split_at(spec.conv_len());
            past.push(mixed.to_vec());
            let mut mixed = self.conv.last(&past);
            mixed.iter_mut().for_each(|x| *x = silu(*x));
            let answer = self.step(spec, &mixed, raw, &mut memory);
            out.extend(self.finish(spec, answer, gate));
        }
        out
    }

    fn step(&self, spec: &Spec, mixed: &[f32], raw: &[f32], memory: &mut [f32]) -> Vec<f32> {
        let (x, shared) = mixed.split_at(spec.inner_len());
        let (b, c) = shared.split_at(spec.groups * spec.state);
        let cells = memory.chunks_exact_mut(spec.state).zip(x).enumerate();
        let answers = cells.map(|(at, (cells, x))| {
            let head = at / spec.head_dim;
            let group = head / (spec.heads / spec.groups) * spec.state;
            let size = softplus(raw[head] + self.step_bias[head]);
            let size = size.clamp(spec.step_limits.0, spec.step_limits.1);
            for (cell, b) in cells.iter_mut().zip(&b[group..]) {
                *cell = *cell * (self.rate[head] * size).exp() + size * x * b;
            }
            dot(cells, &c[group..]) + self.skip[head] * x
        });
        answers.collect()
    }

    fn finish(&self, spec: &Spec, mut answer: Vec<f32>, gate: &[f32]) -> Vec<f32> {
        let gate = gate.iter().map(|gate| silu(*gate));
        let norm_parts = |answer: &mut [f32], parts: usize| {
            let parts = answer.chunks_exact_mut(answer.len() / parts);
            parts.for_each(|part| norm(NormKind::Rms, part));
            multiply(answer, self.norm.iter().copied());
        };
        if let MambaNorm::BeforeGate { groups, .. } = spec.norm {
            norm_parts(&mut answer, groups);
        }
        multiply(&mut answer, gate);
        if let MambaNorm::AfterGate { groups, .. } = spec.norm {
            norm_parts(&mut answer, groups);
        }
        answer
    }
}

/// The difference from [`SPEC`].
type Change = fn(&mut Spec);

const CASES: [(&str, Change); 7] = [
    ("plain", |_| ()),
    ("norm after the gate", |spec| {
        spec.norm = MambaNorm::AfterGate {
            norm: NORM,
            groups: 1,
        };
    }),
    ("norm after the gate in parts", |spec| {
        spec.norm = MambaNorm::AfterGate {
            norm: NORM,
            groups: 2,
        };
    }),
    ("norm before the gate in parts", |spec| {
        spec.norm = MambaNorm::BeforeGate {
            norm: NORM,
            groups: 2,
        };
    }),
    ("limits", |spec| spec.step_limits = (0.6, 0.9)),
    ("scales", |spec| spec.scales = [0.5, 2.0, 0.7, 1.5, 0.3]),
    ("no bias, one group", |spec| {
        (spec.conv_bias, spec.groups) = (false, 1)
    }),
];

#[test]
fn mamba2_equals_plain_arithmetic() {
    let Some(ops) = ops() else { return };
    for (name, change) in CASES {
        let mut spec = SPEC;
        change(&mut spec);
        let weights = Weights::new(&spec);
        let block = weights.block(&ops, &spec);
        let passed = two_sequences(&ops, 1, HIDDEN, |step, x| block.run(step, 0, x).unwrap());
        for sequence in passed {
            let expected = weights.expected(&spec, &sequence.inputs);
            assert_close(name, &sequence.outputs, &expected);
        }
    }
}
