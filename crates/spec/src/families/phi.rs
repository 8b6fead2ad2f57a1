//! Phi 1, 1.5 and 2: attention and feed-forward side by side under one layer norm, biases
//! everywhere, the head's too, rope over a part of each head.

use serde_json::json;

use super::common::{GGUF_QKV, Sizes, activation, gguf_rope, gguf_tied, parallel_layer};
use super::{Family, GgufFamily, PLAIN, cohere};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::mixers::{Attention, Mixer, QkNorm};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::Naming;
use crate::roles::LayerRole::*;
use crate::roles::Role;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["phi"],
    from_config,
    hugging_face: Naming {
        global_overrides: &[(Role::FinalNorm, "model.final_layernorm.weight")],
        overrides: &[&[
            (FeedForwardPreNorm, "input_layernorm.weight"),
            (Output, "self_attn.dense.weight"),
            (QueryNorm, "self_attn.q_layernorm.weight"),
            (KeyNorm, "self_attn.k_layernorm.weight"),
            (Up, "mlp.fc1.weight"),
            (Down, "mlp.fc2.weight"),
        ]],
        ..PLAIN.hugging_face
    },
    mlx: None,
    gguf: Some(GgufFamily {
        architectures: &["phi2"],
        from_gguf,
        naming: Naming {
            // Names from older converters.
            also: Some(&Naming {
                fused: &[GGUF_QKV],
                ..cohere::GGUF_NAMING
            }),
            ..cohere::GGUF_NAMING
        },
    }),
    facts: FamilyFacts::PLAIN,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    }));
    let sizes = Sizes::with_eps(config, "layer_norm_eps")?;
    let rope = Rope::partial_from_config(config, None, 10_000.0, sizes.head_dim)?;
    let normed = config.bool_or("qk_layernorm", false)?;
    let attention = Attention {
        qk_norm: normed.then(|| QkNorm::per_head(Norm::layer(sizes.eps, true))),
        ..sizes.attention(Some(rope))
    };
    let activation = activation(config, "hidden_act", Activation::GeluTanh)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(model(&sizes, tied, activation, attention))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let mut sizes = Sizes::from_gguf(config)?;
    // The converter always writes the numbers of the released sizes.
    if config.has("blk.0.attn_k.weight") {
        sizes.kv_heads = config.rows("blk.0.attn_k.weight")? / sizes.head_dim.max(1);
    }
    sizes.feed_forward = config.rows("blk.0.ffn_up.weight")?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = sizes.attention(Some(rope));
    Ok(model(
        &sizes,
        gguf_tied(config),
        Activation::GeluTanh,
        attention,
    ))
}

fn model(sizes: &Sizes, tied: bool, activation: Activation, attention: Attention) -> ModelSpec {
    let norm = Norm::layer(sizes.eps, true);
    let attention = Attention {
        qkv_bias: true,
        output_bias: true,
        ..attention
    };
    let feed_forward = sizes.plain(activation, true);
    let layer = parallel_layer(norm, Mixer::Attention(attention), feed_forward);
    let mut spec = sizes.model("phi", tied, norm, vec![layer; sizes.layers]);
    spec.head.bias = true;
    spec
}
