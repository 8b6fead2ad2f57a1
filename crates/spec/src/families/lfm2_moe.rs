//! LFM2 with experts: the dense model's mixers, and above the first few layers experts chosen by
//! sigmoid scores.

use super::common::{
    FEED_FORWARD, Mixture, TOP_K, gated_experts, gguf_hybrid, gguf_mixture, gguf_tied,
    normalised_sigmoid, sparse_from,
};
use super::{Family, GgufFamily, lfm2};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::model::ModelSpec;
use crate::naming::{ConvShape, LayerNames, Naming};
use crate::roles::LayerRole::{self, *};

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
    facts: FamilyFacts {
        templates: &["lfm2"],
        mlx: MlxFacts::with_router(RouterPrecision::EightBits),
        ..FamilyFacts::PLAIN
    },
};

const HUGGING_FACE: Naming = Naming {
    overrides: &[lfm2::MIXERS, lfm2::DENSE, ROUTER, EXPERTS],
    ..lfm2::UNNAMED
};

const MLX: Naming = Naming {
    overrides: &[lfm2::MIXERS, FEED_FORWARD, ROUTER, MLX_EXPERTS],
    conv_shape: ConvShape::ChannelLast,
    ..lfm2::UNNAMED
};

const ROUTER: LayerNames = &[
    (LayerRole::Router, "feed_forward.gate.weight"),
    (RouterCorrection, "feed_forward.expert_bias"),
];

const EXPERTS: LayerNames = &[
    (ExpertGate, "feed_forward.experts.{e}.w1.weight"),
    (ExpertUp, "feed_forward.experts.{e}.w3.weight"),
    (ExpertDown, "feed_forward.experts.{e}.w2.weight"),
];

const MLX_EXPERTS: LayerNames = &[
    (ExpertGate, "feed_forward.switch_mlp.gate_proj.weight"),
    (ExpertUp, "feed_forward.switch_mlp.up_proj.weight"),
    (ExpertDown, "feed_forward.switch_mlp.down_proj.weight"),
];

/// Added to the sum that the weights are divided by.
const SUM_EPS: f32 = 1e-6;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.renamed(lfm2::OLD_NAMES);
    let sizes = lfm2::sizes(config)?;
    let normalise = config.bool_or("norm_topk_prob", true)?;
    let router = Router {
        correction: config.bool_or("use_expert_bias", true)?,
        normalise: normalise.then_some(SUM_EPS),
        scale: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        ..Router::sigmoid()
    };
    let fields = ["num_experts", TOP_K, "moe_intermediate_size"];
    let experts = gated_experts(config, fields, router)?;
    let sparse = sparse_from(config.usize_or("num_dense_layers", 2)?, sizes.layers);
    let mixture = Mixture::new(&sizes, experts, sparse);
    let tied = config.bool_or("tie_word_embeddings", true)?;
    let mixers = lfm2::mixers(config, &sizes)?;
    Ok(mixers.model(&sizes, "lfm2_moe", tied, |layer| {
        mixture.feed_forward(layer)
    }))
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let (sizes, recurrent) = gguf_hybrid(config)?;
    let mixture = gguf_mixture(config, &sizes, normalised_sigmoid(SUM_EPS))?;
    let tied = gguf_tied(config);
    let mixers = lfm2::gguf_mixers(config, &sizes, recurrent)?;
    Ok(mixers.model(&sizes, "lfm2_moe", tied, |layer| {
        mixture.feed_forward(layer)
    }))
}
