//! Predicts the size of a step's buffers from the spec.

use std::ops::{Deref, DerefMut, Range};

use loquat_cpu_kernels::{MAX_QUERIES, piece_len, pieces};
use loquat_spec::{
    Decay, DeltaOutputGate, Dense, Experts, FeedForward, Inner, Mixer, ModelSpec, Rope,
};

use crate::forward::{MAX_PIECE_RESULTS, PieceTask, UNITS_PER_THREAD};
use crate::session::HEAD_BLOCK;

const VALUE: u64 = size_of::<f32>() as u64;
/// A token's bf16 scale, for each of the buffers that matrices read.
const FACTORS: u64 = 6 * VALUE;
/// A token's entries in `Scratch::attended` and `Scratch::page_runs`.
const BLOCK: u64 = 2 * size_of::<Range<usize>>() as u64;

/// The limits that buffers depend on, besides the model.
#[derive(Clone, Copy)]
pub struct Extent {
    /// Per step.
    pub tokens: usize,
    /// Per sequence.
    pub context: usize,
    pub threads: usize,
}

/// Bytes of `forward::Scratch` after the largest step, and of the logits for greedy tokens.
pub fn predict_bytes(spec: &ModelSpec, extent: Extent) -> u64 {
    let widths = spec
        .branches()
        .map(|(_, branch)| branch_widths(&branch.inner, spec));
    let widest = widths.fold(Widths::default(), Widths::max);
    let hidden = spec.hidden_size;
    let mut blocks = spec.layers.iter().flat_map(|layer| &layer.blocks);
    let sum = blocks.any(|block| block.branches.len() > 1 || block.post_norm.is_some());
    let per_layer = spec.per_layer_inputs.as_ref();
    let per_layer = per_layer.map_or(0, |inputs| inputs.dim * spec.layers.len());
    let stream = hidden * (2 + usize::from(sum));
    let plain = stream + per_layer + angles(spec) + widest.plain();
    let rounded = hidden + widest.rounded();
    // In addition to a value's four bytes: one for its code and one for its block's scale and sums,
    // two for its bf16 form.
    let per_token = plain as u64 * VALUE + rounded as u64 * 8 + FACTORS + BLOCK;
    // Blocks have room for an odd number of tokens.
    let odd = rounded as u64 * 2;
    let logits = (HEAD_BLOCK * spec.vocab_size) as u64 * VALUE;
    let results = spec
        .mixers()
        .map(|(_, mixer)| piece_result_bytes(mixer, extent));
    per_token
        .saturating_mul(extent.tokens as u64)
        .saturating_add(odd)
        .saturating_add(logits)
        .saturating_add(results.max().unwrap_or(0))
}

/// Bytes of the partial results of a long sequence, if threads share it.
fn piece_result_bytes(mixer: &Mixer, extent: Extent) -> u64 {
    let Mixer::Attention(attention) = mixer else {
        return 0;
    };
    let pieces = pieces(&(0..extent.context)).len();
    if extent.threads == 1 || pieces == 1 {
        return 0;
    }
    let units = UNITS_PER_THREAD.saturating_mul(extent.threads);
    let queries = units
        .saturating_mul(MAX_QUERIES)
        .min(extent.tokens.saturating_mul(attention.heads));
    let kept = MAX_PIECE_RESULTS.max(MAX_QUERIES.saturating_mul(pieces));
    let count = kept.min(queries.saturating_mul(pieces)) as u64;
    let answer = piece_len(attention.value_dim) * size_of::<f32>() + size_of::<PieceTask>();
    count.saturating_mul(answer as u64)
}

/// A buffer that branches of different widths use one after another. It keeps its largest size, and
/// growing again within that writes nothing: one thread would fill megabytes for every branch.
pub struct Buffer<T> {
    values: Vec<T>,
    /// Of `values`, those in use.
    len: usize,
}

impl<T> Default for Buffer<T> {
    fn default() -> Self {
        Self {
            values: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values[..self.len]
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values[..self.len]
    }
}

/// Resizes a step's buffer to `len` values of any content. It allocates exactly the largest size:
/// the doubling of `Vec` would exceed the prediction.
pub fn fit<T: Clone + Default>(buffer: &mut Buffer<T>, len: usize) {
    if len > buffer.values.len() {
        // Freed first, so that there are never two. Zeros come from the system, in memory that the
        // first thread to write it touches first.
        buffer.values = Vec::new();
        buffer.values = vec![T::default(); len];
    }
    buffer.len = len;
}

/// Values per token in the buffers that branches share, each as wide as its widest user.
#[derive(Default, Clone, Copy)]
struct Widths {
    query: usize,
    key: usize,
    value: usize,
    gate: usize,
    decay: usize,
    beta: usize,
    narrow: usize,
    inner: usize,
    experts: usize,
    expert_inputs: usize,
}

impl Widths {
    fn max(self, other: Self) -> Self {
        Self {
            query: self.query.max(other.query),
            key: self.key.max(other.key),
            value: self.value.max(other.value),
            gate: self.gate.max(other.gate),
            decay: self.decay.max(other.decay),
            beta: self.beta.max(other.beta),
            narrow: self.narrow.max(other.narrow),
            inner: self.inner.max(other.inner),
            experts: self.experts.max(other.experts),
            expert_inputs: self.expert_inputs.max(other.expert_inputs),
        }
    }

    fn plain(&self) -> usize {
        let mixer = self.query + self.key + self.value + self.decay + self.beta;
        mixer + self.gate + self.experts
    }

    /// The buffers that matrices read, which are also kept rounded.
    fn rounded(&self) -> usize {
        self.narrow + self.inner + self.expert_inputs
    }
}

fn branch_widths(inner: &Inner, spec: &ModelSpec) -> Widths {
    let none = Widths::default();
    match inner {
        Inner::Mixer(Mixer::Attention(a)) => Widths {
            query: a.query_len(),
            key: a.key_len(),
            value: a.value_len(),
            gate: if a.output_gate { a.mixed_len() } else { 0 },
            inner: a.mixed_len(),
            ..none
        },
        Inner::Mixer(Mixer::Latent(a)) => Widths {
            query: a.query_len(),
            key: a.heads * a.cached_len(),
            value: a.rope_dim,
            gate: a.heads * a.latent_dim.max(a.value_dim),
            narrow: a.query_rank.unwrap_or(0),
            inner: a.heads * a.nope_dim.max(a.latent_dim).max(a.value_dim),
            ..none
        },
        Inner::Mixer(Mixer::ShortConv(conv)) => Widths {
            query: 3 * conv.channels,
            inner: conv.channels,
            ..none
        },
        Inner::Mixer(Mixer::DeltaRule(delta)) => {
            let (decay, rank) = match delta.decay {
                Decay::PerHead => (delta.value_heads, 0),
                Decay::PerChannel { rank } => (delta.value_heads * delta.key_dim, rank),
            };
            let gate_rank = match delta.gate {
                DeltaOutputGate::Silu => 0,
                DeltaOutputGate::LowRankSigmoid { rank } => rank,
            };
            Widths {
                query: delta.key_len(),
                key: delta.key_len(),
                value: delta.value_len(),
                gate: delta.value_len(),
                decay,
                beta: delta.value_heads,
                narrow: rank.max(gate_rank),
                inner: delta.value_len(),
                ..none
            }
        }
        Inner::Mixer(Mixer::Mamba2(mamba)) => Widths {
            query: mamba.projected_len(),
            inner: mamba.inner_len(),
            ..none
        },
        Inner::FeedForward(FeedForward::Dense(inner)) => dense(inner),
        Inner::FeedForward(FeedForward::Experts(inner)) => experts(inner, spec.hidden_size),
        Inner::FeedForward(FeedForward::PerLayerInput { dim, .. }) => Widths {
            inner: *dim,
            ..none
        },
    }
}

fn dense(dense: &Dense) -> Widths {
    Widths {
        gate: if dense.gated { dense.size } else { 0 },
        inner: dense.size,
        ..Widths::default()
    }
}

fn experts(experts: &Experts, hidden: usize) -> Widths {
    /// The size of a route (expert, token, weight, index and choice) in values.
    const ROUTE: usize = 12;
    let size = experts.expert.size;
    let up = if experts.expert.gated { size } else { 0 };
    let shared = experts.shared.as_ref();
    let answer = shared.map_or(0, |_| hidden + 1);
    let router_input = experts.router.input.as_ref().map_or(0, |_| hidden);
    Widths {
        experts: experts.count + experts.top_k * (ROUTE + up + hidden) + answer,
        expert_inputs: experts.top_k * (hidden + size) + router_input,
        ..shared.map_or_else(Widths::default, |shared| dense(&shared.dense))
    }
}

/// A cosine and a sine per rotated pair, for each distinct RoPE.
fn angles(spec: &ModelSpec) -> usize {
    let mut ropes: Vec<&Rope> = Vec::new();
    for (_, mixer) in spec.mixers() {
        let rope = match mixer {
            Mixer::Attention(attention) => attention.rope.as_ref(),
            Mixer::Latent(latent) => latent.rope.as_ref(),
            Mixer::ShortConv(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => None,
        };
        ropes.extend(rope.filter(|rope| !ropes.contains(rope)));
    }
    ropes.iter().map(|rope| rope.dims).sum()
}
