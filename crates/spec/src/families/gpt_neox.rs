//! GPT-NeoX and Pythia: attention and feed-forward side by side, each with its own layer norm; q, k
//! and v in one matrix, head by head; rope over a part of each head.

use serde_json::json;

use super::common::{
    GGUF_QKV, Sizes, activation, gguf_rope, gguf_tied, parallel_layer, pre_norm_layer,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts};
use crate::mixers::{Attention, Mixer};
use crate::model::{Activation, FeedForward, ModelSpec, Norm};
use crate::naming::{Fused, Ignored, Naming};
use crate::roles::LayerRole::*;
use crate::roles::Role;
use crate::rope::{Rope, RopePairs};

macro_rules! naming {
    ($head:literal, $model:literal, $layer:literal) => {
        Naming {
            global_overrides: &[
                (Role::Embedding, concat!($model, "embed_in.weight")),
                (Role::FinalNorm, concat!($model, "final_layer_norm.weight")),
                (Role::Head, $head),
            ],
            layers: $layer,
            overrides: &[&[
                (MixerPreNorm, "input_layernorm.weight"),
                (Output, "attention.dense.weight"),
                (FeedForwardPreNorm, "post_attention_layernorm.weight"),
                (Up, "mlp.dense_h_to_4h.weight"),
                (Down, "mlp.dense_4h_to_h.weight"),
            ]],
            fused: &[Fused::per_head(
                "attention.query_key_value.weight",
                &[Query, Key, Value],
            )],
            ignored: Ignored {
                endings: &[
                    ".rotary_emb.inv_freq",
                    ".attention.bias",
                    ".attention.masked_bias",
                ],
                ..PLAIN.hugging_face.ignored
            },
            ..PLAIN.hugging_face
        }
    };
}

pub(super) const FAMILY: Family = Family {
    model_types: &["gpt_neox"],
    from_config,
    hugging_face: naming!("embed_out.weight", "gpt_neox.", "gpt_neox.layers.{}."),
    mlx: Some(naming!("model.embed_out.weight", "model.", "model.h.{}.")),
    gguf: Some(GgufFamily {
        architectures: &["gptneox"],
        from_gguf,
        naming: Naming {
            fused: &[GGUF_QKV],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            rope_fields: &[
                ("rotary_emb_base", "rope_theta"),
                ("rotary_pct", "partial_rotary_factor"),
            ],
            ..MlxFacts::PLAIN
        },
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    // Older configs have other names for rope.
    let rotating = config.f64_or("rotary_pct", 0.25)?;
    let theta = config.f64_or("rotary_emb_base", 10_000.0)?;
    let config = &config.with_defaults(json!({
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": rotating,
    }));
    let sizes = Sizes::with_eps(config, "layer_norm_eps")?;
    // Always: q, k and v of a head are adjacent in one matrix.
    let sizes = Sizes {
        kv_heads: sizes.heads,
        head_dim: sizes.hidden / sizes.heads,
        ..sizes
    };
    let rope = Rope::partial_from_config(config, None, theta, sizes.head_dim)?;
    let bias = config.bool_or("attention_bias", true)?;
    let attention = Attention {
        qkv_bias: bias,
        output_bias: bias,
        ..sizes.attention(Some(rope))
    };
    let feed_forward = sizes.plain(activation(config, "hidden_act", Activation::Gelu)?, true);
    let parallel = config.bool_or("use_parallel_residual", true)?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(model(&sizes, tied, parallel, attention, feed_forward))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let feed_forward = sizes.plain(Activation::Gelu, true);
    let parallel = config.bool_or("use_parallel_residual", true)?;
    let tied = gguf_tied(config);
    Ok(model(&sizes, tied, parallel, attention, feed_forward))
}

fn model(
    sizes: &Sizes,
    tied: bool,
    parallel: bool,
    attention: Attention,
    feed_forward: FeedForward,
) -> ModelSpec {
    let norm = Norm::layer(sizes.eps, true);
    let arrange = if parallel {
        parallel_layer
    } else {
        pre_norm_layer
    };
    let layer = arrange(norm, Mixer::Attention(attention), feed_forward);
    sizes.model("gpt_neox", tied, norm, vec![layer; sizes.layers])
}
