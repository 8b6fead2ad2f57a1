//! A tower's weights on the device.

use loquat_session::OpenError;
use loquat_spec::{
    BlockHalf, ClampBound, Dense, LayerRole as R, Norm, PatchPositions, Projector, ProjectorStep,
    Role, StepTensor, VisionRole as V, VisionSpec,
};

use crate::lower::WeightLoader;
use crate::ops::{Address, Format, MatrixRef};

pub struct TowerWeights {
    pub patch: TowerLinear,
    /// One row.
    pub class_token: Option<MatrixRef>,
    /// All rows of the tables, one table after another.
    pub positions: Option<MatrixRef>,
    pub patch_norm: Option<TowerNorm>,
    pub embedding_norm: Option<TowerNorm>,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Option<TowerNorm>,
    /// The main one, then those of the spec's deepstack.
    pub projectors: Vec<Vec<StepWeights>>,
    /// One row.
    pub row_end: Option<MatrixRef>,
}

/// A matrix with its bias and the bounds of its input and output.
#[derive(Clone, Copy)]
pub struct TowerLinear {
    pub matrix: MatrixRef,
    pub bias: Address,
    pub clamp: Option<ClampBounds>,
}

/// Lower and upper bounds.
#[derive(Clone, Copy)]
pub struct ClampBounds {
    pub input: [f32; 2],
    pub output: [f32; 2],
}

#[derive(Clone, Copy)]
pub struct TowerNorm {
    pub spec: Norm,
    pub weight: Address,
    pub bias: Address,
}

/// `x += post(attention(pre(x))); x += post(mlp(pre(x)))`
pub struct LayerWeights {
    pub attention_norm: TowerNorm,
    pub query: TowerLinear,
    pub key: TowerLinear,
    pub value: TowerLinear,
    pub query_norm: Option<TowerNorm>,
    pub key_norm: Option<TowerNorm>,
    pub value_norm: Option<TowerNorm>,
    pub output: TowerLinear,
    pub attention_end: BranchEnd,
    pub mlp_norm: TowerNorm,
    pub gate: Option<TowerLinear>,
    pub up: TowerLinear,
    pub down: TowerLinear,
    pub mlp_end: BranchEnd,
}

/// What a branch goes through before it is added to the stream.
#[derive(Clone, Copy)]
pub struct BranchEnd {
    pub norm: Option<TowerNorm>,
    /// A factor per channel; may be none.
    pub gain: Address,
}

/// A step of a projector with its weights.
pub enum StepWeights {
    /// Steps without weights.
    Plain,
    /// `(x + negative_bias) * scale`
    Standardize {
        negative_bias: Address,
        scale: Address,
    },
    Norm(TowerNorm),
    Linear(TowerLinear),
    /// `down(activation(gate(x)) * up(x))`
    Gated {
        dense: Dense,
        gate: TowerLinear,
        up: TowerLinear,
        down: TowerLinear,
    },
}

impl TowerWeights {
    pub fn load(vision: &VisionSpec, loader: &mut WeightLoader<'_>) -> Result<Self, OpenError> {
        let mut loader = TowerLoader { vision, loader };
        let layers = 0..vision.layers.len();
        let layers = layers
            .map(|layer| loader.layer(layer))
            .collect::<Result<_, _>>()?;
        let stacked = vision.deepstack.iter().map(|stacked| &stacked.projector);
        let projectors = [&vision.projector].into_iter().chain(stacked);
        let projectors = projectors
            .enumerate()
            .map(|(index, projector)| loader.projector(index, projector))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            patch: loader.linear(V::Patch, Some(V::PatchBias))?,
            class_token: loader.row(V::ClassToken)?,
            positions: loader.positions()?,
            patch_norm: loader.norm(vision.patch_norm, V::PatchNorm, V::PatchNormBias)?,
            embedding_norm: loader.norm(
                vision.embedding_norm,
                V::EmbeddingNorm,
                V::EmbeddingNormBias,
            )?,
            layers,
            final_norm: loader.norm(vision.final_norm, V::FinalNorm, V::FinalNormBias)?,
            projectors,
            row_end: loader.row(V::RowEnd)?,
        })
    }
}

struct TowerLoader<'a, 'w> {
    vision: &'a VisionSpec,
    loader: &'a mut WeightLoader<'w>,
}

impl TowerLoader<'_, '_> {
    fn optional(&mut self, role: V) -> Result<Address, OpenError> {
        self.loader.optional(Role::Vision(role))
    }

    /// With its bias, if the checkpoint has one.
    fn linear(&mut self, matrix: V, bias: Option<V>) -> Result<TowerLinear, OpenError> {
        Ok(TowerLinear {
            matrix: self.loader.matrix(Role::Vision(matrix))?,
            bias: match bias {
                Some(role) => self.optional(role)?,
                None => Address::NONE,
            },
            clamp: None,
        })
    }

    /// A vector as a matrix of one row; `None` if the model does not have it.
    fn row(&mut self, role: V) -> Result<Option<MatrixRef>, OpenError> {
        let values = self.optional(role)?;
        let cols = self.loader.len(Role::Vision(role)) as u32;
        Ok((!values.is_none()).then_some(MatrixRef {
            values,
            rows: 1,
            cols,
            format: Format::F32,
            reserved: 0,
        }))
    }

    fn positions(&mut self) -> Result<Option<MatrixRef>, OpenError> {
        let role = Role::Vision(V::Positions);
        Ok(match self.vision.positions {
            None => None,
            Some(PatchPositions::PerAxis { .. }) => {
                let tables = self.loader.stack(role)?;
                let rows = 2 * tables.rows;
                Some(MatrixRef { rows, ..tables })
            }
            Some(_) => Some(self.loader.matrix(role)?),
        })
    }

    fn norm(
        &mut self,
        spec: Option<Norm>,
        weight: V,
        bias: V,
    ) -> Result<Option<TowerNorm>, OpenError> {
        let norm = spec.map(|spec| self.required_norm(spec, weight, bias));
        norm.transpose()
    }

    fn required_norm(&mut self, spec: Norm, weight: V, bias: V) -> Result<TowerNorm, OpenError> {
        let mut vector = |present: bool, role: V| {
            if present {
                self.loader.vector(Role::Vision(role))
            } else {
                Ok(Address::NONE)
            }
        };
        Ok(TowerNorm {
            spec,
            weight: vector(spec.weight, weight)?,
            bias: vector(spec.bias, bias)?,
        })
    }

    fn layer_norm(&mut self, layer: usize, spec: Norm, role: R) -> Result<TowerNorm, OpenError> {
        // A norm whose role has no bias has none in the spec either.
        let bias = role.bias().unwrap_or(role);
        self.required_norm(spec, V::Layer(layer, role), V::Layer(layer, bias))
    }

    fn head_norm(
        &mut self,
        layer: usize,
        spec: Option<Norm>,
        role: R,
    ) -> Result<Option<TowerNorm>, OpenError> {
        let norm = spec.map(|spec| self.layer_norm(layer, spec, role));
        norm.transpose()
    }

    fn layer_linear(&mut self, layer: usize, role: R) -> Result<TowerLinear, OpenError> {
        let bias = role.bias().map(|bias| V::Layer(layer, bias));
        let linear = self.linear(V::Layer(layer, role), bias)?;
        let clamp = if self.vision.block.clamped {
            let bound = |bound| {
                let role = Role::Vision(V::Clamp(layer, role, bound));
                self.loader.number(role)
            };
            Some(ClampBounds {
                input: [bound(ClampBound::InputMin)?, bound(ClampBound::InputMax)?],
                output: [bound(ClampBound::OutputMin)?, bound(ClampBound::OutputMax)?],
            })
        } else {
            None
        };
        Ok(TowerLinear { clamp, ..linear })
    }

    fn branch_end(
        &mut self,
        layer: usize,
        norm: R,
        half: BlockHalf,
    ) -> Result<BranchEnd, OpenError> {
        let block = &self.vision.block;
        let post = block.sandwich.then_some(block.norm);
        Ok(BranchEnd {
            norm: self.head_norm(layer, post, norm)?,
            gain: self.optional(V::Gain(layer, half))?,
        })
    }

    fn layer(&mut self, layer: usize) -> Result<LayerWeights, OpenError> {
        let block = &self.vision.block;
        Ok(LayerWeights {
            attention_norm: self.layer_norm(layer, block.norm, R::MixerPreNorm)?,
            query: self.layer_linear(layer, R::Query)?,
            key: self.layer_linear(layer, R::Key)?,
            value: self.layer_linear(layer, R::Value)?,
            query_norm: self.head_norm(layer, block.qk_norm, R::QueryNorm)?,
            key_norm: self.head_norm(layer, block.qk_norm, R::KeyNorm)?,
            // It never has a weight, so the role does not matter.
            value_norm: self.head_norm(layer, block.value_norm, R::KeyNorm)?,
            output: self.layer_linear(layer, R::Output)?,
            attention_end: self.branch_end(layer, R::MixerPostNorm, BlockHalf::Attention)?,
            mlp_norm: self.layer_norm(layer, block.norm, R::FeedForwardPreNorm)?,
            gate: if block.mlp.gated {
                Some(self.layer_linear(layer, R::Gate)?)
            } else {
                None
            },
            up: self.layer_linear(layer, R::Up)?,
            down: self.layer_linear(layer, R::Down)?,
            mlp_end: self.branch_end(layer, R::FeedForwardPostNorm, BlockHalf::FeedForward)?,
        })
    }

    fn projector(
        &mut self,
        index: usize,
        projector: &Projector,
    ) -> Result<Vec<StepWeights>, OpenError> {
        let steps = projector.steps.iter().enumerate();
        steps
            .map(|(step, kind)| self.step(index, step, kind))
            .collect()
    }

    fn step(
        &mut self,
        projector: usize,
        step: usize,
        kind: &ProjectorStep,
    ) -> Result<StepWeights, OpenError> {
        let role = |tensor| V::Step {
            projector,
            step,
            tensor,
        };
        Ok(match kind {
            ProjectorStep::Merge { .. }
            | ProjectorStep::AveragePool { .. }
            | ProjectorStep::Scale(_)
            | ProjectorStep::Activation(_) => StepWeights::Plain,
            ProjectorStep::Standardize => StepWeights::Standardize {
                negative_bias: self.loader.negative(Role::Vision(role(StepTensor::Bias)))?,
                scale: self.loader.vector(Role::Vision(role(StepTensor::Scale)))?,
            },
            ProjectorStep::Norm(norm) => {
                let (weight, bias) = (role(StepTensor::Weight), role(StepTensor::Bias));
                StepWeights::Norm(self.required_norm(*norm, weight, bias)?)
            }
            ProjectorStep::Linear { .. } => {
                let bias = Some(role(StepTensor::Bias));
                StepWeights::Linear(self.linear(role(StepTensor::Weight), bias)?)
            }
            ProjectorStep::Gated(dense) => StepWeights::Gated {
                dense: *dense,
                gate: self.linear(role(StepTensor::Gate), None)?,
                up: self.linear(role(StepTensor::Up), None)?,
                down: self.linear(role(StepTensor::Down), None)?,
            },
        })
    }
}
