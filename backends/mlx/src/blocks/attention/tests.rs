//! Compares attention with a plain implementation, token by token.

use std::iter::repeat;

use loquat_spec::{
    Attention as Spec, KvSource, Norm as NormSpec, NormKind, QkNorm, QkSpan, Reach,
    Rope as RopeSpec, Temperature,
};

use super::plain::{
    EPS, assert_close, dot, identity, linear, mix, multiply, norm, product, rope, rotate, vector,
};
use super::{Attention, HeadNorm, View, own_keys, visible_keys};
use crate::array::Ops;
use crate::linear::{JoinedLinear, Linear, Run};
use crate::norm::Norm;
use crate::testing::{noise, ops, two_sequences};

const HIDDEN: usize = 12;

/// Four heads of 6 values that share two heads of keys; the first four values are rotated.
fn spec() -> Spec {
    Spec {
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        value_dim: 6,
        qkv_bias: true,
        output_bias: false,
        qk_norm: None,
        value_norm: None,
        rope: Some(RopeSpec::plain(10_000.0, 4)),
        scale: 0.7,
        value_scale: 1.0,
        temperature: None,
        softcap: None,
        reach: Reach::All,
        sinks: false,
        output_gate: false,
        gate_bias: false,
        kv: KvSource::Own,
    }
}

fn qk_norm(kind: NormKind, span: QkSpan, after_rope: bool) -> Option<QkNorm> {
    let norm = NormSpec {
        kind,
        eps: EPS,
        weight: true,
        bias: false,
    };
    Some(QkNorm {
        norm,
        span,
        after_rope,
    })
}

/// The weights of any variant of [`spec`], [rows][cols].
struct Weights {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    gate: Vec<f32>,
    biases: [Vec<f32>; 4],
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
    sinks: Vec<f32>,
}

impl Weights {
    fn new(spec: &Spec) -> Self {
        let norm_len = |heads: usize| match spec.qk_norm.map(|norm| norm.span) {
            Some(QkSpan::HeadWeights | QkSpan::AllHeads) => heads * spec.head_dim,
            Some(QkSpan::Head) | None => spec.head_dim,
        };
        let widths = [
            spec.query_len(),
            spec.key_len(),
            spec.value_len(),
            spec.mixed_len(),
        ];
        Self {
            query: noise(widths[0] * HIDDEN, 1),
            key: noise(widths[1] * HIDDEN, 2),
            value: noise(widths[2] * HIDDEN, 3),
            gate: noise(widths[3] * HIDDEN, 4),
            biases: widths.map(|width| noise(width, width as u32)),
            query_norm: noise(norm_len(spec.heads), 5),
            key_norm: noise(norm_len(spec.kv_heads), 6),
            sinks: noise(spec.heads, 7),
        }
    }

    /// The block with an identity output matrix. `joined`: queries and keys are one array.
    fn block(&self, ops: &Ops, spec: &Spec, joined: bool) -> Attention {
        let parts = [
            (true, &self.query),
            (own_keys(spec), &self.key),
            (spec.kv == KvSource::Own, &self.value),
            (spec.output_gate, &self.gate),
        ];
        let parts = parts.into_iter().zip(&self.biases);
        let parts: Vec<_> = parts.filter(|((present, _), _)| *present).collect();
        let chunk = if joined { parts.len() } else { 1 };
        let runs = parts.chunks(chunk).map(|parts| Run {
            joined: Linear {
                bias: Some(vector(ops, &concat(parts.iter().map(|(_, bias)| *bias)))),
                ..linear(ops, &concat(parts.iter().map(|((_, of), _)| *of)), HIDDEN)
            },
            rows: parts.iter().map(|(_, bias)| bias.len()).collect(),
        });
        let mut inputs = JoinedLinear::new(runs.collect());
        Attention {
            paired: own_keys(spec) && inputs.pair_first(),
            inputs,
            qk_norm: spec.qk_norm.map(|qk| self.qk_norm(ops, spec, &qk)),
            adaptable_norm: None,
            value_norm: spec.value_norm.map(|of| Norm {
                kind: of.kind,
                eps: of.eps,
                weight: None,
                bias: None,
            }),
            rope: spec.rope.as_ref().map(|of| rope(ops, of.pairs)),
            softcap: spec.softcap.map(|cap| vector(ops, &[cap])),
            sinks: spec.sinks.then(|| vector(ops, &self.sinks)),
            output: identity(ops, spec.mixed_len()),
            spec: spec.clone(),
        }
    }

    fn qk_norm(&self, ops: &Ops, spec: &Spec, qk: &QkNorm) -> HeadNorm {
        let of = |weight: &[f32]| Norm {
            kind: qk.norm.kind,
            eps: EPS,
            weight: Some(vector(ops, weight)),
            bias: None,
        };
        let keys = own_keys(spec).then(|| of(&self.key_norm));
        HeadNorm::new(ops, spec, of(&self.query_norm), keys).unwrap()
    }

    /// A token's queries, keys and values after norm and RoPE.
    fn placed(&self, spec: &Spec, position: usize, token: &[f32]) -> [Vec<f32>; 3] {
        let mut query = biased(&self.query, &self.biases[0], token);
        let mut key = biased(&self.key, &self.biases[1], token);
        let mut value = match spec.kv {
            KvSource::KeyIsValue => key.clone(),
            _ => biased(&self.value, &self.biases[2], token),
        };
        norm_and_rotate(spec, &self.query_norm, position, &mut query);
        norm_and_rotate(spec, &self.key_norm, position, &mut key);
        if let Some(temperature) = &spec.temperature {
            multiply(&mut query, repeat(temperature.factor(position)));
        }
        if let Some(of) = &spec.value_norm {
            let heads = value.chunks_exact_mut(spec.value_dim);
            heads.for_each(|head| norm(of.kind, head));
        }
        multiply(&mut value, repeat(spec.value_scale));
        [query, key, value]
    }

    /// The expected output for a whole sequence.
    fn expected(&self, spec: &Spec, x: &[f32]) -> Vec<f32> {
        let tokens = x.chunks_exact(HIDDEN).enumerate();
        let placed = tokens.map(|(position, token)| self.placed(spec, position, token));
        let placed: Vec<_> = placed.collect();
        let mut out = Vec::new();
        for (position, token) in x.chunks_exact(HIDDEN).enumerate() {
            let heads = (0..spec.heads).flat_map(|head| self.attend(spec, &placed, position, head));
            let mut mixed: Vec<f32> = heads.collect();
            if spec.output_gate {
                let gate = biased(&self.gate, &self.biases[3], token);
                let gate = gate.iter().map(|gate| 1.0 / (1.0 + (-gate).exp()));
                multiply(&mut mixed, gate);
            }
            out.extend(mixed);
        }
        out
    }

    /// The attention output of one head.
    fn attend(
        &self,
        spec: &Spec,
        placed: &[[Vec<f32>; 3]],
        position: usize,
        head: usize,
    ) -> Vec<f32> {
        let kv_head = head * spec.kv_heads / spec.heads;
        let query = &placed[position][0][head * spec.head_dim..][..spec.head_dim];
        let seen = (0..=position).filter(|key| match spec.reach {
            Reach::All => true,
            Reach::Window(window) => key + window > position,
            Reach::Chunk(chunk) => key / chunk == position / chunk,
        });
        let scored = seen.map(|position| {
            let [_, key, value] = &placed[position];
            let key = &key[kv_head * spec.head_dim..][..spec.head_dim];
            let score = dot(query, key) * spec.scale;
            let score = spec.softcap.map_or(score, |cap| (score / cap).tanh() * cap);
            (score, &value[kv_head * spec.value_dim..][..spec.value_dim])
        });
        mix(scored, spec.sinks.then(|| self.sinks[head]))
    }
}

/// Norm and rope of a token's heads.
fn norm_and_rotate(spec: &Spec, weight: &[f32], position: usize, heads: &mut [f32]) {
    let norm_heads = |after: bool, heads: &mut [f32]| {
        let Some(qk) = spec.qk_norm.filter(|qk| qk.after_rope == after) else {
            return;
        };
        let span = match qk.span {
            QkSpan::AllHeads => heads.len(),
            QkSpan::Head | QkSpan::HeadWeights => spec.head_dim,
        };
        let parts = heads.chunks_exact_mut(span);
        parts.for_each(|part| norm(qk.norm.kind, part));
        multiply(heads, weight.iter().copied().cycle());
    };
    norm_heads(false, heads);
    if let Some(of) = &spec.rope {
        let heads = heads.chunks_exact_mut(spec.head_dim);
        heads.for_each(|head| rotate(of.pairs, position, head));
    }
    norm_heads(true, heads);
}

fn biased(weight: &[f32], bias: &[f32], token: &[f32]) -> Vec<f32> {
    let out = product(weight, token);
    out.iter().zip(bias).map(|(out, bias)| out + bias).collect()
}

fn concat<'a>(parts: impl Iterator<Item = &'a Vec<f32>>) -> Vec<f32> {
    parts.flatten().copied().collect()
}

/// A name and the difference from [`spec`].
type Variant = (&'static str, fn(&mut Spec));

const VARIANTS: &[Variant] = &[
    ("plain", |_| ()),
    ("a head of keys each", |spec| spec.kv_heads = 4),
    ("one head of keys", |spec| spec.kv_heads = 1),
    ("values of another length", |spec| spec.value_dim = 4),
    ("no rope", |spec| spec.rope = None),
    ("interleaved rope", |spec| {
        spec.rope = spec.rope.take().map(RopeSpec::interleaved);
    }),
    ("window", |spec| spec.reach = Reach::Window(3)),
    ("window of one", |spec| spec.reach = Reach::Window(1)),
    ("chunks", |spec| spec.reach = Reach::Chunk(4)),
    ("sinks", |spec| spec.sinks = true),
    ("sinks and a window", |spec| {
        spec.sinks = true;
        spec.reach = Reach::Window(3);
    }),
    ("softcap", |spec| spec.softcap = Some(1.5)),
    ("softcap, sinks, a window", |spec| {
        spec.softcap = Some(1.5);
        spec.sinks = true;
        spec.reach = Reach::Window(3);
        spec.value_dim = 4;
    }),
    ("norm of heads", |spec| {
        spec.qk_norm = qk_norm(NormKind::Rms, QkSpan::Head, false);
    }),
    ("norm of heads after rope", |spec| {
        spec.qk_norm = qk_norm(NormKind::Rms, QkSpan::Head, true);
    }),
    ("norm with weights for each head", |spec| {
        spec.qk_norm = qk_norm(NormKind::Layer, QkSpan::HeadWeights, false);
    }),
    ("norm over all heads", |spec| {
        spec.qk_norm = qk_norm(NormKind::Rms, QkSpan::AllHeads, false);
    }),
    ("norm over all heads after rope", |spec| {
        spec.qk_norm = qk_norm(NormKind::Rms, QkSpan::AllHeads, true);
    }),
    ("values normed and scaled", |spec| {
        spec.value_norm = Some(NormSpec {
            kind: NormKind::Rms,
            eps: EPS,
            weight: false,
            bias: false,
        });
        spec.value_scale = 1.25;
    }),
    ("temperature", |spec| {
        spec.temperature = Some(Temperature {
            beta: 0.4,
            span: 3,
            offset: 1,
        });
    }),
    ("output gate", |spec| spec.output_gate = true),
    ("keys are values", |spec| {
        spec.kv = KvSource::KeyIsValue;
        spec.qk_norm = qk_norm(NormKind::Rms, QkSpan::Head, false);
    }),
];

#[test]
fn every_variant_equals_plain_arithmetic() {
    let Some(ops) = ops() else { return };
    for (name, vary) in VARIANTS {
        let mut spec = spec();
        vary(&mut spec);
        let weights = Weights::new(&spec);
        for joined in [true, false] {
            let block = weights.block(&ops, &spec, joined);
            let passed = two_sequences(&ops, 1, HIDDEN, |step, x| block.run(step, 0, x).unwrap());
            for sequence in passed {
                let expected = weights.expected(&spec, &sequence.inputs);
                assert_close(name, &sequence.outputs, &expected);
            }
        }
    }
}

/// A layer that reads another's keys gives the same output with the same weights.
#[test]
fn layer_reads_keys_of_another_layer() {
    let Some(ops) = ops() else { return };
    for span in [QkSpan::Head, QkSpan::HeadWeights, QkSpan::AllHeads] {
        let mut spec = spec();
        spec.qk_norm = qk_norm(NormKind::Rms, span, false);
        let weights = Weights::new(&spec);
        let own = weights.block(&ops, &spec, true);
        spec.kv = KvSource::Layer(0);
        let reader = weights.block(&ops, &spec, true);
        let passed = two_sequences(&ops, 2, HIDDEN, |step, x| {
            own.run(step, 0, x).unwrap();
            reader.run(step, 1, x).unwrap()
        });
        for sequence in passed {
            let expected = weights.expected(&spec, &sequence.inputs);
            assert_close("another's keys", &sequence.outputs, &expected);
        }
    }
}

#[test]
fn only_visible_keys_are_read() {
    let cases = [
        (Reach::All, 0..1, 0..1, View::Everything),
        (Reach::All, 7..8, 0..8, View::Everything),
        (Reach::All, 4..8, 0..8, View::Causal),
        (Reach::Window(3), 7..8, 5..8, View::Everything),
        (Reach::Window(8), 4..8, 0..8, View::Causal),
        (Reach::Window(7), 4..8, 0..8, View::Within(Reach::Window(7))),
        (Reach::Window(3), 4..8, 2..8, View::Within(Reach::Window(3))),
        (Reach::Chunk(4), 7..8, 4..8, View::Everything),
        (Reach::Chunk(4), 5..8, 4..8, View::Causal),
        (Reach::Chunk(4), 5..9, 4..9, View::Within(Reach::Chunk(4))),
    ];
    for (reach, places, seen, view) in cases {
        assert_eq!(
            visible_keys(reach, places.clone()),
            (seen, view),
            "{reach:?} {places:?}"
        );
    }
}
