//! The four multipliers that all of Granite's families have, and their experts' tensors.

use super::gguf::gguf_scale;
use super::names::EXPERT_GATE_UP;
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::Mixer;
use crate::model::{Inner, ModelSpec};
use crate::naming::{Fused, LayerNames};
use crate::roles::LayerRole::{ExpertDown, Router};

pub(crate) const GRANITE_ROUTER: LayerNames = &[(Router, "block_sparse_moe.router.layer.weight")];

/// The gate rows, then the up rows, of each expert.
pub(crate) const GRANITE_EXPERT_INPUT: Fused =
    Fused::sequential("block_sparse_moe.input_linear.weight", EXPERT_GATE_UP);

pub(crate) const GRANITE_EXPERT_OUTPUT: LayerNames =
    &[(ExpertDown, "block_sparse_moe.output_linear.weight")];

pub(crate) struct Multipliers {
    embedding: f32,
    residual: f32,
    /// Defaults to the usual scale.
    attention: Option<f32>,
    /// Divides the logits.
    logits: f32,
}

impl Multipliers {
    pub fn from_config(config: &Config) -> Result<Self, SpecError> {
        let read = |field| Ok(config.f64_or(field, 1.0)? as f32);
        Ok(Self {
            embedding: read("embedding_multiplier")?,
            residual: read("residual_multiplier")?,
            attention: Some(read("attention_multiplier")?),
            logits: read("logits_scaling")?,
        })
    }

    pub fn from_gguf(config: &GgufConfig) -> Result<Self, SpecError> {
        Ok(Self {
            embedding: gguf_scale(config, "embedding_scale")?.unwrap_or(1.0),
            residual: gguf_scale(config, "residual_scale")?.unwrap_or(1.0),
            attention: gguf_scale(config, "attention.scale")?,
            logits: gguf_scale(config, "logit_scale")?.unwrap_or(1.0),
        })
    }

    pub fn applied(&self, mut spec: ModelSpec) -> ModelSpec {
        spec.embedding.scale = self.embedding;
        spec.head.scale = 1.0 / self.logits;
        for block in spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks) {
            block.residual_scale = self.residual;
            for branch in &mut block.branches {
                if let (Inner::Mixer(Mixer::Attention(attention)), Some(scale)) =
                    (&mut branch.inner, self.attention)
                {
                    attention.scale = scale;
                }
            }
        }
        spec
    }
}
