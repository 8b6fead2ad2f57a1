//! Compares latent attention with a plain implementation, token by token.

use loquat_spec::{LatentAttention as Spec, Norm as NormSpec, NormKind, Rope as RopeSpec};

use super::super::attention::plain::{
    EPS, assert_close, dot, identity, linear, mix, multiply, norm, product, rope, rotate, vector,
};
use super::{Latent, QueryUp};
use crate::array::Ops;
use crate::linear::{JoinedLinear, Kernel, Run, Stack};
use crate::norm::Norm;
use crate::testing::{noise, ops, two_sequences};

const HIDDEN: usize = 10;

fn spec(query_rank: Option<usize>, rotated: bool) -> Spec {
    Spec {
        heads: 3,
        query_rank,
        latent_dim: 8,
        nope_dim: 5,
        rope_dim: 4,
        value_dim: 6,
        rope: rotated.then(|| RopeSpec::plain(10_000.0, 4).interleaved()),
        scale: 0.6,
        norm: NormSpec {
            kind: NormKind::Rms,
            eps: EPS,
            weight: true,
            bias: false,
        },
        down_bias: false,
        output_bias: false,
    }
}

/// [rows][cols], stacks [heads][rows][cols].
struct Weights {
    query_in: Vec<f32>,
    query_norm: Vec<f32>,
    query_up: Vec<f32>,
    latent: Vec<f32>,
    latent_norm: Vec<f32>,
    rope_key: Vec<f32>,
    key_absorb: Vec<f32>,
    value_up: Vec<f32>,
}

impl Weights {
    fn new(spec: &Spec) -> Self {
        let rank = spec.query_rank.unwrap_or(0);
        let query_in = spec.query_rank.unwrap_or(spec.query_len());
        Self {
            query_in: noise(query_in * HIDDEN, 1),
            query_norm: noise(rank, 2),
            query_up: noise(spec.query_len() * rank, 3),
            latent: noise(spec.latent_dim * HIDDEN, 4),
            latent_norm: noise(spec.latent_dim, 5),
            rope_key: noise(spec.rope_dim * HIDDEN, 6),
            key_absorb: noise(spec.heads * spec.latent_dim * spec.nope_dim, 7),
            value_up: noise(spec.heads * spec.value_dim * spec.latent_dim, 8),
        }
    }

    /// The block with an identity output matrix.
    fn block(&self, ops: &Ops, spec: &Spec) -> Latent {
        let norm = |weight: &[f32]| Norm {
            kind: NormKind::Rms,
            eps: EPS,
            weight: Some(vector(ops, weight)),
            bias: None,
        };
        let inputs = [&self.query_in, &self.latent, &self.rope_key].map(|weight| Run {
            joined: linear(ops, weight, HIDDEN),
            rows: vec![weight.len() / HIDDEN],
        });
        Latent {
            inputs: JoinedLinear::new(inputs.into()),
            query_up: spec.query_rank.map(|rank| QueryUp {
                norm: norm(&self.query_norm),
                linear: linear(ops, &self.query_up, rank),
            }),
            latent_norm: norm(&self.latent_norm),
            rope: spec.rope.as_ref().map(|of| rope(ops, of.pairs)),
            key_absorb: stack(ops, &self.key_absorb, spec.heads, spec.nope_dim),
            value_up: stack(ops, &self.value_up, spec.heads, spec.latent_dim),
            output: identity(ops, spec.mixed_len()),
            spec: spec.clone(),
        }
    }

    /// A token's query.
    fn query(&self, token: &[f32]) -> Vec<f32> {
        let query = product(&self.query_in, token);
        if self.query_norm.is_empty() {
            query
        } else {
            product(&self.query_up, &normed(query, &self.query_norm))
        }
    }

    /// The expected output for a whole sequence.
    fn expected(&self, spec: &Spec, x: &[f32]) -> Vec<f32> {
        let rotated = |mut part: Vec<f32>, position: usize| {
            if let Some(of) = &spec.rope {
                rotate(of.pairs, position, &mut part);
            }
            part
        };
        // Latents and rope keys.
        let mut kept = Vec::new();
        let mut out = Vec::new();
        for (position, token) in x.chunks_exact(HIDDEN).enumerate() {
            let latent = normed(product(&self.latent, token), &self.latent_norm);
            kept.push((latent, rotated(product(&self.rope_key, token), position)));
            let query = self.query(token);
            let heads = query.chunks_exact(spec.nope_dim + spec.rope_dim);
            for (head, query) in heads.enumerate() {
                let (plain, rope) = query.split_at(spec.nope_dim);
                let absorbed = product(head_matrix(&self.key_absorb, spec, head), plain);
                let rope = rotated(rope.to_vec(), position);
                let scored = kept.iter().map(|(latent, key)| {
                    let score = (dot(&absorbed, latent) + dot(&rope, key)) * spec.scale;
                    (score, latent.as_slice())
                });
                let mixed = mix(scored, None);
                out.extend(product(head_matrix(&self.value_up, spec, head), &mixed));
            }
        }
        out
    }
}

fn normed(mut values: Vec<f32>, weight: &[f32]) -> Vec<f32> {
    norm(NormKind::Rms, &mut values);
    multiply(&mut values, weight.iter().copied());
    values
}

fn stack(ops: &Ops, values: &[f32], count: usize, cols: usize) -> Stack {
    let dims = [
        count as i32,
        (values.len() / count / cols) as i32,
        cols as i32,
    ];
    let matrices = ops.upload_f32(values, &dims).unwrap();
    Stack {
        kernel: Kernel::Plain(ops.transpose(&matrices, &[0, 2, 1]).unwrap()),
        bias: None,
        parts: Vec::new(),
    }
}

fn head_matrix<'a>(stack: &'a [f32], spec: &Spec, head: usize) -> &'a [f32] {
    let len = stack.len() / spec.heads;
    &stack[head * len..(head + 1) * len]
}

#[test]
fn every_variant_equals_plain_arithmetic() {
    let Some(ops) = ops() else { return };
    for (query_rank, rotated) in [(None, true), (Some(7), true), (None, false)] {
        let spec = spec(query_rank, rotated);
        let weights = Weights::new(&spec);
        let block = weights.block(&ops, &spec);
        let passed = two_sequences(&ops, 1, HIDDEN, |step, x| block.run(step, 0, x).unwrap());
        for sequence in passed {
            let expected = weights.expected(&spec, &sequence.inputs);
            let name = format!("rank {query_rank:?}, rotated {rotated}");
            assert_close(&name, &sequence.outputs, &expected);
        }
    }
}
