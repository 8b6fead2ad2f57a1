use std::fmt;

use crate::experts::Experts;
use crate::mixers::{
    Attention, Decay, DeltaOutputGate, DeltaRule, KvSource, LatentAttention, Mamba2, MambaNorm,
    Mixer, QkSpan, ShortConv,
};
use crate::model::{Branch, Dense, FeedForward, Inner, Layer, ModelSpec, Norm};
use crate::rope::RopeScaling;
use crate::vision_roles::VisionRole;

/// The purpose of a tensor. Backends look up roles; namings map them to names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    Embedding,
    /// Learned positions.
    Positions,
    PerLayerEmbedding,
    PerLayerProjection,
    PerLayerNorm,
    FinalNorm,
    FinalNormBias,
    Head,
    HeadBias,
    RopeFactors,
    RopeFactorsShort,
    RopeFactorsLong,
    Layer(usize, LayerRole),
    /// Of the tower and its projectors.
    Vision(VisionRole),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LayerRole {
    MixerPreNorm,
    MixerPreNormBias,
    MixerPostNorm,
    MixerPostNormBias,
    Query,
    QueryBias,
    Key,
    KeyBias,
    Value,
    ValueBias,
    Output,
    OutputBias,
    QueryNorm,
    QueryNormBias,
    KeyNorm,
    KeyNormBias,
    Sinks,
    OutputGate,
    OutputGateBias,
    QueryDown,
    QueryDownBias,
    QueryDownNorm,
    QueryUp,
    Latent,
    LatentBias,
    RopeKey,
    RopeKeyBias,
    LatentNorm,
    /// Per head, from its query to the latent: the key matrix, transposed.
    KeyAbsorb,
    /// Per head, from the mixed latent to its value.
    ValueUp,
    ConvIn,
    ConvInBias,
    Conv,
    ConvBias,
    ConvOut,
    ConvOutBias,
    DeltaQuery,
    DeltaKey,
    DeltaValue,
    DeltaQueryConv,
    DeltaKeyConv,
    DeltaValueConv,
    /// The write strength of a token.
    DeltaBeta,
    /// The decay's input, direct or through a low rank.
    DeltaDecay,
    DeltaDecayDown,
    DeltaDecayUp,
    DeltaDecayBias,
    /// Negative; its product with a step size is the state's log decay.
    DeltaRate,
    DeltaGate,
    DeltaGateDown,
    DeltaGateUp,
    DeltaNorm,
    DeltaOutput,
    MambaIn,
    MambaInBias,
    MambaConv,
    MambaConvBias,
    MambaStepBias,
    MambaRate,
    /// The share of x that bypasses the state.
    MambaSkip,
    MambaOutNorm,
    MambaOut,
    MambaOutBias,
    FeedForwardPreNorm,
    FeedForwardPreNormBias,
    FeedForwardPostNorm,
    FeedForwardPostNormBias,
    Gate,
    GateBias,
    Up,
    UpBias,
    Down,
    DownBias,
    ExpertsPreNorm,
    ExpertsPreNormBias,
    ExpertsPostNorm,
    ExpertsPostNormBias,
    Router,
    RouterBias,
    RouterInput,
    RouterCorrection,
    ExpertScale,
    ExpertGate,
    ExpertGateBias,
    ExpertUp,
    ExpertUpBias,
    ExpertDown,
    ExpertDownBias,
    SharedRouter,
    SharedGate,
    SharedUp,
    SharedDown,
    /// Over the sum of a block's branches.
    SumPostNorm,
    PerLayerGate,
    PerLayerOutput,
    PerLayerPostNorm,
    LayerScale,
}

use LayerRole::*;

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Layer(layer, role) => write!(f, "layer {layer} {role:?}"),
            Role::Vision(role) => write!(f, "vision {role:?}"),
            role => write!(f, "{role:?}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Matrix {
        rows: usize,
        cols: usize,
    },
    /// Matrices of one shape: an expert's each, or a head's each.
    Stack {
        count: usize,
        rows: usize,
        cols: usize,
    },
    Vector {
        len: usize,
    },
    /// Vectors of one length, such as the experts' biases; bound one after another.
    Vectors {
        count: usize,
        len: usize,
    },
    /// A causal convolution's weights per channel: a vector of `channels * kernel` whose shape
    /// depends on the format.
    Conv {
        channels: usize,
        kernel: usize,
    },
}

impl Kind {
    /// How many matrices or vectors the role holds.
    pub fn count(self) -> usize {
        match self {
            Kind::Stack { count, .. } | Kind::Vectors { count, .. } => count,
            Kind::Matrix { .. } | Kind::Vector { .. } | Kind::Conv { .. } => 1,
        }
    }

    /// Rows of each matrix, values of each vector.
    pub fn rows(self) -> usize {
        match self {
            Kind::Matrix { rows, .. } | Kind::Stack { rows, .. } => rows,
            Kind::Vector { len } | Kind::Vectors { len, .. } => len,
            Kind::Conv { channels, .. } => channels,
        }
    }

    /// Values in each row.
    pub fn cols(self) -> usize {
        match self {
            Kind::Matrix { cols, .. } | Kind::Stack { cols, .. } => cols,
            Kind::Vector { .. } | Kind::Vectors { .. } => 1,
            Kind::Conv { kernel, .. } => kernel,
        }
    }
}

const BIASES: &[(LayerRole, LayerRole)] = &[
    (MixerPreNorm, MixerPreNormBias),
    (MixerPostNorm, MixerPostNormBias),
    (Query, QueryBias),
    (Key, KeyBias),
    (Value, ValueBias),
    (Output, OutputBias),
    (OutputGate, OutputGateBias),
    (QueryNorm, QueryNormBias),
    (KeyNorm, KeyNormBias),
    (QueryDown, QueryDownBias),
    (Latent, LatentBias),
    (RopeKey, RopeKeyBias),
    (ConvIn, ConvInBias),
    (Conv, ConvBias),
    (ConvOut, ConvOutBias),
    (MambaIn, MambaInBias),
    (MambaConv, MambaConvBias),
    (MambaOut, MambaOutBias),
    (FeedForwardPreNorm, FeedForwardPreNormBias),
    (FeedForwardPostNorm, FeedForwardPostNormBias),
    (ExpertsPreNorm, ExpertsPreNormBias),
    (ExpertsPostNorm, ExpertsPostNormBias),
    (Gate, GateBias),
    (Up, UpBias),
    (Down, DownBias),
    (Router, RouterBias),
    (ExpertGate, ExpertGateBias),
    (ExpertUp, ExpertUpBias),
    (ExpertDown, ExpertDownBias),
];

impl LayerRole {
    /// The matrix or norm whose bias this is.
    pub fn biased(self) -> Option<LayerRole> {
        let mut pairs = BIASES.iter();
        pairs.find(|(_, bias)| *bias == self).map(|(of, _)| *of)
    }

    /// The bias that may go with this matrix, norm or convolution.
    pub fn bias(self) -> Option<LayerRole> {
        let mut pairs = BIASES.iter();
        pairs.find(|(of, _)| *of == self).map(|(_, bias)| *bias)
    }

    /// Whether this is a norm that a family may store as `weight - 1`; norms over a recurrent
    /// mixer's output are never stored so.
    pub fn is_stream_norm(self) -> bool {
        matches!(
            self,
            MixerPreNorm
                | MixerPostNorm
                | QueryNorm
                | KeyNorm
                | FeedForwardPreNorm
                | FeedForwardPostNorm
                | ExpertsPreNorm
                | ExpertsPostNorm
                | SumPostNorm
                | PerLayerPostNorm
        )
    }
}

/// The roles of a branch's pre-norm and post-norm.
pub fn norm_roles(inner: &Inner) -> (LayerRole, LayerRole) {
    match inner {
        Inner::Mixer(_) => (MixerPreNorm, MixerPostNorm),
        Inner::FeedForward(FeedForward::Dense(_)) => (FeedForwardPreNorm, FeedForwardPostNorm),
        Inner::FeedForward(FeedForward::Experts(_)) => (ExpertsPreNorm, ExpertsPostNorm),
        Inner::FeedForward(FeedForward::PerLayerInput { .. }) => {
            // It has no pre-norm; the name is never looked up.
            (PerLayerPostNorm, PerLayerPostNorm)
        }
    }
}

impl Role {
    /// Whether it is a norm of the stream, or a bias of attention, feed-forward or head: a vector
    /// that is applied to each token by itself, and that adapters replace.
    pub fn is_token_vector(self) -> bool {
        match self {
            Role::FinalNorm | Role::FinalNormBias | Role::HeadBias => true,
            Role::Layer(_, role) => {
                let of = role.biased().unwrap_or(role);
                let matrix = matches!(
                    of,
                    Query | Key | Value | OutputGate | Output | Gate | Up | Down
                );
                of.is_stream_norm() || (matrix && of != role)
            }
            _ => false,
        }
    }
}

impl ModelSpec {
    /// Every role of the text model, with its shape.
    pub fn roles(&self) -> Vec<(Role, Kind)> {
        roles(self)
    }
}

/// Every role that `spec` needs, with its shape.
pub(crate) fn roles(spec: &ModelSpec) -> Vec<(Role, Kind)> {
    let (vocab, hidden) = (spec.vocab_size, spec.hidden_size);
    let mut roles = vec![(Role::Embedding, matrix(vocab, hidden))];
    if let Some(positions) = spec.embedding.positions {
        roles.push((Role::Positions, matrix(positions, hidden)));
    }
    if let Some(inputs) = &spec.per_layer_inputs {
        let all = spec.layers.len() * inputs.dim;
        roles.push((Role::PerLayerEmbedding, matrix(inputs.vocab_size, all)));
        roles.push((Role::PerLayerProjection, matrix(all, hidden)));
        roles.push((Role::PerLayerNorm, vector(inputs.dim)));
    }
    if spec.final_norm.weight {
        roles.push((Role::FinalNorm, vector(hidden)));
    }
    if spec.final_norm.bias {
        roles.push((Role::FinalNormBias, vector(hidden)));
    }
    if !spec.head.tied {
        roles.push((Role::Head, matrix(vocab, hidden)));
    }
    if spec.head.bias {
        roles.push((Role::HeadBias, vector(vocab)));
    }
    roles.extend(rope_factors(spec));
    for (index, layer) in spec.layers.iter().enumerate() {
        let of_layer = layer_roles(layer, hidden).into_iter();
        roles.extend(of_layer.map(|(role, kind)| (Role::Layer(index, role), kind)));
    }
    roles
}

fn rope_factors(spec: &ModelSpec) -> Vec<(Role, Kind)> {
    let ropes = spec.mixers().filter_map(|(_, mixer)| mixer.rope());
    let mut roles = Vec::new();
    for rope in ropes {
        let carried: &[Role] = match rope.scaling {
            RopeScaling::Tensor => &[Role::RopeFactors],
            RopeScaling::LongTensor { .. } => &[Role::RopeFactorsShort, Role::RopeFactorsLong],
            _ => &[],
        };
        for role in carried {
            let entry = (*role, vector(rope.dims / 2));
            if !roles.contains(&entry) {
                roles.push(entry);
            }
        }
    }
    roles
}

pub(crate) fn layer_roles(layer: &Layer, hidden: usize) -> Vec<(LayerRole, Kind)> {
    let mut list = List::default();
    for block in &layer.blocks {
        for branch in &block.branches {
            list.branch(branch, hidden);
        }
        list.norm(SumPostNorm, block.post_norm.as_ref(), hidden);
    }
    list.add(layer.scaled, LayerScale, vector(1));
    list.0
}

#[derive(Default)]
struct List(Vec<(LayerRole, Kind)>);

impl List {
    /// Parallel branches may name a role twice; it is one tensor.
    fn add(&mut self, present: bool, role: LayerRole, kind: Kind) {
        if present && !self.0.contains(&(role, kind)) {
            self.0.push((role, kind));
        }
    }

    fn norm(&mut self, role: LayerRole, norm: Option<&Norm>, len: usize) {
        let (weight, bias) = norm.map_or((false, false), |norm| (norm.weight, norm.bias));
        self.add(weight, role, vector(len));
        if let Some(bias_role) = role.bias() {
            self.add(bias, bias_role, vector(len));
        }
    }

    fn branch(&mut self, branch: &Branch, hidden: usize) {
        let (pre, post) = norm_roles(&branch.inner);
        self.norm(pre, branch.pre_norm.as_ref(), hidden);
        match &branch.inner {
            Inner::Mixer(Mixer::Attention(attention)) => self.attention(attention, hidden),
            Inner::Mixer(Mixer::Latent(latent)) => self.latent(latent, hidden),
            Inner::Mixer(Mixer::ShortConv(conv)) => self.short_conv(conv, hidden),
            Inner::Mixer(Mixer::DeltaRule(delta)) => self.delta_rule(delta, hidden),
            Inner::Mixer(Mixer::Mamba2(mamba)) => self.mamba2(mamba, hidden),
            Inner::FeedForward(FeedForward::Dense(dense)) => {
                self.dense(dense, hidden, [Gate, Up, Down]);
                self.add(dense.bias && dense.gated, GateBias, vector(dense.size));
                self.add(dense.bias, UpBias, vector(dense.size));
                self.add(dense.bias, DownBias, vector(hidden));
            }
            Inner::FeedForward(FeedForward::Experts(experts)) => self.experts(experts, hidden),
            Inner::FeedForward(FeedForward::PerLayerInput { dim, .. }) => {
                self.add(true, PerLayerGate, matrix(*dim, hidden));
                self.add(true, PerLayerOutput, matrix(hidden, *dim));
            }
        }
        self.norm(post, branch.post_norm.as_ref(), hidden);
    }

    fn attention(&mut self, attention: &Attention, hidden: usize) {
        let (query, key, value) = (
            attention.query_len(),
            attention.key_len(),
            attention.value_len(),
        );
        let own = !matches!(attention.kv, KvSource::Layer(_));
        let own_value = attention.kv == KvSource::Own;
        self.add(true, Query, matrix(query, hidden));
        self.add(own, Key, matrix(key, hidden));
        self.add(own_value, Value, matrix(value, hidden));
        self.add(attention.qkv_bias, QueryBias, vector(query));
        self.add(attention.qkv_bias && own, KeyBias, vector(key));
        self.add(attention.qkv_bias && own_value, ValueBias, vector(value));
        let gate = matrix(attention.mixed_len(), hidden);
        self.add(attention.output_gate, OutputGate, gate);
        let gate_bias = attention.output_gate && attention.gate_bias;
        self.add(gate_bias, OutputGateBias, vector(attention.mixed_len()));
        self.add(true, Output, matrix(hidden, attention.mixed_len()));
        self.add(attention.output_bias, OutputBias, vector(hidden));
        if let Some(qk) = &attention.qk_norm {
            let (of_query, of_key) = match qk.span {
                QkSpan::Head => (attention.head_dim, attention.head_dim),
                QkSpan::HeadWeights | QkSpan::AllHeads => (query, key),
            };
            self.norm(QueryNorm, Some(&qk.norm), of_query);
            self.norm(KeyNorm, own.then_some(&qk.norm), of_key);
        }
        self.add(attention.sinks, Sinks, vector(attention.heads));
    }

    fn latent(&mut self, latent: &LatentAttention, hidden: usize) {
        if let Some(rank) = latent.query_rank {
            self.add(true, QueryDown, matrix(rank, hidden));
            self.add(latent.down_bias, QueryDownBias, vector(rank));
            self.norm(QueryDownNorm, Some(&latent.norm), rank);
            self.add(true, QueryUp, matrix(latent.query_len(), rank));
        } else {
            self.add(true, Query, matrix(latent.query_len(), hidden));
        }
        self.add(true, Latent, matrix(latent.latent_dim, hidden));
        self.add(true, RopeKey, matrix(latent.rope_dim, hidden));
        self.add(latent.down_bias, LatentBias, vector(latent.latent_dim));
        self.add(latent.down_bias, RopeKeyBias, vector(latent.rope_dim));
        self.norm(LatentNorm, Some(&latent.norm), latent.latent_dim);
        let per_head = |rows, cols| Kind::Stack {
            count: latent.heads,
            rows,
            cols,
        };
        let absorb = per_head(latent.latent_dim, latent.nope_dim);
        self.add(true, KeyAbsorb, absorb);
        self.add(true, ValueUp, per_head(latent.value_dim, latent.latent_dim));
        self.add(true, Output, matrix(hidden, latent.mixed_len()));
        self.add(latent.output_bias, OutputBias, vector(hidden));
    }

    fn short_conv(&mut self, conv: &ShortConv, hidden: usize) {
        self.add(true, ConvIn, matrix(3 * conv.channels, hidden));
        self.add(true, Conv, convolution(conv.channels, conv.kernel));
        self.add(true, ConvOut, matrix(hidden, conv.channels));
        self.add(conv.bias, ConvInBias, vector(3 * conv.channels));
        self.add(conv.bias, ConvBias, vector(conv.channels));
        self.add(conv.bias, ConvOutBias, vector(hidden));
    }

    fn delta_rule(&mut self, delta: &DeltaRule, hidden: usize) {
        let (key, value, heads) = (delta.key_len(), delta.value_len(), delta.value_heads);
        self.add(true, DeltaQuery, matrix(key, hidden));
        self.add(true, DeltaKey, matrix(key, hidden));
        self.add(true, DeltaValue, matrix(value, hidden));
        self.add(true, DeltaQueryConv, convolution(key, delta.kernel));
        self.add(true, DeltaKeyConv, convolution(key, delta.kernel));
        self.add(true, DeltaValueConv, convolution(value, delta.kernel));
        self.add(true, DeltaBeta, matrix(heads, hidden));
        match delta.decay {
            Decay::PerHead => {
                self.add(true, DeltaDecay, matrix(heads, hidden));
                self.add(true, DeltaDecayBias, vector(heads));
            }
            Decay::PerChannel { rank } => {
                let channels = heads * delta.key_dim;
                self.add(true, DeltaDecayDown, matrix(rank, hidden));
                self.add(true, DeltaDecayUp, matrix(channels, rank));
                self.add(true, DeltaDecayBias, vector(channels));
            }
        }
        self.add(true, DeltaRate, vector(heads));
        match delta.gate {
            DeltaOutputGate::Silu => self.add(true, DeltaGate, matrix(value, hidden)),
            DeltaOutputGate::LowRankSigmoid { rank } => {
                self.add(true, DeltaGateDown, matrix(rank, hidden));
                self.add(true, DeltaGateUp, matrix(value, rank));
            }
        }
        self.norm(DeltaNorm, Some(&delta.norm), delta.value_dim);
        self.add(true, DeltaOutput, matrix(hidden, value));
    }

    fn mamba2(&mut self, mamba: &Mamba2, hidden: usize) {
        let (inner, conv) = (mamba.inner_len(), mamba.conv_len());
        let bias = mamba.projection_bias;
        self.add(true, MambaIn, matrix(mamba.projected_len(), hidden));
        self.add(bias, MambaInBias, vector(mamba.projected_len()));
        self.add(true, MambaConv, convolution(conv, mamba.kernel));
        self.add(mamba.conv_bias, MambaConvBias, vector(conv));
        self.add(true, MambaStepBias, vector(mamba.heads));
        self.add(true, MambaRate, vector(mamba.heads));
        self.add(true, MambaSkip, vector(mamba.heads));
        if let MambaNorm::AfterGate { norm, .. } | MambaNorm::BeforeGate { norm, .. } = &mamba.norm
        {
            self.norm(MambaOutNorm, Some(norm), inner);
        }
        self.add(true, MambaOut, matrix(hidden, inner));
        self.add(bias, MambaOutBias, vector(hidden));
    }

    fn dense(&mut self, dense: &Dense, hidden: usize, [gate, up, down]: [LayerRole; 3]) {
        self.add(dense.gated, gate, matrix(dense.size, hidden));
        self.add(true, up, matrix(dense.size, hidden));
        self.add(true, down, matrix(hidden, dense.size));
    }

    fn experts(&mut self, experts: &Experts, hidden: usize) {
        let (count, expert, router) = (experts.count, &experts.expert, &experts.router);
        self.add(true, Router, matrix(count, hidden));
        self.add(router.bias, RouterBias, vector(count));
        let reads_apart = router.input.is_some_and(|input| input.norm.weight);
        self.add(reads_apart, RouterInput, vector(hidden));
        self.add(router.correction, RouterCorrection, vector(count));
        self.add(router.expert_scale, ExpertScale, vector(count));
        let stack = |rows, cols| Kind::Stack { count, rows, cols };
        let size = expert.size;
        self.add(expert.gated, ExpertGate, stack(size, hidden));
        self.add(true, ExpertUp, stack(size, hidden));
        self.add(true, ExpertDown, stack(hidden, size));
        let gate_bias = expert.bias && expert.gated;
        let vectors = |len| Kind::Vectors { count, len };
        self.add(gate_bias, ExpertGateBias, vectors(size));
        self.add(expert.bias, ExpertUpBias, vectors(size));
        self.add(expert.bias, ExpertDownBias, vectors(hidden));
        if let Some(shared) = &experts.shared {
            self.dense(&shared.dense, hidden, [SharedGate, SharedUp, SharedDown]);
            self.add(shared.gated, SharedRouter, matrix(1, hidden));
        }
    }
}

pub(crate) fn matrix(rows: usize, cols: usize) -> Kind {
    Kind::Matrix { rows, cols }
}

pub(crate) fn vector(len: usize) -> Kind {
    Kind::Vector { len }
}

fn convolution(channels: usize, kernel: usize) -> Kind {
    Kind::Conv { channels, kernel }
}
