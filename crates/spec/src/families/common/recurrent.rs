//! Models with both recurrent and attention layers, such as Qwen's with the gated delta rule.

use super::fields::{
    activation, all_but_each, even_split, expect_switch, interval, layer_types, positive,
};
use super::gguf::{gguf_head_dim, gguf_rope};
use super::layers::{partial_rope, pre_norm_layer};
use super::sizes::Sizes;
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::{Attention, Decay, DeltaOutputGate, DeltaRule, KeySharing, Mixer, QkNorm};
use crate::model::{Activation, FeedForward, ModelSpec, Norm};
use crate::naming::Fused;
use crate::roles::LayerRole::*;
use crate::rope::RopePairs;

/// Two kinds of layers that differ only in their mixers.
pub(crate) struct Hybrid {
    /// Which layers have `mixer`; the others have `attention`.
    pub recurrent: Vec<bool>,
    pub mixer: Mixer,
    pub attention: Mixer,
}

impl Hybrid {
    /// Pre-norm layers, each with the feed-forward `feed_forward(layer)`.
    pub fn model(
        self,
        sizes: &Sizes,
        family: &'static str,
        tied: bool,
        feed_forward: impl Fn(usize) -> FeedForward,
    ) -> ModelSpec {
        let norm = Norm::rms(sizes.eps);
        let layers = self.recurrent.iter().enumerate();
        let layers = layers.map(|(layer, recurrent)| {
            let mixer = if *recurrent {
                &self.mixer
            } else {
                &self.attention
            };
            pre_norm_layer(norm, mixer.clone(), feed_forward(layer))
        });
        sizes.model(family, tied, norm, layers.collect())
    }
}

/// Which layers are recurrent by `layer_types`, under any of the family's names.
pub(crate) fn recurrent_layers(
    config: &Config,
    layers: usize,
    known: &'static [&'static str],
) -> Result<Option<Vec<bool>>, SpecError> {
    let attention = ["attention", "full_attention"];
    let types = layer_types(config, layers, known)?;
    Ok(types.map(|types| types.iter().map(|kind| !attention.contains(kind)).collect()))
}

/// Sizes of a file that lists key/value heads for each layer, and which layers are recurrent (0).
pub(crate) fn gguf_hybrid(config: &GgufConfig) -> Result<(Sizes, Vec<bool>), SpecError> {
    gguf_hybrid_with(config, gguf_head_dim(config)?)
}

/// For architectures with another key for the heads' size.
pub(crate) fn gguf_hybrid_with(
    config: &GgufConfig,
    head_dim: usize,
) -> Result<(Sizes, Vec<bool>), SpecError> {
    let mut sizes = Sizes::gguf_with_heads(config, head_dim, None)?;
    let field = "attention.head_count_kv";
    let heads = config.per_layer(field, sizes.layers)?;
    let heads = heads.ok_or_else(|| SpecError::Missing {
        field: config.key(field),
    })?;
    sizes.kv_heads = heads.iter().copied().max().unwrap_or(0).max(1);
    let recurrent = heads.iter().map(|heads| *heads == 0).collect();
    Ok((sizes, recurrent))
}

/// The only activation of the recurrent mixers' convolutions.
pub(crate) fn require_silu(config: &Config, field: &str) -> Result<(), SpecError> {
    match activation(config, field, Activation::Silu)? {
        Activation::Silu => Ok(()),
        _ => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{}`", config.str(field)?.unwrap_or_default()),
            supported: "silu",
        }),
    }
}

/// Qwen's mixers: the gated delta rule in three of four layers unless the config says otherwise,
/// attention with an output gate in the others.
pub(crate) fn qwen_hybrid(config: &Config, sizes: &Sizes) -> Result<Hybrid, SpecError> {
    require_silu(config, "hidden_act")?;
    expect_switch(config, "attn_output_gate", true)?;
    let known = &["linear_attention", "full_attention"];
    let recurrent = match recurrent_layers(config, sizes.layers, known)? {
        Some(recurrent) => recurrent,
        None => {
            let attention = interval(config, "full_attention_interval", ATTENTION_INTERVAL)?;
            all_but_each(attention, sizes.layers)
        }
    };
    let rope = partial_rope(config, 10_000.0, sizes.head_dim, sizes.head_dim / 4)?;
    Ok(Hybrid {
        recurrent,
        mixer: Mixer::DeltaRule(DeltaRule {
            key_heads: config.usize_or("linear_num_key_heads", 16)?,
            value_heads: config.usize_or("linear_num_value_heads", 32)?,
            sharing: KeySharing::Adjacent,
            key_dim: config.usize_or("linear_key_head_dim", 128)?,
            value_dim: config.usize_or("linear_value_head_dim", 128)?,
            kernel: config.usize_or("linear_conv_kernel_dim", 4)?,
            decay: Decay::PerHead,
            gate: DeltaOutputGate::Silu,
            norm: Norm::rms(sizes.eps),
        }),
        attention: qwen_attention(sizes.eps, sizes.biased_attention(config, Some(rope))?),
    })
}

pub(crate) fn gguf_qwen_hybrid(
    config: &GgufConfig,
    sizes: &Sizes,
    sharing: KeySharing,
) -> Result<Hybrid, SpecError> {
    let recurrent = match config.per_layer("attention.recurrent_layers", sizes.layers)? {
        Some(flags) => flags.iter().map(|flag| *flag != 0).collect(),
        None => {
            let field = "full_attention_interval";
            let attention = config.usize_opt(field)?.unwrap_or(ATTENTION_INTERVAL);
            all_but_each(positive(&config.key(field), attention)?, sizes.layers)
        }
    };
    let value_heads = config.usize("ssm.time_step_rank")?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?.with_alternating_sections();
    Ok(Hybrid {
        recurrent,
        mixer: Mixer::DeltaRule(DeltaRule {
            key_heads: config.usize("ssm.group_count")?,
            value_heads,
            sharing,
            key_dim: config.usize("ssm.state_size")?,
            value_dim: gguf_inner_split(config, value_heads)?,
            kernel: config.usize("ssm.conv_kernel")?,
            decay: Decay::PerHead,
            gate: DeltaOutputGate::Silu,
            norm: Norm::rms(sizes.eps),
        }),
        attention: qwen_attention(sizes.eps, sizes.gguf_attention(config, Some(rope))),
    })
}

fn qwen_attention(eps: f32, plain: Attention) -> Mixer {
    Mixer::Attention(Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(eps))),
        output_gate: true,
        gate_bias: plain.qkv_bias,
        ..plain
    })
}

const ATTENTION_INTERVAL: usize = 4;

/// Each head's query rows, then its gate's.
pub(crate) const QUERY_AND_GATE: Fused =
    Fused::per_head("self_attn.q_proj.weight", &[Query, OutputGate]);

pub(crate) const GGUF_QUERY_AND_GATE: Fused = Fused {
    name: "attn_q.weight",
    ..QUERY_AND_GATE
};

pub(crate) const DELTA_CONV: Fused = Fused::sequential(
    "linear_attn.conv1d.weight",
    &[DeltaQueryConv, DeltaKeyConv, DeltaValueConv],
);

pub(crate) const GGUF_DELTA_CONV: Fused = Fused {
    name: "ssm_conv1d.weight",
    ..DELTA_CONV
};

pub(crate) const DELTA_QKV: Fused = Fused::sequential(
    "linear_attn.in_proj_qkv.weight",
    &[DeltaQuery, DeltaKey, DeltaValue],
);

pub(crate) const GGUF_DELTA_QKV: Fused = Fused {
    name: "attn_qkv.weight",
    ..DELTA_QKV
};

/// The size of one of the recurrent mixer's heads.
pub(super) fn gguf_inner_split(config: &GgufConfig, heads: usize) -> Result<usize, SpecError> {
    even_split(
        &config.key("ssm.inner_size"),
        config.usize("ssm.inner_size")?,
        &config.key("ssm.time_step_rank"),
        heads,
    )
}
