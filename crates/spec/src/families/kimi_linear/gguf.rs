//! Reads Kimi Linear from GGUF.

use super::per_channel;
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::families::common::{
    Hybrid, gguf_hybrid_with, gguf_latent, gguf_mixture, gguf_tied, normalised_sigmoid,
};
use crate::mixers::{LatentAttention, Mixer};
use crate::model::ModelSpec;
use crate::naming::LayerNames;
use crate::roles::LayerRole::*;

pub(super) const NAMES: LayerNames = &[
    (DeltaQuery, "attn_q.weight"),
    (DeltaKey, "attn_k.weight"),
    (DeltaValue, "attn_v.weight"),
    (DeltaQueryConv, "ssm_conv1d_q.weight"),
    (DeltaKeyConv, "ssm_conv1d_k.weight"),
    (DeltaValueConv, "ssm_conv1d_v.weight"),
    (DeltaDecayDown, "ssm_f_a.weight"),
    (DeltaDecayUp, "ssm_f_b.weight"),
    (DeltaGateDown, "ssm_g_a.weight"),
    (DeltaGateUp, "ssm_g_b.weight"),
    (DeltaOutput, "attn_output.weight"),
];

pub(super) fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, recurrent) = gguf_hybrid_with(config, config.usize("rope.dimension_count")?)?;
    let mixture = gguf_mixture(config, &sizes, normalised_sigmoid(0.0))?;
    // The header has no key for the delta rule's heads; this tensor has one row per head.
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
    let tied = gguf_tied(config);
    Ok(mixers.model(&sizes, "kimi_linear", tied, |layer| {
        mixture.feed_forward(layer)
    }))
}
