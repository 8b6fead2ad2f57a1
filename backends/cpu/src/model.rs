//! A model's weights, packed for this machine, in the order the forward pass reads them.

use loquat_session::Precision;
use loquat_spec::{
    Activation, Attention, FeedForward, LayerRole, Mixer, ModelSpec, Norm, Role, Rope,
};
use loquat_weights::{Matrix, Weights, WeightsError};

use crate::linear::Linear;

pub struct Model {
    pub hidden_size: usize,
    pub vocab_size: usize,
    pub embedding_scale: f32,
    pub embedding: Matrix,
    pub layers: Vec<Layer>,
    /// The distinct ropes the layers refer to by index.
    pub ropes: Vec<RopeTable>,
    pub final_norm: NormWeights,
    pub head: Linear,
    pub softcap: Option<f32>,
}

pub struct Layer {
    pub mixer_pre: Option<NormWeights>,
    pub attention: AttentionWeights,
    pub mixer_post: Option<NormWeights>,
    pub feed_forward_pre: Option<NormWeights>,
    pub feed_forward: GatedWeights,
    pub feed_forward_post: Option<NormWeights>,
}

pub struct AttentionWeights {
    pub spec: Attention,
    pub rope: Option<usize>,
    pub query: Linear,
    pub key: Linear,
    pub value: Linear,
    pub output: Linear,
    pub query_bias: Option<Vec<f32>>,
    pub key_bias: Option<Vec<f32>>,
    pub value_bias: Option<Vec<f32>>,
    pub output_bias: Option<Vec<f32>>,
    pub query_norm: Option<NormWeights>,
    pub key_norm: Option<NormWeights>,
}

pub struct GatedWeights {
    pub size: usize,
    pub activation: Activation,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
    pub gate_bias: Option<Vec<f32>>,
    pub up_bias: Option<Vec<f32>>,
    pub down_bias: Option<Vec<f32>>,
}

pub struct NormWeights {
    pub eps: f32,
    pub weight: Vec<f32>,
}

pub struct RopeTable {
    pub rope: Rope,
    pub frequencies: Vec<f32>,
}

impl Model {
    pub fn load(
        spec: &ModelSpec,
        weights: &Weights,
        precision: Precision,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, WeightsError> {
        let loader = Loader { weights, precision };
        let mut ropes = Vec::new();
        let mut layers = Vec::new();
        // The head counts as one more layer.
        let parts = spec.layers.len() + 1;
        for (index, layer) in spec.layers.iter().enumerate() {
            progress(index as f32 / parts as f32);
            layers.push(loader.layer(index, layer, &mut ropes)?);
        }
        progress(spec.layers.len() as f32 / parts as f32);
        let head_role = if spec.head.tied {
            Role::Embedding
        } else {
            Role::Head
        };
        let model = Self {
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            embedding_scale: spec.embedding_scale,
            embedding: loader.matrix(Role::Embedding)?.clone(),
            layers,
            ropes,
            final_norm: loader.norm(Role::FinalNorm, &spec.final_norm)?,
            head: loader.linear(head_role)?,
            softcap: spec.head.softcap,
        };
        progress(1.0);
        Ok(model)
    }

    /// Bytes of all weights as the session will hold them, packed or mapped, without loading.
    pub fn predict_bytes(spec: &ModelSpec, weights: &Weights, precision: Precision) -> WeightBytes {
        let mut bytes = WeightBytes::default();
        for (role, matrix) in weights.matrices() {
            let multiplied = role != Role::Embedding || spec.head.tied;
            match Linear::predict_packed(matrix, precision).filter(|_| multiplied) {
                Some(packed) => bytes.packed += packed,
                None => bytes.mapped += matrix.bytes(),
            }
        }
        for (_, vector) in weights.vectors() {
            bytes.packed += vector.len() as u64 * 4;
        }
        bytes
    }
}

/// Where a model's weights will be: in memory of ours, or in the mapped file.
#[derive(Default)]
pub struct WeightBytes {
    pub packed: u64,
    pub mapped: u64,
}

struct Loader<'a> {
    weights: &'a Weights,
    precision: Precision,
}

impl Loader<'_> {
    fn layer(
        &self,
        index: usize,
        layer: &loquat_spec::Layer,
        ropes: &mut Vec<RopeTable>,
    ) -> Result<Layer, WeightsError> {
        let role = |role| Role::Layer(index, role);
        let norm = |role_of, norm: &Option<Norm>| match norm {
            Some(norm) => self.norm(role(role_of), norm).map(Some),
            None => Ok(None),
        };
        let linear = |role_of| self.linear(role(role_of));
        let vector = |role_of| self.weights.vector(role(role_of)).map(<[f32]>::to_vec);
        let Mixer::Attention(attention) = &layer.mixer.inner;
        let FeedForward::Gated {
            size, activation, ..
        } = layer.feed_forward.inner;
        Ok(Layer {
            mixer_pre: norm(LayerRole::MixerPreNorm, &layer.mixer.pre_norm)?,
            attention: AttentionWeights {
                spec: attention.clone(),
                rope: attention.rope.as_ref().map(|rope| self.rope(rope, ropes)),
                query: linear(LayerRole::Query)?,
                key: linear(LayerRole::Key)?,
                value: linear(LayerRole::Value)?,
                output: linear(LayerRole::Output)?,
                query_bias: vector(LayerRole::QueryBias),
                key_bias: vector(LayerRole::KeyBias),
                value_bias: vector(LayerRole::ValueBias),
                output_bias: vector(LayerRole::OutputBias),
                query_norm: norm(LayerRole::QueryNorm, &attention.qk_norm)?,
                key_norm: norm(LayerRole::KeyNorm, &attention.qk_norm)?,
            },
            mixer_post: norm(LayerRole::MixerPostNorm, &layer.mixer.post_norm)?,
            feed_forward_pre: norm(LayerRole::FeedForwardPreNorm, &layer.feed_forward.pre_norm)?,
            feed_forward: GatedWeights {
                size,
                activation,
                gate: linear(LayerRole::Gate)?,
                up: linear(LayerRole::Up)?,
                down: linear(LayerRole::Down)?,
                gate_bias: vector(LayerRole::GateBias),
                up_bias: vector(LayerRole::UpBias),
                down_bias: vector(LayerRole::DownBias),
            },
            feed_forward_post: norm(
                LayerRole::FeedForwardPostNorm,
                &layer.feed_forward.post_norm,
            )?,
        })
    }

    fn rope(&self, rope: &Rope, ropes: &mut Vec<RopeTable>) -> usize {
        if let Some(index) = ropes.iter().position(|table| table.rope == *rope) {
            return index;
        }
        ropes.push(RopeTable {
            rope: rope.clone(),
            frequencies: rope.frequencies(self.weights.vector(Role::RopeFactors)),
        });
        ropes.len() - 1
    }

    fn matrix(&self, role: Role) -> Result<&Matrix, WeightsError> {
        self.weights.matrix(role).ok_or_else(|| unbound(role))
    }

    fn linear(&self, role: Role) -> Result<Linear, WeightsError> {
        Linear::new(self.matrix(role)?, self.precision)
    }

    fn norm(&self, role: Role, norm: &Norm) -> Result<NormWeights, WeightsError> {
        let weight = self.weights.vector(role).ok_or_else(|| unbound(role))?;
        Ok(NormWeights {
            eps: norm.eps,
            weight: weight.to_vec(),
        })
    }
}

/// Weights that were bound to another spec.
fn unbound(role: Role) -> WeightsError {
    WeightsError::Binding(loquat_weights::Mismatch {
        missing: vec![role.to_string()],
        ..Default::default()
    })
}
