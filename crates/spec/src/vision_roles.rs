//! The tensors that a [`VisionSpec`] needs.

use crate::model::Norm;
use crate::roles::{Kind, LayerRole, matrix, vector};
use crate::vision::{PatchPositions, Projector, ProjectorStep, VisionSpec};

/// The purpose of a tensor of the tower or of a projector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum VisionRole {
    Patch,
    PatchBias,
    ClassToken,
    Positions,
    PatchNorm,
    PatchNormBias,
    EmbeddingNorm,
    EmbeddingNormBias,
    FinalNorm,
    FinalNormBias,
    /// Ends a row of tiles, or a video.
    RowEnd,
    Layer(usize, LayerRole),
    /// The factors of what half a layer adds.
    Gain(usize, BlockHalf),
    /// A bound of the values that a layer's matrix reads or writes.
    Clamp(usize, LayerRole, ClampBound),
    /// A tensor of a projector's step. Projector 0 is the main one, the others are those of
    /// [`VisionSpec::deepstack`].
    Step {
        projector: usize,
        step: usize,
        tensor: StepTensor,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockHalf {
    Attention,
    FeedForward,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClampBound {
    InputMin,
    InputMax,
    OutputMin,
    OutputMax,
}

impl ClampBound {
    pub const ALL: [Self; 4] = [
        Self::InputMin,
        Self::InputMax,
        Self::OutputMin,
        Self::OutputMax,
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StepTensor {
    Weight,
    Bias,
    Gate,
    Up,
    Down,
    Scale,
}

/// The matrices of a layer.
pub(crate) const MATRICES: [LayerRole; 7] = [
    LayerRole::Query,
    LayerRole::Key,
    LayerRole::Value,
    LayerRole::Output,
    LayerRole::Gate,
    LayerRole::Up,
    LayerRole::Down,
];

impl VisionSpec {
    /// Every role that the tower and its projectors need, with its shape.
    pub(crate) fn roles(&self, text_hidden: usize) -> Vec<(VisionRole, Kind)> {
        use VisionRole::*;
        let hidden = self.hidden_size;
        let mut list = List::default();
        list.add(true, Patch, matrix(hidden, self.patch.values()));
        list.add(self.patch.bias, PatchBias, vector(hidden));
        list.add(self.class_token.is_some(), ClassToken, vector(hidden));
        match self.positions {
            Some(PatchPositions::Fixed { rows }) => {
                list.add(true, Positions, matrix(rows, hidden));
            }
            Some(PatchPositions::Sampled { side, .. }) => {
                list.add(true, Positions, matrix(side * side, hidden));
            }
            Some(PatchPositions::PerAxis { len }) => {
                let tables = Kind::Stack {
                    count: 2,
                    rows: len,
                    cols: hidden,
                };
                list.add(true, Positions, tables);
            }
            None => {}
        }
        list.norm(self.patch_norm.as_ref(), PatchNorm, PatchNormBias, hidden);
        let norm = self.embedding_norm.as_ref();
        list.norm(norm, EmbeddingNorm, EmbeddingNormBias, hidden);
        list.norm(self.final_norm.as_ref(), FinalNorm, FinalNormBias, hidden);
        for layer in 0..self.layers.len() {
            self.layer_roles(layer, &mut list);
        }
        let stacked = self.deepstack.iter().map(|stacked| &stacked.projector);
        for (index, projector) in [&self.projector].into_iter().chain(stacked).enumerate() {
            projector_roles(projector, index, hidden, &mut list);
        }
        let tiles = matches!(self.arrangement, crate::vision::Arrangement::Tiles { .. });
        list.add(tiles, RowEnd, vector(text_hidden));
        list.0
    }

    fn layer_roles(&self, layer: usize, list: &mut List) {
        use LayerRole::*;
        let (block, hidden) = (&self.block, self.hidden_size);
        let heads = block.heads * block.head_dim;
        let mut add = |present: bool, role: LayerRole, kind: Kind| {
            list.add(present, VisionRole::Layer(layer, role), kind);
        };
        for (role, bias, present) in [
            (MixerPreNorm, MixerPreNormBias, true),
            (MixerPostNorm, MixerPostNormBias, block.sandwich),
            (FeedForwardPreNorm, FeedForwardPreNormBias, true),
            (FeedForwardPostNorm, FeedForwardPostNormBias, block.sandwich),
        ] {
            add(present && block.norm.weight, role, vector(hidden));
            add(present && block.norm.bias, bias, vector(hidden));
        }
        for (role, bias) in [(Query, QueryBias), (Key, KeyBias), (Value, ValueBias)] {
            add(true, role, matrix(heads, hidden));
            add(block.qkv_bias, bias, vector(heads));
        }
        add(true, Output, matrix(hidden, heads));
        add(block.output_bias, OutputBias, vector(hidden));
        let qk = block.qk_norm.is_some_and(|norm| norm.weight);
        add(qk, QueryNorm, vector(block.head_dim));
        add(qk, KeyNorm, vector(block.head_dim));
        let mlp = &block.mlp;
        add(mlp.gated, Gate, matrix(mlp.size, hidden));
        add(mlp.gated && mlp.bias, GateBias, vector(mlp.size));
        add(true, Up, matrix(mlp.size, hidden));
        add(mlp.bias, UpBias, vector(mlp.size));
        add(true, Down, matrix(hidden, mlp.size));
        add(mlp.bias, DownBias, vector(hidden));
        for half in [BlockHalf::Attention, BlockHalf::FeedForward] {
            list.add(block.gains, VisionRole::Gain(layer, half), vector(hidden));
        }
        for role in MATRICES {
            let present = block.clamped && (role != Gate || mlp.gated);
            for bound in ClampBound::ALL {
                let role = VisionRole::Clamp(layer, role, bound);
                list.add(present, role, vector(1));
            }
        }
    }
}

fn projector_roles(projector: &Projector, index: usize, hidden: usize, list: &mut List) {
    for (step, (kind, input, output)) in projector.sized(hidden).into_iter().enumerate() {
        let mut add = |present: bool, tensor: StepTensor, kind: Kind| {
            let role = VisionRole::Step {
                projector: index,
                step,
                tensor,
            };
            list.add(present, role, kind);
        };
        match kind {
            ProjectorStep::Linear { bias, .. } => {
                add(true, StepTensor::Weight, matrix(output, input));
                add(bias, StepTensor::Bias, vector(output));
            }
            ProjectorStep::Norm(norm) => {
                add(norm.weight, StepTensor::Weight, vector(input));
                add(norm.bias, StepTensor::Bias, vector(input));
            }
            ProjectorStep::Standardize => {
                add(true, StepTensor::Bias, vector(input));
                add(true, StepTensor::Scale, vector(input));
            }
            ProjectorStep::Gated(dense) => {
                add(true, StepTensor::Gate, matrix(dense.size, input));
                add(true, StepTensor::Up, matrix(dense.size, input));
                add(true, StepTensor::Down, matrix(input, dense.size));
            }
            ProjectorStep::Merge { .. }
            | ProjectorStep::AveragePool { .. }
            | ProjectorStep::Scale(_)
            | ProjectorStep::Activation(_) => {}
        }
    }
}

#[derive(Default)]
struct List(Vec<(VisionRole, Kind)>);

impl List {
    fn add(&mut self, present: bool, role: VisionRole, kind: Kind) {
        if present {
            self.0.push((role, kind));
        }
    }

    fn norm(&mut self, norm: Option<&Norm>, weight: VisionRole, bias: VisionRole, len: usize) {
        let Some(norm) = norm else {
            return;
        };
        self.add(norm.weight, weight, vector(len));
        self.add(norm.bias, bias, vector(len));
    }
}
