//! Reads MiMo-V2-Flash from GGUF.

use super::{GLOBAL_INTERVAL, ModelParts};
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::families::common::{
    Mixture, Sizes, gguf_experts, gguf_rope, gguf_router, gguf_scale, gguf_tied,
    gguf_windowed_layers, normalised_sigmoid, without_further_layers,
};
use crate::mixers::Attention;
use crate::model::ModelSpec;
use crate::rope::{Rope, RopePairs};

pub(super) fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let head_dim = config.usize("attention.key_length")?;
    let mut sizes = Sizes::gguf_with_heads(config, head_dim, None)?;
    sizes = without_further_layers(config, sizes)?;
    let windowed = gguf_windowed_layers(config, sizes.layers, GLOBAL_INTERVAL)?;
    let kv_heads = config.per_layer("attention.head_count_kv", sizes.layers)?;
    let kv_heads_where = |local: bool| {
        let layer = windowed.iter().position(|windowed| *windowed == local)?;
        kv_heads.as_ref()?.get(layer).copied()
    };
    let local_kv_heads = kv_heads_where(true).unwrap_or(sizes.heads);
    sizes.kv_heads = kv_heads_where(false).unwrap_or(sizes.heads);
    let global = gguf_rope(config, head_dim, RopePairs::Halves)?;
    let local_theta = config.f64_opt("rope.freq_base_swa")?;
    let sparse: Vec<bool> = (0..sizes.layers)
        .map(|layer| config.has(&format!("blk.{layer}.ffn_gate_inp.weight")))
        .collect();
    let first_sparse = sparse.iter().position(|sparse| *sparse).unwrap_or(0);
    let router = gguf_router(config, normalised_sigmoid(0.0), first_sparse)?;
    let parts = ModelParts {
        local: Rope {
            theta: local_theta.map_or(global.theta, |theta| theta as f32),
            ..global.clone()
        },
        global,
        windowed,
        window: config.usize("attention.sliding_window")?,
        local_kv_heads,
        attention: Attention {
            value_dim: config.usize("attention.value_length")?,
            value_scale: gguf_scale(config, "attention.value_scale")?.unwrap_or(1.0),
            ..sizes.gguf_attention(config, None)
        },
        mixture: Mixture::new(&sizes, gguf_experts(config, router)?, sparse),
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}
