//! Routers and experts in GGUF headers.

use super::experts::{Mixture, NORMALISE_EPS, groups, shared, sparse_from};
use super::gguf::gguf_scale;
use super::sizes::Sizes;
use crate::config::GgufConfig;
use crate::error::SpecError;
use crate::experts::{Experts, GroupScore, Router, Scores};
use crate::model::{Activation, Dense};

/// The number of layers before the first with experts.
pub(crate) fn gguf_dense_layers(config: &GgufConfig) -> Result<usize, SpecError> {
    Ok(config.usize_opt("leading_dense_block_count")?.unwrap_or(0))
}

/// Experts in all layers after the first few; `base` is the architecture's default router.
pub(crate) fn gguf_mixture(
    config: &GgufConfig,
    sizes: &Sizes,
    base: Router,
) -> Result<Mixture, SpecError> {
    let first = gguf_dense_layers(config)?;
    let router = gguf_router(config, base, first)?;
    let experts = gguf_experts(config, router)?;
    Ok(Mixture::new(
        sizes,
        experts,
        sparse_from(first, sizes.layers),
    ))
}

/// Gated experts of the size that the header states.
pub(crate) fn gguf_experts(config: &GgufConfig, router: Router) -> Result<Experts, SpecError> {
    gguf_experts_of(config, config.usize("expert_feed_forward_length")?, router)
}

/// For architectures with another key for the experts' size.
pub(crate) fn gguf_experts_of(
    config: &GgufConfig,
    size: usize,
    router: Router,
) -> Result<Experts, SpecError> {
    let expert = Dense::gated(size, Activation::Silu);
    let together = config.usize_opt("expert_shared_count")?.unwrap_or(0);
    Ok(Experts {
        count: config.usize("expert_count")?,
        top_k: config.usize("expert_used_count")?,
        expert,
        router,
        shared: shared(together, &expert),
        weigh_input: false,
    })
}

/// The header's router; `base` is the architecture's default. `first_sparse` is the first layer
/// with experts.
pub(crate) fn gguf_router(
    config: &GgufConfig,
    base: Router,
    first_sparse: usize,
) -> Result<Router, SpecError> {
    let scores = match config.usize_opt("expert_gating_func")? {
        None | Some(0) => base.scores,
        Some(1) => Scores::Softmax,
        Some(2) => Scores::Sigmoid,
        Some(other) => {
            return Err(SpecError::Unsupported {
                field: config.key("expert_gating_func"),
                found: other.to_string(),
                supported: "1 (softmax), 2 (sigmoid)",
            });
        }
    };
    let normalise = config.bool_or("expert_weights_norm", base.normalise.is_some())?;
    let scale = gguf_scale(config, "expert_weights_scale")?;
    // DeepSeek-V2 has the first, all later ones the second.
    let group_score = match scores {
        Scores::Softmax => GroupScore::Best,
        Scores::Sigmoid => GroupScore::BestTwo,
    };
    Ok(Router {
        scores,
        correction: config.has(&format!("blk.{first_sparse}.exp_probs_b.bias")),
        groups: groups(
            config.usize_opt("expert_group_count")?.unwrap_or(1).max(1),
            config.usize_opt("expert_group_used_count")?.unwrap_or(1),
            group_score,
        ),
        normalise: normalise.then_some(base.normalise.unwrap_or(NORMALISE_EPS)),
        scale: scale.unwrap_or(base.scale),
        ..base
    })
}

/// The header's layers without those for multi-token prediction.
pub(crate) fn without_further_layers(
    config: &GgufConfig,
    sizes: Sizes,
) -> Result<Sizes, SpecError> {
    let further = config.usize_opt("nextn_predict_layers")?.unwrap_or(0);
    Ok(Sizes {
        layers: sizes.layers.saturating_sub(further),
        ..sizes
    })
}
