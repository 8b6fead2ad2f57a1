//! Qwen3.5 (dense, the text model): Qwen3-Next's mixers, their projections stored apart, without
//! experts.

use super::common::{
    DELTA_CONV, DELTA_QKV, FURTHER_LAYERS, GGUF_DELTA_CONV, GGUF_DELTA_QKV, GGUF_POST_ATTENTION,
    GGUF_QUERY_AND_GATE, QUERY_AND_GATE, Sizes, gguf_qwen_hybrid, gguf_tied, qwen_hybrid,
    without_further_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts};
use crate::mixers::KeySharing;
use crate::model::{Activation, ModelSpec};
use crate::naming::{ConvShape, Naming};

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_5_text", "qwen3_5"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(MLX),
    gguf: Some(GgufFamily {
        architectures: &["qwen35"],
        from_gguf,
        naming: GGUF,
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            wrapper: Some("qwen3_5"),
            ..MlxFacts::PLAIN
        },
        ..FamilyFacts::PLAIN
    },
};

pub(super) const HUGGING_FACE: Naming = Naming {
    fused: &[QUERY_AND_GATE, DELTA_CONV, DELTA_QKV],
    norms_minus_one: true,
    ..PLAIN.hugging_face
};

pub(super) const MLX: Naming = Naming {
    conv_shape: ConvShape::ChannelLast,
    norms_minus_one: false,
    ..HUGGING_FACE
};

pub(super) const GGUF: Naming = Naming {
    overrides: &[GGUF_POST_ATTENTION],
    fused: &[GGUF_QUERY_AND_GATE, GGUF_DELTA_CONV, GGUF_DELTA_QKV],
    ignored: FURTHER_LAYERS,
    ..PLAIN.gguf
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let feed_forward = sizes.gated(Activation::Silu, false);
    let mixers = qwen_hybrid(config, &sizes)?;
    Ok(mixers.model(&sizes, "qwen3_5", tied, |_| feed_forward.clone()))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = without_further_layers(config, Sizes::from_gguf(config)?)?;
    let feed_forward = sizes.gated(Activation::Silu, false);
    let mixers = gguf_qwen_hybrid(config, &sizes, KeySharing::Strided)?;
    Ok(mixers.model(&sizes, "qwen3_5", gguf_tied(config), |_| {
        feed_forward.clone()
    }))
}
