//! GLM-4: sandwich norms, gate and up in one matrix, rope over neighbouring values of half a
//! head.

use serde_json::json;

use super::common::{
    GATE_UP, GGUF_GATE_UP, Sizes, activation, gguf_rope, gguf_tied, sandwich_layer,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Attention, Mixer};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["glm4"],
    from_config,
    hugging_face: Naming {
        overrides: &[&[
            (MixerPostNorm, "post_self_attn_layernorm.weight"),
            (FeedForwardPostNorm, "post_mlp_layernorm.weight"),
        ]],
        fused: &[GATE_UP],
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["glm4"],
        from_gguf,
        naming: Naming {
            fused: &[GGUF_GATE_UP],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts::PLAIN,
};

pub(super) fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "partial_rotary_factor": 0.5,
    }));
    let sizes = Sizes::explicit(config, &["num_key_value_heads", "head_dim"])?;
    let rope = Rope::partial_from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = Attention {
        qkv_bias: config.bool_or("attention_bias", true)?,
        ..sizes.attention(Some(rope.interleaved()))
    };
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let activation = activation(config, "hidden_act", Activation::Silu)?;
    Ok(model(&sizes, tied, activation, attention))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let mut rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    // llama.cpp's converter reorders the rows of models with several axes of positions.
    if rope.sections.is_some() {
        rope.pairs = RopePairs::Halves;
    }
    let attention = sizes.gguf_attention(config, Some(rope));
    Ok(model(
        &sizes,
        gguf_tied(config),
        Activation::Silu,
        attention,
    ))
}

fn model(sizes: &Sizes, tied: bool, activation: Activation, attention: Attention) -> ModelSpec {
    let norm = Norm::rms(sizes.eps);
    let feed_forward = sizes.gated(activation, false);
    let layer = sandwich_layer(norm, Mixer::Attention(attention), feed_forward);
    sizes.model("glm4", tied, norm, vec![layer; sizes.layers])
}
