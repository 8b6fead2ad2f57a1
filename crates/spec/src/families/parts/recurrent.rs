//! What recurrent and hybrid families share: the gated delta rule, Mamba-2, and models in which
//! some layers mix by recurrence and the others by attention.

use super::experts_parts::partial_rope;
use super::parts::{
    Sizes, activation, even_split, gguf_head_dim, gguf_rope, interval, layer_types, pre_norm_layer,
};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::mixers::{
    Attention, Decay, DeltaOutputGate, DeltaRule, KeySharing, Mamba2, MambaNorm, Mixer, QkNorm,
};
use crate::model::{Activation, FeedForward, ModelSpec, Norm};
use crate::naming::{Fused, Split};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs};

/// Two kinds of layers, apart only in their mixers.
pub(super) struct Hybrid {
    /// Which layers have `mixer`; the others have `attention`.
    pub recurrent: Vec<bool>,
    pub mixer: Mixer,
    pub attention: Mixer,
}

impl Hybrid {
    /// Pre-norm layers, each with the feed-forward `feed_forward(layer)` says.
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

/// Which layers `layer_types` calls recurrent, under any of the family's words for it.
pub(super) fn recurrent_layers(
    config: &Config,
    layers: usize,
    known: &'static [&'static str],
) -> Result<Option<Vec<bool>>, SpecError> {
    let attention = ["attention", "full_attention"];
    let types = layer_types(config, layers, known)?;
    Ok(types.map(|types| types.iter().map(|kind| !attention.contains(kind)).collect()))
}

/// Sizes where the file lists key/value heads for each layer, 0 for the recurrent ones; and
/// which those are.
pub(super) fn gguf_hybrid(config: &GgufConfig) -> Result<(Sizes, Vec<bool>), SpecError> {
    gguf_hybrid_with(config, gguf_head_dim(config)?)
}

/// For architectures that state their heads' size in their own way.
pub(super) fn gguf_hybrid_with(
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

/// Whether any of the file's layers has the tensor.
pub(super) fn gguf_any_layer(config: &GgufConfig, layers: usize, tensor: &str) -> bool {
    (0..layers).any(|layer| config.has(&format!("blk.{layer}.{tensor}")))
}

/// The recurrent mixers' convolutions know only this activation.
pub(super) fn require_silu(config: &Config, field: &str) -> Result<(), SpecError> {
    match activation(config, field, Activation::Silu)? {
        Activation::Silu => Ok(()),
        _ => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{}`", config.str(field)?.unwrap_or_default()),
            supported: "silu",
        }),
    }
}

/// Qwen's mixers: three of four layers, or as the config says, by the gated delta rule, the
/// others by attention with an output gate.
pub(super) fn qwen_hybrid(config: &Config, sizes: &Sizes) -> Result<Hybrid, SpecError> {
    require_silu(config, "hidden_act")?;
    let known = &["linear_attention", "full_attention"];
    let recurrent = match recurrent_layers(config, sizes.layers, known)? {
        Some(recurrent) => recurrent,
        None => {
            let field = "full_attention_interval";
            let attention = config.usize_or(field, ATTENTION_INTERVAL)?;
            all_but_each(interval(config.path(field), attention)?, sizes.layers)
        }
    };
    let rope = partial_rope(config, 10_000.0, sizes.head_dim, sizes.head_dim / 4)?;
    let bias = config.bool_or("attention_bias", false)?;
    Ok(Hybrid {
        recurrent,
        mixer: Mixer::DeltaRule(DeltaRule {
            key_heads: config.usize_or("linear_num_key_heads", 16)?,
            value_heads: config.usize_or("linear_num_value_heads", 32)?,
            sharing: KeySharing::Neighbours,
            key_dim: config.usize_or("linear_key_head_dim", 128)?,
            value_dim: config.usize_or("linear_value_head_dim", 128)?,
            kernel: config.usize_or("linear_conv_kernel_dim", 4)?,
            decay: Decay::PerHead,
            gate: DeltaOutputGate::Silu,
            norm: Norm::rms(sizes.eps),
        }),
        attention: Mixer::Attention(Attention {
            qkv_bias: bias,
            output_bias: bias,
            ..qwen_attention(sizes, rope)
        }),
    })
}

pub(super) fn gguf_qwen_hybrid(
    config: &GgufConfig,
    sizes: &Sizes,
    sharing: KeySharing,
) -> Result<Hybrid, SpecError> {
    let recurrent = match config.per_layer("attention.recurrent_layers", sizes.layers)? {
        Some(flags) => flags.iter().map(|flag| *flag != 0).collect(),
        None => {
            let field = "full_attention_interval";
            let attention = config.usize_opt(field)?.unwrap_or(ATTENTION_INTERVAL);
            all_but_each(interval(config.key(field), attention)?, sizes.layers)
        }
    };
    let value_heads = config.usize("ssm.time_step_rank")?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Halves)?;
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
        attention: Mixer::Attention(Attention {
            qkv_bias: gguf_any_layer(config, sizes.layers, "attn_q.bias"),
            output_bias: gguf_any_layer(config, sizes.layers, "attn_output.bias"),
            ..qwen_attention(sizes, rope)
        }),
    })
}

fn qwen_attention(sizes: &Sizes, rope: Rope) -> Attention {
    Attention {
        qk_norm: Some(QkNorm::per_head(Norm::rms(sizes.eps))),
        output_gate: true,
        ..sizes.attention(Some(rope))
    }
}

const ATTENTION_INTERVAL: usize = 4;

fn all_but_each(interval: usize, layers: usize) -> Vec<bool> {
    (1..=layers).map(|layer| layer % interval != 0).collect()
}

/// Each head's query rows, then its gate's.
pub(super) const QUERY_AND_GATE: Fused = Fused {
    name: "self_attn.q_proj.weight",
    parts: &[LayerRole::Query, LayerRole::OutputGate],
    split: Split::PerHead,
};

pub(super) const DELTA_CONV: Fused = Fused {
    name: "linear_attn.conv1d.weight",
    parts: CONV_PARTS,
    split: Split::Sequential,
};

pub(super) const GGUF_QUERY_AND_GATE: Fused = Fused {
    name: "attn_q.weight",
    ..QUERY_AND_GATE
};

pub(super) const GGUF_DELTA_CONV: Fused = Fused {
    name: "ssm_conv1d.weight",
    ..DELTA_CONV
};

pub(super) const GGUF_DELTA_QKV: Fused = Fused {
    name: "attn_qkv.weight",
    parts: &[
        LayerRole::DeltaQuery,
        LayerRole::DeltaKey,
        LayerRole::DeltaValue,
    ],
    split: Split::Sequential,
};

const CONV_PARTS: &[LayerRole] = &[
    LayerRole::DeltaQueryConv,
    LayerRole::DeltaKeyConv,
    LayerRole::DeltaValueConv,
];

/// The names that Mamba-2's families give the same numbers.
pub(super) struct MambaFields {
    pub heads: &'static str,
    pub head_dim: &'static str,
    pub groups: &'static str,
    pub state: &'static str,
    pub kernel: &'static str,
    pub conv_bias: &'static str,
    pub projection_bias: &'static str,
}

/// Of the families that have other mixers too.
pub(super) const PREFIXED: MambaFields = MambaFields {
    heads: "mamba_n_heads",
    head_dim: "mamba_d_head",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    kernel: "mamba_d_conv",
    conv_bias: "mamba_conv_bias",
    projection_bias: "mamba_proj_bias",
};

impl MambaFields {
    /// Without a norm; `inner` is what the heads share where the config leaves their size open.
    pub fn read(&self, config: &Config, inner: usize) -> Result<Mamba2, SpecError> {
        let heads = config.usize(self.heads)?;
        let left_open = config.get(self.head_dim).is_none_or(|dim| dim == "auto");
        let step_limits = match config.f64s("time_step_limit", 2)?.as_deref() {
            Some([least, most]) => (*least as f32, *most as f32),
            _ => (0.0, f32::INFINITY),
        };
        Ok(Mamba2 {
            heads,
            head_dim: if left_open {
                even_split("the mixer's width", inner, self.heads, heads)?
            } else {
                config.usize(self.head_dim)?
            },
            groups: config.usize(self.groups)?,
            state: config.usize(self.state)?,
            kernel: config.usize_or(self.kernel, 4)?,
            conv_bias: config.bool_or(self.conv_bias, true)?,
            projection_bias: config.bool_or(self.projection_bias, false)?,
            norm: MambaNorm::None,
            step_limits,
            scales: [1.0; 5],
        })
    }
}

/// Mamba-2 as llama.cpp knows it: a norm, where there is one, over each group after the gate, and
/// no limits on the step.
pub(super) fn gguf_mamba2(
    config: &GgufConfig,
    layers: usize,
    eps: f32,
) -> Result<Mamba2, SpecError> {
    let heads = config.usize("ssm.time_step_rank")?;
    let groups = config.usize("ssm.group_count")?;
    let norm = Norm::rms(eps);
    Ok(Mamba2 {
        heads,
        head_dim: gguf_inner_split(config, heads)?,
        groups,
        state: config.usize("ssm.state_size")?,
        kernel: config.usize("ssm.conv_kernel")?,
        conv_bias: gguf_any_layer(config, layers, "ssm_conv1d.bias"),
        projection_bias: gguf_any_layer(config, layers, "ssm_in.bias"),
        norm: if gguf_any_layer(config, layers, "ssm_norm.weight") {
            MambaNorm::AfterGate { norm, groups }
        } else {
            MambaNorm::None
        },
        step_limits: (0.0, f32::INFINITY),
        scales: [1.0; 5],
    })
}

fn gguf_inner_split(config: &GgufConfig, heads: usize) -> Result<usize, SpecError> {
    even_split(
        &config.key("ssm.inner_size"),
        config.usize("ssm.inner_size")?,
        &config.key("ssm.time_step_rank"),
        heads,
    )
}

/// Where Qwen's hybrids keep the norm before the feed-forward.
pub(super) const GGUF_POST_ATTENTION: [(LayerRole, &str); 2] = [
    (LayerRole::FeedForwardPreNorm, "post_attention_norm.weight"),
    (LayerRole::ExpertsPreNorm, "post_attention_norm.weight"),
];
