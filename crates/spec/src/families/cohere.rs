//! Command R: attention and feed-forward side by side under one layer norm without bias, rope
//! over neighbouring values, scaled logits.

use serde_json::json;

use super::common::{
    LayerScheme, Sizes, activation, gguf_rope, gguf_scale, gguf_tied, parallel_layer,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Attention, QkNorm, QkSpan};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["cohere"],
    from_config,
    hugging_face: NAMING,
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["command-r"],
        from_gguf,
        naming: GGUF_NAMING,
    }),
    facts: FamilyFacts::PLAIN,
};

/// Both branches use the same norm.
pub(super) const NAMING: Naming = Naming {
    overrides: &[&[(FeedForwardPreNorm, "input_layernorm.weight")]],
    ..PLAIN.hugging_face
};

pub(super) const GGUF_NAMING: Naming = Naming {
    overrides: &[&[(FeedForwardPreNorm, "attn_norm.weight")]],
    ..PLAIN.gguf
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"layer_norm_eps": 1e-5, "logit_scale": 0.0625}));
    let sizes = Sizes::with_eps(config, "layer_norm_eps")?;
    let rope = Rope::from_config(config, None, 500_000.0, sizes.head_dim)?;
    let bias = config.bool_or("attention_bias", false)?;
    let normed = config.bool_or("use_qk_norm", false)?;
    let attention = Attention {
        qkv_bias: bias,
        output_bias: bias,
        qk_norm: normed.then(|| qk_norm(&sizes)),
        ..sizes.attention(Some(rope.interleaved()))
    };
    let feed_forward = sizes.gated(activation(config, "hidden_act", Activation::Silu)?, false);
    let tied = config.bool_or("tie_word_embeddings", true)?;
    let scheme = scheme(&sizes);
    let attention = |_| attention.clone();
    let mut spec = sizes.attention_model("cohere", tied, scheme, feed_forward, attention);
    spec.head.scale = config.f64("logit_scale")? as f32;
    Ok(spec)
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let normed = config.has("blk.0.attn_q_norm.weight");
    let attention = Attention {
        qk_norm: normed.then(|| qk_norm(&sizes)),
        ..sizes.gguf_attention(config, Some(rope))
    };
    let feed_forward = sizes.gated(Activation::Silu, false);
    let tied = gguf_tied(config);
    let scheme = scheme(&sizes);
    let attention = |_| attention.clone();
    let mut spec = sizes.attention_model("cohere", tied, scheme, feed_forward, attention);
    spec.head.scale = gguf_logit_scale(config)?;
    Ok(spec)
}

fn qk_norm(sizes: &Sizes) -> QkNorm {
    QkNorm {
        norm: Norm::layer(sizes.eps, false),
        span: QkSpan::HeadWeights,
        after_rope: false,
    }
}

/// 0 means none.
pub(super) fn gguf_logit_scale(config: &GgufConfig) -> Result<f32, SpecError> {
    Ok(gguf_scale(config, "logit_scale")?.unwrap_or(1.0))
}

/// Attention and feed-forward in parallel, under layer norms without biases.
pub(super) fn scheme(sizes: &Sizes) -> (Norm, LayerScheme) {
    (Norm::layer(sizes.eps, false), parallel_layer)
}
