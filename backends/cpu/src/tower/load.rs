//! Loads a tower's weights.

use loquat_session::loading::{matrix, stack, vector};
use loquat_session::{OpenError, Precision};
use loquat_spec::{
    BlockHalf, ClampBound, LayerRole as R, ModelSpec, Norm as NormSpec, PatchPositions, Projector,
    ProjectorStep, Role, StepTensor, VisionRole as V, VisionSpec,
};
use loquat_weights::{FileWatch, Weights};

use super::project::{GatedStep, LoadedMatrix, LoadedStep};
use super::{Clamp, Matrix, Tower, TowerLayer};
use crate::linear::{Linear, LinearWeights};
use crate::model::Norm;
use crate::pack::Packer;

struct Loader<'a, 'p> {
    vision: &'a VisionSpec,
    weights: &'a Weights,
    precision: Precision,
    packer: &'a mut Packer<'p>,
    files: &'a mut FileWatch,
}

impl Tower {
    /// `None` if the model has no tower. `files` receives those that are read in place.
    pub fn load(
        spec: &ModelSpec,
        weights: &Weights,
        precision: Precision,
        packer: &mut Packer<'_>,
        files: &mut FileWatch,
    ) -> Result<Option<Self>, OpenError> {
        let Some(vision) = &spec.vision else {
            return Ok(None);
        };
        let mut loader = Loader {
            vision,
            weights,
            precision,
            packer,
            files,
        };
        let layers = (0..vision.layers.len()).map(|index| loader.layer(index));
        let layers = layers.collect::<Result<_, _>>()?;
        let stacked = vision.deepstack.iter().enumerate();
        let deepstack = stacked
            .map(|(index, stacked)| loader.projector(index + 1, &stacked.projector))
            .collect::<Result<_, _>>()?;
        Ok(Some(Self {
            spec: vision.clone(),
            patch: loader.linear(V::Patch)?,
            patch_bias: loader.optional(V::PatchBias),
            class_token: loader.optional(V::ClassToken),
            positions: loader.positions()?,
            patch_norm: loader.norm(vision.patch_norm, (V::PatchNorm, V::PatchNormBias)),
            embedding_norm: loader.norm(
                vision.embedding_norm,
                (V::EmbeddingNorm, V::EmbeddingNormBias),
            ),
            layers,
            final_norm: loader.norm(vision.final_norm, (V::FinalNorm, V::FinalNormBias)),
            projector: loader.projector(0, &vision.projector)?,
            deepstack,
            row_end: loader.optional(V::RowEnd),
        }))
    }
}

impl Loader<'_, '_> {
    fn linear(&mut self, role: V) -> Result<Linear, OpenError> {
        let matrix = matrix(self.weights, Role::Vision(role))?;
        let linear = Linear::new(matrix, self.precision, self.packer)?;
        if matches!(**linear.weights(), LinearWeights::Plain(_)) {
            self.files.add(matrix);
        }
        Ok(linear)
    }

    fn optional(&self, role: V) -> Option<Vec<f32>> {
        self.weights.vector(Role::Vision(role)).map(<[f32]>::to_vec)
    }

    fn vector(&self, role: V) -> Result<Vec<f32>, OpenError> {
        Ok(vector(self.weights, Role::Vision(role))?.to_vec())
    }

    fn positions(&self) -> Result<Vec<f32>, OpenError> {
        let role = Role::Vision(V::Positions);
        let tables = match self.vision.positions {
            None => return Ok(Vec::new()),
            Some(PatchPositions::PerAxis { .. }) => stack(self.weights, role)?,
            Some(_) => std::slice::from_ref(matrix(self.weights, role)?),
        };
        let hidden = self.vision.hidden_size;
        let mut values = Vec::new();
        for table in tables {
            for row in 0..table.rows() {
                let at = values.len();
                values.resize(at + hidden, 0.0);
                let decoded = table.decode_row(row, &mut values[at..]);
                decoded.map_err(OpenError::Weights)?;
            }
        }
        Ok(values)
    }

    fn norm(&self, spec: Option<NormSpec>, (weight, bias): (V, V)) -> Option<Norm> {
        let spec = spec?;
        Some(Norm {
            kind: spec.kind,
            eps: spec.eps,
            weight: self.optional(weight).unwrap_or_default(),
            bias: self.optional(bias).unwrap_or_default(),
            slots: [None; 2],
        })
    }

    fn layer_norm(&self, layer: usize, spec: Option<NormSpec>, role: R) -> Option<Norm> {
        // A norm without a bias of its own has none in the weights either.
        let bias = role.bias().unwrap_or(role);
        let spec = spec?;
        let norm = self.norm(Some(spec), (V::Layer(layer, role), V::Layer(layer, bias)))?;
        Some(Norm {
            weight: if spec.weight { norm.weight } else { Vec::new() },
            bias: if spec.bias { norm.bias } else { Vec::new() },
            ..norm
        })
    }

    fn matrix(&mut self, layer: usize, role: R) -> Result<Matrix, OpenError> {
        let bias = role.bias().map(|bias| V::Layer(layer, bias));
        let bound = |loader: &Self, bound| {
            let values = loader.vector(V::Clamp(layer, role, bound))?;
            Ok::<f32, OpenError>(values.first().copied().unwrap_or(0.0))
        };
        let clamp = if self.vision.block.clamped {
            Some(Clamp {
                input: [
                    bound(self, ClampBound::InputMin)?,
                    bound(self, ClampBound::InputMax)?,
                ],
                output: [
                    bound(self, ClampBound::OutputMin)?,
                    bound(self, ClampBound::OutputMax)?,
                ],
            })
        } else {
            None
        };
        Ok(Matrix {
            linear: self.linear(V::Layer(layer, role))?,
            bias: bias.and_then(|bias| self.optional(bias)),
            clamp,
        })
    }

    fn layer(&mut self, index: usize) -> Result<TowerLayer, OpenError> {
        let block = &self.vision.block;
        let norm = Some(block.norm);
        let post = norm.filter(|_| block.sandwich);
        let required = |norm: Option<Norm>| {
            norm.unwrap_or_else(|| Norm {
                kind: block.norm.kind,
                eps: block.norm.eps,
                weight: Vec::new(),
                bias: Vec::new(),
                slots: [None; 2],
            })
        };
        Ok(TowerLayer {
            attention_norm: required(self.layer_norm(index, norm, R::MixerPreNorm)),
            qkv: [
                self.matrix(index, R::Query)?,
                self.matrix(index, R::Key)?,
                self.matrix(index, R::Value)?,
            ],
            query_norm: self.layer_norm(index, block.qk_norm, R::QueryNorm),
            key_norm: self.layer_norm(index, block.qk_norm, R::KeyNorm),
            // It never has a weight, so the role does not matter.
            value_norm: self.layer_norm(index, block.value_norm, R::KeyNorm),
            output: self.matrix(index, R::Output)?,
            attention_post_norm: self.layer_norm(index, post, R::MixerPostNorm),
            attention_gain: self.optional(V::Gain(index, BlockHalf::Attention)),
            mlp_norm: required(self.layer_norm(index, norm, R::FeedForwardPreNorm)),
            gate: if block.mlp.gated {
                Some(self.matrix(index, R::Gate)?)
            } else {
                None
            },
            up: self.matrix(index, R::Up)?,
            down: self.matrix(index, R::Down)?,
            mlp_post_norm: self.layer_norm(index, post, R::FeedForwardPostNorm),
            mlp_gain: self.optional(V::Gain(index, BlockHalf::FeedForward)),
        })
    }

    fn projector(
        &mut self,
        index: usize,
        projector: &Projector,
    ) -> Result<Vec<LoadedStep>, OpenError> {
        let steps = projector.steps.iter().enumerate();
        steps
            .map(|(step, kind)| self.step((index, step), kind))
            .collect()
    }

    fn step(
        &mut self,
        (projector, step): (usize, usize),
        kind: &ProjectorStep,
    ) -> Result<LoadedStep, OpenError> {
        let role = |tensor| V::Step {
            projector,
            step,
            tensor,
        };
        let plain = |linear| {
            LoadedMatrix(Matrix {
                linear,
                bias: None,
                clamp: None,
            })
        };
        Ok(match kind {
            ProjectorStep::Merge { side, values } => LoadedStep::Merge {
                side: *side,
                values: *values,
            },
            ProjectorStep::AveragePool { side } => LoadedStep::AveragePool { side: *side },
            ProjectorStep::Scale(scale) => LoadedStep::Scale(*scale),
            ProjectorStep::Activation(activation) => LoadedStep::Activation(*activation),
            ProjectorStep::Standardize => LoadedStep::Standardize {
                bias: self.vector(role(StepTensor::Bias))?,
                scale: self.vector(role(StepTensor::Scale))?,
            },
            ProjectorStep::Norm(norm) => LoadedStep::Norm(Norm {
                kind: norm.kind,
                eps: norm.eps,
                weight: self.optional(role(StepTensor::Weight)).unwrap_or_default(),
                bias: self.optional(role(StepTensor::Bias)).unwrap_or_default(),
                slots: [None; 2],
            }),
            ProjectorStep::Linear { .. } => LoadedStep::Linear(Box::new(LoadedMatrix(Matrix {
                linear: self.linear(role(StepTensor::Weight))?,
                bias: self.optional(role(StepTensor::Bias)),
                clamp: None,
            }))),
            ProjectorStep::Gated(dense) => LoadedStep::Gated(Box::new(GatedStep {
                spec: *dense,
                gate: plain(self.linear(role(StepTensor::Gate))?),
                up: plain(self.linear(role(StepTensor::Up))?),
                down: plain(self.linear(role(StepTensor::Down))?),
            })),
        })
    }
}
