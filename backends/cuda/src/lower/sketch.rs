//! What an operation does, in short: its sizes, and the buffers between which it computes.

use crate::fused::FusedOp;
use crate::ops::{
    ActivationFunction, Address, Format, KvRef, MatrixRef, NormFunction, Op, ReachKind,
};

/// An operation for display.
pub struct Sketch {
    pub shape: String,
    /// Weights, tables and absent inputs are among them.
    pub reads: Vec<Address>,
    pub writes: Vec<Address>,
}

impl Op {
    /// For display.
    pub fn sketch(&self) -> Sketch {
        let (shape, reads, writes) = match self {
            Op::Embed(p) => (matrix(&p.table), vec![], vec![p.out]),
            Op::AddEmbedding(p) => (matrix(&p.table), vec![p.out], vec![p.out]),
            Op::AddFeatures(p) => (
                format!("{} of level {}", p.width, p.level),
                vec![p.out],
                vec![p.out],
            ),
            Op::Norm(p) => {
                let function = match p.function {
                    NormFunction::None => "scale",
                    NormFunction::Rms => "rms",
                    NormFunction::Layer => "layer",
                    NormFunction::UnitLength => "unit length",
                };
                let shape = format!("{function} {}", times(p.parts, p.len));
                (shape, vec![p.input], vec![p.out])
            }
            Op::Linear(p) => {
                let shape = times(p.batch, matrix(&p.matrix));
                (shape, vec![p.input], vec![p.out])
            }
            Op::LowRank(p) => (
                times(p.parts, format!("{} x {} x {}", p.rows, p.rank, p.cols)),
                vec![p.input],
                vec![p.out],
            ),
            Op::ScaleRows(p) => (times(p.parts, p.rows), vec![p.experts, p.out], vec![p.out]),
            Op::EmbedLowRank(p) => (
                format!("{} rank {}", matrix(&p.table), p.rank),
                vec![p.out],
                vec![p.out],
            ),
            Op::Angles(p) => (format!("{} pairs", p.pairs), vec![], vec![p.cos, p.sin]),
            Op::Rope(p) => {
                let pairs = if p.interleaved == 1 {
                    "interleaved"
                } else {
                    "halves"
                };
                let shape = format!("{} heads, {} pairs, {pairs}", p.heads, p.pairs);
                (shape, vec![p.values, p.cos, p.sin], vec![p.values])
            }
            Op::Temperature(p) => (p.len.to_string(), vec![p.values], vec![p.values]),
            Op::WriteKv(p) => (cache(&p.kv), vec![p.keys, p.values], vec![]),
            Op::Attend(p) => {
                let reach = match p.reach {
                    ReachKind::All => String::new(),
                    ReachKind::Window => format!(", window {}", p.reach_len),
                    ReachKind::Chunk => format!(", chunk {}", p.reach_len),
                };
                let shape = format!("{} heads over {}{reach}", p.heads, cache(&p.kv));
                (shape, vec![p.query], vec![p.out])
            }
            Op::AttendDense(p) => (
                format!("{} heads of {}", p.heads, p.head_dim),
                vec![p.query, p.key, p.value],
                vec![p.out],
            ),
            Op::Activate(p) => (
                format!("{} {}", activation(p.function), p.len),
                vec![p.gate, p.up],
                vec![p.out],
            ),
            Op::Add(p) => (p.len.to_string(), vec![p.a, p.b], vec![p.out]),
            Op::Multiply(p) => (p.len.to_string(), vec![p.a, p.b], vec![p.out]),
            Op::Affine(p) => (p.len.to_string(), vec![p.values], vec![p.values]),
            Op::Clamp(p) => (p.len.to_string(), vec![p.input], vec![p.out]),
            Op::Convolve(p) => (
                format!("{} channels, kernel {}", p.channels, p.kernel),
                vec![p.values],
                vec![p.values],
            ),
            Op::DeltaGates(p) => (
                times(p.heads, p.per_head),
                vec![p.decay, p.beta],
                vec![p.decay, p.beta],
            ),
            Op::DeltaUpdate(p) => (
                format!("{} heads of {} x {}", p.value_heads, p.key_dim, p.value_dim),
                vec![p.query, p.key, p.value, p.decay, p.beta],
                vec![p.out],
            ),
            Op::MambaUpdate(p) => (
                format!("{} heads of {} x {}", p.heads, p.head_dim, p.state_len),
                vec![p.projected],
                vec![p.out],
            ),
            Op::Route(p) => (
                format!("{} of {} experts", p.top_k, p.count),
                vec![p.logits],
                vec![p.experts, p.weights],
            ),
            Op::ExpertLinear(p) => (
                format!("{} for {} experts", matrix(&p.matrix), p.top_k),
                vec![p.input, p.experts, p.weights],
                vec![p.out],
            ),
            Op::CombineExperts(p) => (times(p.top_k, p.len), vec![p.input, p.weights], vec![p.out]),
            Op::Gather(p) => (p.len.to_string(), vec![p.input], vec![p.out]),
            Op::SumRows(p) => (matrix(&p.matrix), vec![], vec![p.out]),
            Op::CopyParts(p) => (times(p.parts, p.len), vec![p.input], vec![p.out]),
            Op::FinishLogits(p) => (p.vocab.to_string(), vec![p.logits], vec![p.logits]),
            Op::DrawTokens(p) => (p.vocab.to_string(), vec![p.logits], vec![p.out]),
            Op::Largest(p) => (p.vocab.to_string(), vec![p.logits], vec![p.out]),
            Op::Fused(op) => return op.sketch(),
        };
        Sketch {
            shape,
            reads,
            writes,
        }
    }
}

impl FusedOp {
    fn sketch(&self) -> Sketch {
        let (shape, reads, writes) = match self {
            Self::Embed(p) => {
                let angles = p.angles.iter().flat_map(|angles| [angles.cos, angles.sin]);
                let own = [p.stream, p.x, p.sums];
                let writes = own.into_iter().chain(angles).collect();
                (p.hidden.to_string(), vec![], writes)
            }
            Self::Linear(_, p) => {
                let shape = format!("{} x {} bf16, {} parts", p.rows, p.cols, p.parts);
                let writes = vec![p.out, p.next, p.next_sums, p.tokens];
                (shape, vec![p.x, p.sums], writes)
            }
            Self::Attention(p) => (
                format!("{} heads over {}", p.heads, cache(&p.kv)),
                vec![p.qkv, p.cos, p.sin],
                vec![p.out],
            ),
            Self::QkvFinish(p) => (
                format!("{} heads, {}", p.heads, cache(&p.kv)),
                vec![p.qkv, p.cos, p.sin],
                vec![p.query],
            ),
            Self::PromptAttention(p) => (
                format!("{} heads over {}", p.heads, cache(&p.kv)),
                vec![p.query],
                vec![p.out],
            ),
            Self::Pack(p) => (format!("{} x {}", p.rows, p.cols), vec![], vec![p.out]),
            Self::Advance(_) => (String::new(), vec![], vec![]),
        };
        Sketch {
            shape,
            reads,
            writes,
        }
    }
}

fn matrix(matrix: &MatrixRef) -> String {
    let MatrixRef { rows, cols, .. } = matrix;
    format!("{rows} x {cols} {}", matrix.format.name())
}

fn cache(kv: &KvRef) -> String {
    let KvRef {
        heads,
        head_dim,
        group,
        ..
    } = kv;
    format!("{heads} x {head_dim} {} of group {group}", kv.format.name())
}

/// `count x what`, or only what if there is one.
fn times(count: u32, what: impl std::fmt::Display) -> String {
    if count == 1 {
        what.to_string()
    } else {
        format!("{count} x {what}")
    }
}

impl Format {
    pub fn name(self) -> &'static str {
        match self {
            Format::F32 => "f32",
            Format::Bf16 => "bf16",
        }
    }
}

fn activation(function: ActivationFunction) -> &'static str {
    match function {
        ActivationFunction::Identity => "identity",
        ActivationFunction::Silu => "silu",
        ActivationFunction::Gelu => "gelu",
        ActivationFunction::GeluTanh => "gelu tanh",
        ActivationFunction::QuickGelu => "quick gelu",
        ActivationFunction::Relu => "relu",
        ActivationFunction::Relu2 => "relu2",
        ActivationFunction::ClampedSwiglu => "clamped swiglu",
        ActivationFunction::Sigmoid => "sigmoid",
    }
}
