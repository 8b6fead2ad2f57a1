//! The four multipliers that all of Granite's families have, and their experts' tensors.

use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::Mixer;
use crate::model::{Inner, ModelSpec};
use crate::naming::{Fused, Split};
use crate::roles::LayerRole;

pub(super) const ROUTER: (LayerRole, &str) =
    (LayerRole::Router, "block_sparse_moe.router.layer.weight");

/// Gates, then ups, of each expert.
pub(super) const EXPERT_INPUT: Fused = Fused {
    name: "block_sparse_moe.input_linear.weight",
    parts: &[LayerRole::ExpertGate, LayerRole::ExpertUp],
    split: Split::Sequential,
};

pub(super) const EXPERT_DOWN: (LayerRole, &str) = (
    LayerRole::ExpertDown,
    "block_sparse_moe.output_linear.weight",
);

pub(super) struct Multipliers {
    embedding: f32,
    residual: f32,
    /// Where absent the heads' own scale stands.
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

    /// llama.cpp reads 0 as absent.
    pub fn from_gguf(config: &GgufConfig) -> Result<Self, SpecError> {
        let read = |field| {
            let found = config.f64_opt(field)?.filter(|scale| *scale != 0.0);
            Ok(found.map(|scale| scale as f32))
        };
        Ok(Self {
            embedding: read("embedding_scale")?.unwrap_or(1.0),
            residual: read("residual_scale")?.unwrap_or(1.0),
            attention: read("attention.scale")?,
            logits: read("logit_scale")?.unwrap_or(1.0),
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
