//! LFM2 (dense): short gated convolutions, attention in a few layers only.

use super::common::{
    Hybrid, Sizes, expect_switch, gguf_any_layer, gguf_hybrid, gguf_rope, gguf_tied, gguf_window,
    layer_numbers, reach, recurrent_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts};
use crate::mixers::{Attention, Mixer, QkNorm, ShortConv};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::{ConvShape, LayerNames, Naming};
use crate::roles::LayerRole::*;
use crate::roles::Role;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm2"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(Naming {
        conv_shape: ConvShape::ChannelLast,
        ..HUGGING_FACE
    }),
    gguf: Some(GgufFamily {
        architectures: &["lfm2"],
        from_gguf,
        naming: GGUF,
    }),
    facts: FamilyFacts {
        templates: &["lfm2"],
        mlx: MlxFacts {
            copied_fields: &[("block_dim", "hidden_size")],
            ..MlxFacts::PLAIN
        },
        ..FamilyFacts::PLAIN
    },
};

const HUGGING_FACE: Naming = Naming {
    overrides: &[MIXERS, DENSE],
    ..UNNAMED
};

pub(super) const DENSE: LayerNames = &[
    (Gate, "feed_forward.w1.weight"),
    (Up, "feed_forward.w3.weight"),
    (Down, "feed_forward.w2.weight"),
];

/// All names except those of feed-forwards.
pub(super) const MIXERS: LayerNames = &[
    (MixerPreNorm, "operator_norm.weight"),
    (ConvIn, "conv.in_proj.weight"),
    (Conv, "conv.conv.weight"),
    (ConvOut, "conv.out_proj.weight"),
    (Output, "self_attn.out_proj.weight"),
    (QueryNorm, "self_attn.q_layernorm.weight"),
    (KeyNorm, "self_attn.k_layernorm.weight"),
    (FeedForwardPreNorm, "ffn_norm.weight"),
    (ExpertsPreNorm, "ffn_norm.weight"),
];

/// The naming without layer names.
pub(super) const UNNAMED: Naming = Naming {
    global_overrides: &[(Role::FinalNorm, "model.embedding_norm.weight")],
    ..PLAIN.hugging_face
};

pub(super) const GGUF: Naming = Naming {
    global_overrides: &[(Role::FinalNorm, "token_embd_norm.weight")],
    ..PLAIN.gguf
};

/// Field names of the first checkpoints.
pub(super) const OLD_NAMES: &[(&str, &str)] = &[
    ("block_ff_dim", "intermediate_size"),
    ("tie_embedding", "tie_word_embeddings"),
];

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.renamed(OLD_NAMES);
    let mut sizes = sizes(config)?;
    sizes.feed_forward = feed_forward(config, sizes.feed_forward)?;
    let tied = config.bool_or("tie_word_embeddings", true)?;
    let feed_forward = sizes.gated(Activation::Silu, false);
    let mixers = mixers(config, &sizes)?;
    Ok(mixers.model(&sizes, "lfm2", tied, |_| feed_forward.clone()))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, recurrent) = gguf_hybrid(config)?;
    let feed_forward = sizes.gated(Activation::Silu, false);
    let mixers = gguf_mixers(config, &sizes, recurrent)?;
    Ok(mixers.model(&sizes, "lfm2", gguf_tied(config), |_| feed_forward.clone()))
}

pub(super) fn sizes(config: &Config) -> Result<Sizes, SpecError> {
    config.usize("num_key_value_heads")?;
    Sizes::with_eps(config, "norm_eps")
}

pub(super) fn mixers(config: &Config, sizes: &Sizes) -> Result<Hybrid, SpecError> {
    expect_switch(config, "block_use_swiglu", true)?;
    expect_switch(config, "use_pos_enc", true)?;
    let known = &["conv", "full_attention"];
    let recurrent = match recurrent_layers(config, sizes.layers, known)? {
        Some(recurrent) => recurrent,
        None => {
            let attention = layer_numbers(config, "full_attn_idxs")?;
            let recurrent = |layer| matches!(&attention, Some(list) if !list.contains(&layer));
            (0..sizes.layers).map(recurrent).collect()
        }
    };
    let conv = ShortConv {
        channels: sizes.hidden,
        kernel: config.usize_or("conv_L_cache", 3)?,
        bias: config.bool_or("conv_bias", false)?,
    };
    let rope = Rope::from_config(config, None, 1_000_000.0, sizes.head_dim)?;
    Ok(hybrid(sizes, recurrent, conv, rope))
}

pub(super) fn gguf_mixers(
    config: &GgufConfig,
    sizes: &Sizes,
    recurrent: Vec<bool>,
) -> Result<Hybrid, SpecError> {
    let conv = ShortConv {
        channels: sizes.hidden,
        kernel: config.usize("shortconv.l_cache")?,
        bias: gguf_any_layer(config, sizes.layers, "shortconv.conv.bias"),
    };
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
    let mut hybrid = hybrid(sizes, recurrent, conv, rope);
    if let Mixer::Attention(attention) = &mut hybrid.attention {
        attention.reach = reach(gguf_window(config)?);
    }
    Ok(hybrid)
}

fn hybrid(sizes: &Sizes, recurrent: Vec<bool>, conv: ShortConv, rope: Rope) -> Hybrid {
    Hybrid {
        recurrent,
        mixer: Mixer::ShortConv(conv),
        attention: Mixer::Attention(Attention {
            qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
            ..sizes.attention(Some(rope))
        }),
    }
}

/// Older configs state the width of an ungated feed-forward, which is reduced to two thirds, then
/// multiplied and rounded up.
fn feed_forward(config: &Config, stated: usize) -> Result<usize, SpecError> {
    if !config.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(stated);
    }
    let cut = 2 * stated / 3;
    let field = "block_ffn_dim_multiplier";
    if config.mentions(field) && config.get(field).is_none() {
        return Ok(cut);
    }
    let multiple = config.usize_or("block_multiple_of", 256)?;
    let stretched = (config.f64_or(field, 1.0)? * cut as f64) as usize;
    let rounded = stretched.checked_next_multiple_of(multiple);
    rounded
        .ok_or_else(|| SpecError::invalid(config.path("block_multiple_of"), multiple, "at least 1"))
}
