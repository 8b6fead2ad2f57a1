//! Reads Llama 4 from GGUF.

use super::{CHUNK, ModelParts, NO_ROPE_INTERVAL, TEMPERATURE};
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::experts::Router;
use crate::families::common::{
    Mixture, Sizes, all_but_each, each, gguf_experts, gguf_rope, gguf_tied, positive,
};
use crate::model::ModelSpec;
use crate::rope::RopePairs;

/// The size that does not normalise queries and keys; GGUF has no key for it.
const EXPERTS_OF_MAVERICK: usize = 128;

pub(super) fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    // In that case no layer is chunked, and all have RoPE.
    let plain = config.usize_opt("attention.sliding_window")? == Some(0);
    let local = if plain {
        vec![true; sizes.layers]
    } else {
        all_but_each(NO_ROPE_INTERVAL, sizes.layers)
    };
    let experts = gguf_experts(config, Router::sigmoid())?;
    let step = "interleave_moe_layer_step";
    let step = positive(&config.key(step), config.usize(step)?)?;
    let parts = ModelParts {
        attention: sizes.gguf_attention(config, None),
        rope: gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?,
        with_rope: local.clone(),
        chunked: local,
        chunk: (!plain).then_some(CHUNK),
        temperature: Some(TEMPERATURE),
        normalised: experts.count != EXPERTS_OF_MAVERICK,
        mixture: Mixture::new(&sizes, experts, each(step, sizes.layers)),
        tied: gguf_tied(config),
    };
    Ok(parts.model(&sizes))
}
