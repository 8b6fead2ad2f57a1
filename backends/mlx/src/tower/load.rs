//! Loads a tower's weights.

use loquat_session::OpenError;
use loquat_spec::{
    Activation, BlockHalf, ClampBound, LayerRole as R, Norm as NormSpec, Projector, ProjectorStep,
    Role, StepTensor, VisionRole as V, VisionSpec,
};

use super::project::{GatedStep, LoadedStep};
use super::{BranchEnd, Clamp, Matrix, Tower, TowerLayer};
use crate::array::Array;
use crate::blocks::Function;
use crate::linear::Linear;
use crate::loader::Loader;
use crate::norm::Norm;

struct TowerLoader<'a> {
    loader: &'a Loader<'a>,
    vision: &'a VisionSpec,
}

impl Tower {
    pub fn load(loader: &Loader, vision: &VisionSpec) -> Result<Self, OpenError> {
        let parts = TowerLoader { loader, vision };
        let layers = (0..vision.layers.len()).map(|index| parts.layer(index));
        let stacked = vision.deepstack.iter().enumerate();
        let deepstack =
            stacked.map(|(index, stacked)| parts.projector(index + 1, &stacked.projector));
        Ok(Self {
            spec: vision.clone(),
            dtype: loader.dtype,
            patch: parts.linear(V::Patch, Some(V::PatchBias))?,
            class_token: parts.row(V::ClassToken)?,
            positions: match vision.positions {
                Some(_) => Some(loader.joined_table(Role::Vision(V::Positions))?),
                None => None,
            },
            patch_norm: parts.norm(vision.patch_norm, V::PatchNorm, V::PatchNormBias)?,
            embedding_norm: parts.norm(
                vision.embedding_norm,
                V::EmbeddingNorm,
                V::EmbeddingNormBias,
            )?,
            layers: layers.collect::<Result<_, _>>()?,
            final_norm: parts.norm(vision.final_norm, V::FinalNorm, V::FinalNormBias)?,
            projector: parts.projector(0, &vision.projector)?,
            deepstack: deepstack.collect::<Result<_, _>>()?,
            row_end: parts.row(V::RowEnd)?,
        })
    }
}

impl TowerLoader<'_> {
    /// With its bias, if the checkpoint has one.
    fn linear(&self, matrix: V, bias: Option<V>) -> Result<Linear, OpenError> {
        self.loader
            .linear(Role::Vision(matrix), bias.map(Role::Vision))
    }

    fn optional(&self, role: V) -> Result<Option<Array>, OpenError> {
        self.loader.optional(Role::Vision(role))
    }

    /// A vector as [1, len].
    fn row(&self, role: V) -> Result<Option<Array>, OpenError> {
        let ops = self.loader.ops;
        let vector = self.optional(role)?;
        let row = vector.map(|vector| ops.reshape(&vector, &[1, -1]));
        Ok(row.transpose()?)
    }

    fn norm(&self, spec: Option<NormSpec>, weight: V, bias: V) -> Result<Option<Norm>, OpenError> {
        let bias = Some(Role::Vision(bias));
        let norm = spec.map(|spec| self.loader.norm(&spec, Role::Vision(weight), bias));
        norm.transpose()
    }

    fn layer_norm(&self, layer: usize, spec: NormSpec, role: R) -> Result<Norm, OpenError> {
        let of_layer = |role| Role::Vision(V::Layer(layer, role));
        let bias = role.bias().map(of_layer);
        self.loader.norm(&spec, of_layer(role), bias)
    }

    fn optional_norm(
        &self,
        layer: usize,
        spec: Option<NormSpec>,
        role: R,
    ) -> Result<Option<Norm>, OpenError> {
        spec.map(|spec| self.layer_norm(layer, spec, role))
            .transpose()
    }

    fn matrix(&self, layer: usize, role: R) -> Result<Matrix, OpenError> {
        let bias = role.bias().map(|bias| V::Layer(layer, bias));
        let bound = |bound| {
            self.loader
                .vector(Role::Vision(V::Clamp(layer, role, bound)))
        };
        let clamp = if self.vision.block.clamped {
            Some(Clamp {
                input: [bound(ClampBound::InputMin)?, bound(ClampBound::InputMax)?],
                output: [bound(ClampBound::OutputMin)?, bound(ClampBound::OutputMax)?],
            })
        } else {
            None
        };
        Ok(Matrix {
            linear: self.linear(V::Layer(layer, role), bias)?,
            clamp,
        })
    }

    fn branch_end(&self, layer: usize, norm: R, half: BlockHalf) -> Result<BranchEnd, OpenError> {
        let block = &self.vision.block;
        let post = Some(block.norm).filter(|_| block.sandwich);
        Ok(BranchEnd {
            norm: self.optional_norm(layer, post, norm)?,
            gain: self.optional(V::Gain(layer, half))?,
        })
    }

    fn activation(&self, activation: Activation) -> Result<Function, OpenError> {
        Ok(Function::new(
            self.loader.ops,
            activation,
            self.loader.dtype,
        )?)
    }

    fn layer(&self, index: usize) -> Result<TowerLayer, OpenError> {
        let block = &self.vision.block;
        Ok(TowerLayer {
            attention_norm: self.layer_norm(index, block.norm, R::MixerPreNorm)?,
            qkv: [
                self.matrix(index, R::Query)?,
                self.matrix(index, R::Key)?,
                self.matrix(index, R::Value)?,
            ],
            query_norm: self.optional_norm(index, block.qk_norm, R::QueryNorm)?,
            key_norm: self.optional_norm(index, block.qk_norm, R::KeyNorm)?,
            // It never has a weight, so the role does not matter.
            value_norm: self.optional_norm(index, block.value_norm, R::KeyNorm)?,
            output: self.matrix(index, R::Output)?,
            attention_end: self.branch_end(index, R::MixerPostNorm, BlockHalf::Attention)?,
            mlp_norm: self.layer_norm(index, block.norm, R::FeedForwardPreNorm)?,
            gate: if block.mlp.gated {
                Some(self.matrix(index, R::Gate)?)
            } else {
                None
            },
            up: self.matrix(index, R::Up)?,
            activation: self.activation(block.mlp.activation)?,
            down: self.matrix(index, R::Down)?,
            mlp_end: self.branch_end(index, R::FeedForwardPostNorm, BlockHalf::FeedForward)?,
        })
    }

    fn projector(&self, index: usize, projector: &Projector) -> Result<Vec<LoadedStep>, OpenError> {
        let steps = projector.steps.iter().enumerate();
        steps
            .map(|(step, kind)| self.step((index, step), kind))
            .collect()
    }

    fn step(
        &self,
        (projector, step): (usize, usize),
        kind: &ProjectorStep,
    ) -> Result<LoadedStep, OpenError> {
        let role = |tensor| V::Step {
            projector,
            step,
            tensor,
        };
        let (weight, bias) = (role(StepTensor::Weight), role(StepTensor::Bias));
        let vector = |tensor| self.loader.vector(Role::Vision(role(tensor)));
        Ok(match kind {
            ProjectorStep::Merge { side, values } => LoadedStep::Merge {
                side: *side,
                values: *values,
            },
            ProjectorStep::AveragePool { side } => LoadedStep::AveragePool { side: *side },
            ProjectorStep::Scale(scale) => LoadedStep::Scale(*scale),
            ProjectorStep::Activation(activation) => {
                LoadedStep::Activation(self.activation(*activation)?)
            }
            ProjectorStep::Standardize => LoadedStep::Standardize {
                bias: vector(StepTensor::Bias)?,
                scale: vector(StepTensor::Scale)?,
            },
            ProjectorStep::Norm(norm) => {
                let bias = Some(Role::Vision(bias));
                LoadedStep::Norm(self.loader.norm(norm, Role::Vision(weight), bias)?)
            }
            ProjectorStep::Linear { .. } => LoadedStep::Linear(self.linear(weight, Some(bias))?),
            ProjectorStep::Gated(dense) => LoadedStep::Gated(Box::new(GatedStep {
                gate: self.linear(role(StepTensor::Gate), None)?,
                up: self.linear(role(StepTensor::Up), None)?,
                activation: self.activation(dense.activation)?,
                down: self.linear(role(StepTensor::Down), None)?,
            })),
        })
    }
}
