//! A model's weights, packed for this machine, in the order the forward pass reads them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::ConvWeights;
use loquat_session::loading::{LoadedBlock, LoadedBranch, LoadedLayer};
use loquat_spec::{
    Activation, Attention, DeltaRule, Experts, LatentAttention, Mamba2, NormKind, PerLayerInputs,
    Role, Rope, ShortConv,
};
use loquat_weights::{FileWatch, Matrix};

use crate::adapter::Applied;
use crate::linear::{Linear, LinearWeights};
use crate::tower::Tower;

pub struct Model {
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub embedding_scale: f32,
    /// `None`: the packed head is used instead.
    pub embedding: Option<Matrix>,
    pub positions: Option<Matrix>,
    pub per_layer_inputs: Option<PerLayerWeights>,
    pub layers: Vec<Layer>,
    /// The distinct ropes the layers refer to by index.
    pub ropes: Vec<RopeTable>,
    pub final_norm: Norm,
    pub head: Linear,
    pub head_bias: Option<Vector>,
    pub head_scale: f32,
    pub softcap: Option<f32>,
    /// `None` if the model has none, or the session takes no pictures.
    pub tower: Option<Tower>,
    /// The files of the matrices that are not copied.
    pub files: FileWatch,
    pub slots: Slots,
}

impl Model {
    /// Writes the embedding of a token, before any scaling. The session has checked the ID.
    pub fn embed(&self, token: usize, applied: &[Applied], out: &mut [f32]) {
        let replaced = applied.iter().find_map(|applied| applied.adapter.table());
        self.table_row(token, replaced, out);
        let scales = |applied: &Applied| applied.adapter.scales_embedding();
        let base = if applied.iter().any(scales) {
            out.to_vec()
        } else {
            Vec::new()
        };
        for applied in applied {
            applied
                .adapter
                .add_embedding(token, applied.scale, &base, out);
        }
    }

    /// Writes a row of the table, or of the one that replaces it.
    pub fn table_row(&self, token: usize, replaced: Option<&Matrix>, out: &mut [f32]) {
        match (replaced.or(self.embedding.as_ref()), &**self.head.weights()) {
            (None, LinearWeights::Packed(packed)) => packed.decode_row(token, out),
            (Some(matrix), _) if matrix.decode_row(token, out).is_ok() => {}
            // Binding has checked the lengths; a failure must not result in zeros.
            _ => out.fill(f32::NAN),
        }
    }
}

pub struct PerLayerWeights {
    pub spec: PerLayerInputs,
    pub embedding: Matrix,
    pub projection: Linear,
    pub norm: Norm,
}

pub type Layer = LoadedLayer<Norm, InnerWeights, f32>;
pub type Block = LoadedBlock<Norm, InnerWeights>;
pub type Branch = LoadedBranch<Norm, InnerWeights>;

pub struct InnerWeights {
    pub kind: Inner,
    /// `None` for experts, whose own matrices project back.
    pub output: Option<Output>,
}

/// A branch without its output matrix.
pub enum Inner {
    Attention(AttentionWeights),
    Latent(LatentWeights),
    ShortConv(ShortConvWeights),
    DeltaRule(Box<DeltaWeights>),
    Mamba2(MambaWeights),
    Dense(DenseWeights),
    Experts(Box<ExpertsWeights>),
    PerLayerInput {
        dim: usize,
        activation: Activation,
        gate: Linear,
    },
}

/// Projects a branch back to the stream.
pub struct Output {
    pub linear: Linear,
    pub bias: Option<Vector>,
}

pub struct AttentionWeights {
    pub spec: Attention,
    /// Positions of media may attend to later ones.
    pub looks_ahead: bool,
    pub rope: Option<usize>,
    pub query: Linear,
    pub key: Option<Linear>,
    pub value: Option<Linear>,
    pub gate: Option<Linear>,
    pub gate_bias: Option<Vector>,
    pub query_bias: Option<Vector>,
    pub key_bias: Option<Vector>,
    pub value_bias: Option<Vector>,
    pub query_norm: Option<Norm>,
    pub key_norm: Option<Norm>,
    pub value_norm: Option<Norm>,
    pub sinks: Option<Vec<f32>>,
}

pub struct LatentWeights {
    pub spec: LatentAttention,
    pub rope: Option<usize>,
    pub query_down: Option<QueryDown>,
    pub query: Linear,
    pub latent: Linear,
    pub latent_bias: Option<Vec<f32>>,
    pub latent_norm: Norm,
    pub rope_key: Linear,
    pub rope_key_bias: Option<Vec<f32>>,
    /// For each head.
    pub key_absorb: Vec<Linear>,
    pub value_up: Vec<Linear>,
}

pub struct QueryDown {
    pub linear: Linear,
    pub bias: Option<Vec<f32>>,
    pub norm: Norm,
}

pub struct ShortConvWeights {
    pub spec: ShortConv,
    pub input: Linear,
    pub input_bias: Option<Vec<f32>>,
    pub conv: Conv,
}

pub struct DeltaWeights {
    pub spec: DeltaRule,
    /// Query, key, value.
    pub inputs: [Linear; 3],
    pub convs: [Conv; 3],
    pub beta: Linear,
    pub decay: LowRank,
    pub decay_bias: Vec<f32>,
    pub rate: Vec<f32>,
    pub gate: LowRank,
    pub norm: Norm,
}

/// One matrix, or two with a low-rank vector between.
pub struct LowRank {
    pub down: Option<Linear>,
    pub up: Linear,
}

pub struct MambaWeights {
    pub spec: Mamba2,
    pub input: Linear,
    pub input_bias: Option<Vec<f32>>,
    pub conv: Conv,
    pub step_bias: Vec<f32>,
    pub rate: Vec<f32>,
    pub skip: Vec<f32>,
    pub norm: Option<Norm>,
}

/// Channels of a convolution that a thread computes together: many whole registers.
pub const CONV_BLOCK: usize = 512;

/// A causal convolution.
pub struct Conv {
    pub channels: usize,
    pub kernel: usize,
    /// For each block of [`CONV_BLOCK`] channels, `[kernel][channel]`.
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Conv {
    /// From weights as they are stored, `[channel][kernel]`.
    pub fn new(stored: &[f32], kernel: usize, bias: Option<Vec<f32>>) -> Self {
        let channels = stored.len() / kernel;
        let mut weights = Vec::with_capacity(channels * kernel);
        for block in stored.chunks(CONV_BLOCK * kernel) {
            for tap in 0..kernel {
                weights.extend(block.iter().skip(tap).step_by(kernel));
            }
        }
        Self {
            channels,
            kernel,
            weights,
            bias,
        }
    }

    /// The channels of a block.
    pub fn block(&self, index: usize) -> Range<usize> {
        let first = index * CONV_BLOCK;
        first..(first + CONV_BLOCK).min(self.channels)
    }

    pub fn block_weights(&self, index: usize) -> ConvWeights<'_> {
        let channels = self.block(index);
        let of_block = channels.start * self.kernel..channels.end * self.kernel;
        ConvWeights {
            weights: &self.weights[of_block],
            bias: self.bias.as_ref().map_or(&[], |bias| &bias[channels]),
        }
    }

    /// Inputs that the state keeps.
    pub fn past_len(&self) -> usize {
        (self.kernel - 1) * self.channels
    }
}

pub struct DenseWeights {
    pub size: usize,
    pub activation: Activation,
    pub gate_scale: f32,
    pub gate: Option<Linear>,
    pub up: Linear,
    pub gate_bias: Option<Vector>,
    pub up_bias: Option<Vector>,
}

pub struct ExpertsWeights {
    pub spec: Experts,
    pub router: Linear,
    pub router_bias: Option<Vec<f32>>,
    pub router_norm: Option<Norm>,
    pub correction: Option<Vec<f32>>,
    pub expert_scale: Option<Vec<f32>>,
    pub gates: Vec<Linear>,
    pub ups: Vec<Linear>,
    pub downs: Vec<Linear>,
    /// `[expert][value]`
    pub gate_bias: Option<Vec<f32>>,
    pub up_bias: Option<Vec<f32>>,
    pub down_bias: Option<Vec<f32>>,
    pub shared: Option<SharedWeights>,
}

pub struct SharedWeights {
    pub dense: DenseWeights,
    pub down: Linear,
    pub router: Option<Linear>,
}

/// A vector that adapters may replace.
pub struct Vector {
    pub values: Vec<f32>,
    pub slot: usize,
}

impl Vector {
    /// The values for a token with these adapters.
    pub fn adapted<'a>(&'a self, applied: &'a [Applied]) -> &'a [f32] {
        let replaced = |applied: &'a Applied| applied.adapter.vector(self.slot);
        applied.iter().find_map(replaced).unwrap_or(&self.values)
    }
}

/// What adapters change, by role. Slots number the matrices and vectors.
#[derive(Default)]
pub struct Slots {
    pub linears: Vec<Arc<LinearWeights>>,
    /// The first slot of each role's matrices, and how many there are.
    pub matrices: BTreeMap<Role, Range<usize>>,
    pub vectors: BTreeMap<Role, usize>,
}

impl Slots {
    /// The slot of a matrix of a role.
    pub fn matrix(&self, role: Role, member: usize) -> Option<usize> {
        let slots = self.matrices.get(&role)?;
        (member < slots.len()).then(|| slots.start + member)
    }

    /// Gives the role's next matrix a slot.
    pub fn add_matrix(&mut self, role: Role, linear: &mut Linear) {
        let slot = self.linears.len();
        let slots = self.matrices.entry(role).or_insert(slot..slot);
        slots.end = slot + 1;
        linear.set_slot(slot);
        self.linears.push(Arc::clone(linear.weights()));
    }

    /// The slot of a vector, which several parts of a layer may share.
    pub fn vector(&mut self, role: Role) -> usize {
        let next = self.vectors.len();
        *self.vectors.entry(role).or_insert(next)
    }
}

pub struct Norm {
    pub kind: NormKind,
    pub eps: f32,
    /// Empty if the norm has none.
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    /// Of weight and bias.
    pub slots: [Option<usize>; 2],
}

pub struct RopeTable {
    pub rope: Rope,
    pub frequencies: Vec<f32>,
}
