//! GPT-2: learned positions instead of rope, layer norms, matrices stored transposed.

use serde_json::json;

use super::common::{
    GGUF_QKV, Sizes, activation, bounded_layers, even_split, expect_switch, gguf_tied,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts};
use crate::mixers::{Attention, Mixer};
use crate::model::{Activation, Inner, ModelSpec};
use crate::naming::{Fused, Ignored, Naming};
use crate::roles::LayerRole::{self, *};
use crate::roles::Role;

macro_rules! naming {
    ($prefix:literal) => {
        Naming {
            global_overrides: &[
                (Role::Embedding, concat!($prefix, "wte.weight")),
                (Role::Positions, concat!($prefix, "wpe.weight")),
                (Role::FinalNorm, concat!($prefix, "ln_f.weight")),
            ],
            layers: concat!($prefix, "h.{}."),
            overrides: &[&[
                (MixerPreNorm, "ln_1.weight"),
                (Output, "attn.c_proj.weight"),
                (FeedForwardPreNorm, "ln_2.weight"),
                (Up, "mlp.c_fc.weight"),
                (Down, "mlp.c_proj.weight"),
            ]],
            fused: &[Fused::sequential(
                "attn.c_attn.weight",
                &[Query, Key, Value],
            )],
            ignored: Ignored {
                endings: &[".attn.bias", ".attn.masked_bias"],
                ..PLAIN.hugging_face.ignored
            },
            ..PLAIN.hugging_face
        }
    };
}

pub(super) const FAMILY: Family = Family {
    model_types: &["gpt2"],
    from_config,
    hugging_face: Naming {
        transposed: TRANSPOSED,
        // The first releases omit the outer module's prefix.
        also: Some(&Naming {
            transposed: TRANSPOSED,
            ..naming!("")
        }),
        ..naming!("transformer.")
    },
    mlx: Some(naming!("model.")),
    gguf: Some(GgufFamily {
        architectures: &["gpt2"],
        from_gguf,
        naming: Naming {
            fused: &[GGUF_QKV],
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            copied_fields: &[("n_ctx", "n_positions")],
            ..MlxFacts::PLAIN
        },
        ..FamilyFacts::PLAIN
    },
};

const TRANSPOSED: &[LayerRole] = &[Query, Key, Value, Output, Up, Down];

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({"layer_norm_epsilon": 1e-5}));
    expect_switch(config, "add_cross_attention", false)?;
    let (hidden, heads) = (config.usize("n_embd")?, config.usize("n_head")?);
    let context = config.usize("n_positions")?;
    let sizes = Sizes {
        vocab: config.usize("vocab_size")?,
        hidden,
        layers: bounded_layers("n_layer", config.usize("n_layer")?)?,
        heads,
        kv_heads: heads,
        head_dim: even_split("n_embd", hidden, "n_head", heads)?,
        feed_forward: config.usize_or("n_inner", 4 * hidden)?,
        context,
        eps: config.f64("layer_norm_epsilon")? as f32,
    };
    let activation = activation(config, "activation_function", Activation::GeluTanh)?;
    let tied = config.bool_or("tie_word_embeddings", true)?;
    let mut spec = model(&sizes, tied, activation, context);
    let scaled = config.bool_or("scale_attn_weights", true)?;
    let by_depth = config.bool_or("scale_attn_by_inverse_layer_idx", false)?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let branches = layer
            .blocks
            .iter_mut()
            .flat_map(|block| &mut block.branches);
        for branch in branches {
            if let Inner::Mixer(Mixer::Attention(attention)) = &mut branch.inner {
                let depth = if by_depth { index + 1 } else { 1 };
                let scale = if scaled { attention.scale } else { 1.0 };
                attention.scale = scale / depth as f32;
            }
        }
    }
    Ok(spec)
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let mut sizes = Sizes::from_gguf(config)?;
    // The converter always writes four times the hidden size.
    sizes.feed_forward = config.rows("blk.0.ffn_up.weight")?;
    let positions = config.rows("position_embd.weight")?;
    let tied = gguf_tied(config);
    Ok(model(&sizes, tied, Activation::GeluTanh, positions))
}

fn model(sizes: &Sizes, tied: bool, activation: Activation, positions: usize) -> ModelSpec {
    let attention = Attention {
        qkv_bias: true,
        output_bias: true,
        ..sizes.attention(None)
    };
    let feed_forward = sizes.plain(activation, true);
    let mut spec = sizes.layer_norm_model("gpt2", tied, attention, feed_forward);
    spec.embedding.positions = Some(positions);
    spec
}
