//! Kimi Linear: the delta rule with a decay for each key channel, every few layers latent
//! attention without positions, and DeepSeek's experts.

mod gguf;

use super::common::{
    BLOCK_SPARSE, BLOCK_SPARSE_ROUTER, CorrectedDefaults, GGUF_LATENT, GGUF_OLDER_LATENT, Hybrid,
    LATENT, MLX_LATENT, MLX_LATENT_NAMES, Mixture, SWITCH_MLP, Sizes, UNGROUPED, corrected_experts,
    expect_switch, expect_word, latent, layer_numbers, recurrent_layers, require_silu,
    sparse_layers,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::mixers::{Decay, DeltaOutputGate, DeltaRule, KeySharing, Mixer};
use crate::model::{ModelSpec, Norm};
use crate::naming::{ConvShape, LayerNames, Naming};
use crate::roles::LayerRole::*;

pub(super) const FAMILY: Family = Family {
    model_types: &["kimi_linear"],
    from_config,
    hugging_face: Naming {
        overrides: &[DELTA, TORCH, BLOCK_SPARSE_ROUTER, BLOCK_SPARSE],
        fused: LATENT,
        also: Some(&Naming {
            overrides: &[SAVED, DELTA, TORCH, BLOCK_SPARSE_ROUTER, BLOCK_SPARSE],
            fused: LATENT,
            ..PLAIN.hugging_face
        }),
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[DELTA, MLX, MLX_LATENT_NAMES, SWITCH_MLP],
        fused: MLX_LATENT,
        conv_shape: ConvShape::ChannelLast,
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily {
        architectures: &["kimi-linear"],
        from_gguf: gguf::from_gguf,
        naming: Naming {
            overrides: &[gguf::NAMES],
            fused: GGUF_LATENT,
            also: Some(&Naming {
                overrides: &[gguf::NAMES],
                fused: GGUF_OLDER_LATENT,
                ..PLAIN.gguf
            }),
            ..PLAIN.gguf
        },
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            required_fields: &["linear_attn_config"],
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        ..FamilyFacts::PLAIN
    },
};

const DELTA: LayerNames = &[
    (DeltaQuery, "self_attn.q_proj.weight"),
    (DeltaKey, "self_attn.k_proj.weight"),
    (DeltaValue, "self_attn.v_proj.weight"),
    (DeltaBeta, "self_attn.b_proj.weight"),
    (DeltaDecayDown, "self_attn.f_a_proj.weight"),
    (DeltaDecayUp, "self_attn.f_b_proj.weight"),
    (DeltaDecayBias, "self_attn.dt_bias"),
    (DeltaRate, "self_attn.A_log"),
    (DeltaGateDown, "self_attn.g_a_proj.weight"),
    (DeltaGateUp, "self_attn.g_b_proj.weight"),
    (DeltaNorm, "self_attn.o_norm.weight"),
    (DeltaOutput, "self_attn.o_proj.weight"),
];

/// mlx-lm's names that differ.
const TORCH: LayerNames = &[
    (DeltaQueryConv, "self_attn.q_conv1d.weight"),
    (DeltaKeyConv, "self_attn.k_conv1d.weight"),
    (DeltaValueConv, "self_attn.v_conv1d.weight"),
    (
        RouterCorrection,
        "block_sparse_moe.gate.e_score_correction_bias",
    ),
    (
        SharedGate,
        "block_sparse_moe.shared_experts.gate_proj.weight",
    ),
    (SharedUp, "block_sparse_moe.shared_experts.up_proj.weight"),
    (
        SharedDown,
        "block_sparse_moe.shared_experts.down_proj.weight",
    ),
];

/// transformers saves dense layers under the experts' name.
const SAVED: LayerNames = &[
    (Gate, "block_sparse_moe.gate_proj.weight"),
    (Up, "block_sparse_moe.up_proj.weight"),
    (Down, "block_sparse_moe.down_proj.weight"),
];

const MLX: LayerNames = &[
    (DeltaQueryConv, "self_attn.q_conv.conv.weight"),
    (DeltaKeyConv, "self_attn.k_conv.conv.weight"),
    (DeltaValueConv, "self_attn.v_conv.conv.weight"),
    (RouterCorrection, "mlp.e_score_correction_bias"),
];

/// Other names for the same fields.
const USUAL_NAMES: &[(&str, &str)] = &[
    ("model_max_length", "max_position_embeddings"),
    ("num_local_experts", "n_routed_experts"),
    ("num_experts", "n_routed_experts"),
    ("num_experts_per_token", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
    ("num_expert_group", "n_group"),
    ("moe_renormalize", "norm_topk_prob"),
];

const DEFAULTS: CorrectedDefaults = CorrectedDefaults {
    scale: 2.446,
    ..UNGROUPED
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    require_silu(config, "hidden_act")?;
    expect_word(config, "moe_router_activation_func", "sigmoid")?;
    expect_switch(config, "mla_use_nope", true)?;
    let config = &config.renamed(USUAL_NAMES);
    let sizes = Sizes::with_head_dim(config, "rms_norm_eps", config.usize("qk_rope_head_dim")?)?;
    let experts = corrected_experts(config, &DEFAULTS)?;
    let mixture = Mixture::new(&sizes, experts, sparse_layers(config, 1, sizes.layers)?);
    let mixers = Hybrid {
        recurrent: recurrent(config, sizes.layers)?,
        mixer: delta_rule(config, sizes.eps)?,
        attention: Mixer::Latent(latent(config, sizes.heads, None)?),
    };
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(mixers.model(&sizes, "kimi_linear", tied, |layer| {
        mixture.feed_forward(layer)
    }))
}

/// Published configs nest the delta rule's numbers in a table.
fn delta_rule(config: &Config, eps: f32) -> Result<Mixer, SpecError> {
    let table = config.object("linear_attn_config")?;
    let number = |nested: &str, field: &str, default: usize| match &table {
        Some(table) if table.get(nested).is_some() => table.usize(nested),
        _ => config.usize_or(field, default),
    };
    Ok(per_channel(
        number("num_heads", "linear_num_heads", 32)?,
        number("head_dim", "linear_head_dim", 128)?,
        number("short_conv_kernel_size", "linear_conv_kernel_dim", 4)?,
        eps,
    ))
}

/// Decay and gate both pass through a vector as long as a head.
fn per_channel(heads: usize, head_dim: usize, kernel: usize, eps: f32) -> Mixer {
    Mixer::DeltaRule(DeltaRule {
        key_heads: heads,
        value_heads: heads,
        sharing: KeySharing::Adjacent,
        key_dim: head_dim,
        value_dim: head_dim,
        kernel,
        decay: Decay::PerChannel { rank: head_dim },
        gate: DeltaOutputGate::LowRankSigmoid { rank: head_dim },
        norm: Norm::rms(eps),
    })
}

/// Which layers have the delta rule; the published lists count layers from one.
fn recurrent(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let known = &["linear_attention", "full_attention"];
    if let Some(recurrent) = recurrent_layers(config, layers, known)? {
        return Ok(recurrent);
    }
    let attention = match config.object("linear_attn_config")? {
        Some(table) => layer_numbers(&table, "full_attn_layers")?,
        None => None,
    };
    Ok(match attention {
        Some(numbers) => (1..=layers)
            .map(|layer| !numbers.contains(&layer))
            .collect(),
        None => (0..layers)
            .map(|layer| layer == 0 || layer % 4 != 0)
            .collect(),
    })
}
