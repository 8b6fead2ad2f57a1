//! Kimi Linear: the delta rule with a decay for each key channel, every few layers latent
//! attention that knows no positions, and DeepSeek's experts.

use super::experts_parts::{
    BLOCK_SPARSE, CorrectedDefaults, Mixture, SWITCH_MLP, corrected_experts, expect_switch,
    expect_word, gguf_experts, gguf_router, layer_numbers, sparse_from, sparse_layers,
};
use super::latent_parts::{
    FUSED, GGUF_FUSED, GGUF_OLDER_FUSED, MLX_FUSED, MLX_KEY, MLX_VALUE, gguf_latent, latent,
};
use super::parts::{Sizes, gguf_tied};
use super::recurrent_parts::{Hybrid, gguf_hybrid_with, recurrent_layers, require_silu};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::mixers::{Decay, DeltaOutputGate, DeltaRule, KeySharing, LatentAttention, Mixer};
use crate::model::{Activation, ModelSpec, Norm};
use crate::naming::{ConvShape, Naming, join};
use crate::roles::LayerRole;

pub(super) const FAMILY: Family = Family {
    model_types: &["kimi_linear"],
    from_config,
    hugging_face: Naming {
        overrides: &PUBLISHED,
        fused: FUSED,
        // As transformers saves it: dense layers go by the experts' name.
        also: Some(&Naming {
            overrides: &SAVED,
            fused: FUSED,
            ..PLAIN.0
        }),
        ..PLAIN.0
    },
    mlx: Some(Naming {
        overrides: &MLX,
        fused: MLX_FUSED,
        conv_shape: ConvShape::ChannelLast,
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["kimi-linear"],
        from_gguf,
        naming: Naming {
            overrides: &GGUF,
            fused: GGUF_FUSED,
            also: Some(&Naming {
                overrides: &GGUF,
                fused: GGUF_OLDER_FUSED,
                ..PLAIN.1
            }),
            ..PLAIN.1
        },
    }),
};

const PUBLISHED: [(LayerRole, &str); 24] = join(&[
    &DELTA,
    &[
        (LayerRole::DeltaQueryConv, "self_attn.q_conv1d.weight"),
        (LayerRole::DeltaKeyConv, "self_attn.k_conv1d.weight"),
        (LayerRole::DeltaValueConv, "self_attn.v_conv1d.weight"),
        (
            LayerRole::RouterCorrection,
            "block_sparse_moe.gate.e_score_correction_bias",
        ),
        (
            LayerRole::SharedGate,
            "block_sparse_moe.shared_experts.gate_proj.weight",
        ),
        (
            LayerRole::SharedUp,
            "block_sparse_moe.shared_experts.up_proj.weight",
        ),
        (
            LayerRole::SharedDown,
            "block_sparse_moe.shared_experts.down_proj.weight",
        ),
    ],
    &BLOCK_SPARSE,
]);

const SAVED: [(LayerRole, &str); 27] = join(&[
    &[
        (LayerRole::Gate, "block_sparse_moe.gate_proj.weight"),
        (LayerRole::Up, "block_sparse_moe.up_proj.weight"),
        (LayerRole::Down, "block_sparse_moe.down_proj.weight"),
    ],
    &PUBLISHED,
]);

const MLX: [(LayerRole, &str); 21] = join(&[
    &DELTA,
    &SWITCH_MLP,
    &[
        MLX_KEY,
        MLX_VALUE,
        (LayerRole::RouterCorrection, "mlp.e_score_correction_bias"),
        (LayerRole::DeltaQueryConv, "self_attn.q_conv.conv.weight"),
        (LayerRole::DeltaKeyConv, "self_attn.k_conv.conv.weight"),
        (LayerRole::DeltaValueConv, "self_attn.v_conv.conv.weight"),
    ],
]);

const DELTA: [(LayerRole, &str); 12] = [
    (LayerRole::DeltaQuery, "self_attn.q_proj.weight"),
    (LayerRole::DeltaKey, "self_attn.k_proj.weight"),
    (LayerRole::DeltaValue, "self_attn.v_proj.weight"),
    (LayerRole::DeltaBeta, "self_attn.b_proj.weight"),
    (LayerRole::DeltaDecayDown, "self_attn.f_a_proj.weight"),
    (LayerRole::DeltaDecayUp, "self_attn.f_b_proj.weight"),
    (LayerRole::DeltaDecayBias, "self_attn.dt_bias"),
    (LayerRole::DeltaRate, "self_attn.A_log"),
    (LayerRole::DeltaGateDown, "self_attn.g_a_proj.weight"),
    (LayerRole::DeltaGateUp, "self_attn.g_b_proj.weight"),
    (LayerRole::DeltaNorm, "self_attn.o_norm.weight"),
    (LayerRole::DeltaOutput, "self_attn.o_proj.weight"),
];

const GGUF: [(LayerRole, &str); 11] = [
    (LayerRole::DeltaQuery, "attn_q.weight"),
    (LayerRole::DeltaKey, "attn_k.weight"),
    (LayerRole::DeltaValue, "attn_v.weight"),
    (LayerRole::DeltaQueryConv, "ssm_conv1d_q.weight"),
    (LayerRole::DeltaKeyConv, "ssm_conv1d_k.weight"),
    (LayerRole::DeltaValueConv, "ssm_conv1d_v.weight"),
    (LayerRole::DeltaDecayDown, "ssm_f_a.weight"),
    (LayerRole::DeltaDecayUp, "ssm_f_b.weight"),
    (LayerRole::DeltaGateDown, "ssm_g_a.weight"),
    (LayerRole::DeltaGateUp, "ssm_g_b.weight"),
    (LayerRole::DeltaOutput, "attn_output.weight"),
];

/// What others call the same.
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
    groups: 1,
    groups_kept: 1,
    shared: 1,
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    require_silu(config, "hidden_act")?;
    expect_word(config, "moe_router_activation_func", "sigmoid")?;
    expect_switch(config, "mla_use_nope", true)?;
    let config = &config.renamed(USUAL_NAMES);
    let sizes = Sizes::with_head_dim(config, "rms_norm_eps", config.usize("qk_rope_head_dim")?)?;
    let mixture = Mixture {
        experts: corrected_experts(config, &DEFAULTS)?,
        dense: sizes.gated(Activation::Silu, false),
        sparse: sparse_layers(config, 1, sizes.layers)?,
    };
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

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, recurrent) = gguf_hybrid_with(config, config.usize("rope.dimension_count")?)?;
    let first_sparse = config.usize_opt("leading_dense_block_count")?.unwrap_or(0);
    let base = Router {
        normalise: Some(0.0),
        ..Router::sigmoid()
    };
    let router = gguf_router(config, base, first_sparse)?;
    let mixture = Mixture {
        experts: gguf_experts(config, config.usize("expert_feed_forward_length")?, router)?,
        dense: sizes.gated(Activation::Silu, false),
        sparse: sparse_from(first_sparse, sizes.layers),
    };
    // The header has no number for the delta rule's heads; each has one row here.
    let heads = match recurrent.iter().position(|recurrent| *recurrent) {
        Some(layer) => config.rows(&format!("blk.{layer}.ssm_beta.weight"))?,
        None => sizes.heads,
    };
    let head_dim = config.usize("kda.head_dim")?;
    let kernel = config.usize("ssm.conv_kernel")?;
    let mixers = Hybrid {
        recurrent,
        mixer: per_channel(heads, head_dim, kernel, sizes.eps),
        attention: Mixer::Latent(LatentAttention {
            rope: None,
            ..gguf_latent(config, sizes.heads)?
        }),
    };
    Ok(
        mixers.model(&sizes, "kimi_linear", gguf_tied(config), |layer| {
            mixture.feed_forward(layer)
        }),
    )
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
        sharing: KeySharing::Neighbours,
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
