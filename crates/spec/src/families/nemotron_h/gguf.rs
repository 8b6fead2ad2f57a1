//! Reads Nemotron-H from GGUF.

use super::{Kind, ModelParts, ungated};
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::experts::Router;
use crate::families::common::{
    gguf_any_layer, gguf_experts, gguf_hybrid, gguf_mamba2, gguf_router, gguf_tied,
    without_further_layers,
};
use crate::model::{Activation, Dense, ModelSpec};

/// The tensors of a layer identify its kind.
pub(super) fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, _) = gguf_hybrid(config)?;
    let sizes = without_further_layers(config, sizes)?;
    let kind = |layer: usize| {
        let has = |tensor| config.has(&format!("blk.{layer}.{tensor}.weight"));
        match () {
            () if has("ssm_in") => Kind::Mamba,
            () if has("attn_q") => Kind::Attention,
            () if has("ffn_gate_inp") => Kind::Experts,
            () => Kind::Dense,
        }
    };
    let kinds: Vec<Kind> = (0..sizes.layers).map(kind).collect();
    let layer_of = |kind| kinds.iter().position(|other| *other == kind);
    let dense = match layer_of(Kind::Dense) {
        Some(layer) => config.rows(&format!("blk.{layer}.ffn_up.weight"))?,
        None => 0,
    };
    let biased = gguf_any_layer(config, sizes.layers, "ffn_up.bias");
    let parts = ModelParts {
        mamba: gguf_mamba2(config, sizes.layers, sizes.eps)?,
        attention: sizes.gguf_attention(config, None),
        dense: Dense::plain(dense, Activation::Relu2, biased),
        experts: match layer_of(Kind::Experts) {
            Some(layer) => {
                refuse_latent(config)?;
                let shared = config.usize("expert_shared_feed_forward_length")?;
                let router = gguf_router(config, Router::sigmoid(), layer)?;
                let experts = gguf_experts(config, router)?;
                Some(ungated(experts, shared, Activation::Relu2))
            }
            None => None,
        },
    };
    Ok(parts.model(&sizes, gguf_tied(config), &kinds))
}

/// Experts on a vector shorter than the hidden size are not supported.
fn refuse_latent(config: &GgufConfig) -> Result<(), SpecError> {
    let field = "moe_latent_size";
    match config.usize_opt(field)? {
        None => Ok(()),
        Some(size) => Err(SpecError::Unsupported {
            field: config.key(field),
            found: size.to_string(),
            supported: "absent",
        }),
    }
}
