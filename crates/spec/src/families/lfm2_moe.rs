//! LFM2 with experts: the dense model's mixers, and above the first few layers experts chosen by
//! sigmoid scores.

use super::experts_parts::{Mixture, gated_experts, gguf_experts, gguf_router, sparse_from};
use super::parts::{Sizes, gguf_tied};
use super::recurrent_parts::{Hybrid, gguf_hybrid};
use super::{Family, GgufFamily, lfm2};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::model::{Activation, ModelSpec};
use crate::naming::{ConvShape, Naming, join};
use crate::roles::LayerRole;

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm2_moe"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(MLX),
    gguf: Some(GgufFamily {
        architectures: &["lfm2moe"],
        from_gguf,
        naming: lfm2::GGUF,
    }),
};

const HUGGING_FACE: Naming = Naming {
    overrides: &join::<17>(&[
        &lfm2::MIXERS,
        &ROUTER,
        &lfm2::DENSE,
        &[
            (LayerRole::ExpertGate, "feed_forward.experts.{e}.w1.weight"),
            (LayerRole::ExpertUp, "feed_forward.experts.{e}.w3.weight"),
            (LayerRole::ExpertDown, "feed_forward.experts.{e}.w2.weight"),
        ],
    ]),
    ..lfm2::UNNAMED
};

const MLX: Naming = Naming {
    overrides: &join::<17>(&[
        &lfm2::MIXERS,
        &ROUTER,
        &[
            (LayerRole::Gate, "feed_forward.gate_proj.weight"),
            (LayerRole::Up, "feed_forward.up_proj.weight"),
            (LayerRole::Down, "feed_forward.down_proj.weight"),
            (
                LayerRole::ExpertGate,
                "feed_forward.switch_mlp.gate_proj.weight",
            ),
            (
                LayerRole::ExpertUp,
                "feed_forward.switch_mlp.up_proj.weight",
            ),
            (
                LayerRole::ExpertDown,
                "feed_forward.switch_mlp.down_proj.weight",
            ),
        ],
    ]),
    conv_shape: ConvShape::ChannelLast,
    ..lfm2::UNNAMED
};

const ROUTER: [(LayerRole, &str); 2] = [
    (LayerRole::Router, "feed_forward.gate.weight"),
    (LayerRole::RouterCorrection, "feed_forward.expert_bias"),
];

/// Added to the sum that the weights are divided by.
const NORMALISE_EPS: f32 = 1e-6;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.renamed(lfm2::OLD_NAMES);
    let sizes = lfm2::sizes(config)?;
    let normalise = config.bool_or("norm_topk_prob", true)?;
    let router = Router {
        correction: config.bool_or("use_expert_bias", true)?,
        normalise: normalise.then_some(NORMALISE_EPS),
        scale: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        ..Router::sigmoid()
    };
    let fields = [
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
    ];
    let experts = gated_experts(config, fields, router)?;
    let first_sparse = config.usize_or("num_dense_layers", 2)?;
    let tied = config.bool_or("tie_word_embeddings", true)?;
    let mixers = lfm2::mixers(config, &sizes)?;
    Ok(model(&sizes, mixers, tied, first_sparse, experts))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, recurrent) = gguf_hybrid(config)?;
    let first_sparse = config.usize_opt("leading_dense_block_count")?.unwrap_or(0);
    let base = Router {
        normalise: Some(NORMALISE_EPS),
        ..Router::sigmoid()
    };
    let router = gguf_router(config, base, first_sparse)?;
    let size = config.usize("expert_feed_forward_length")?;
    let experts = gguf_experts(config, size, router)?;
    let mixers = lfm2::gguf_mixers(config, &sizes, recurrent)?;
    Ok(model(
        &sizes,
        mixers,
        gguf_tied(config),
        first_sparse,
        experts,
    ))
}

fn model(
    sizes: &Sizes,
    mixers: Hybrid,
    tied: bool,
    first_sparse: usize,
    experts: Experts,
) -> ModelSpec {
    let mixture = Mixture {
        experts,
        dense: sizes.gated(Activation::Silu, false),
        sparse: sparse_from(first_sparse, sizes.layers),
    };
    mixers.model(sizes, "lfm2_moe", tied, |layer| mixture.feed_forward(layer))
}
