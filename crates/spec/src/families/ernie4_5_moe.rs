//! ERNIE 4.5 MoE: experts by softmax with a learned correction, in a range of layers.

use serde_json::json;

use super::common::{
    Mixture, Sizes, expect_switch, gated_experts, gguf_dense_layers, gguf_experts, gguf_rope,
    gguf_router, gguf_tied, interval, positive, shared_experts,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::mixers::Mixer;
use crate::model::{FeedForward, Inner, ModelSpec};
use crate::naming::{Ignored, Naming};
use crate::roles::LayerRole::*;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["ernie4_5_moe"],
    from_config,
    hugging_face: Naming {
        overrides: &[&[(RouterCorrection, "mlp.moe_statics.e_score_correction_bias")]],
        ignored: Ignored {
            beginnings: &["model.mtp_"],
            ..PLAIN.hugging_face.ignored
        },
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        refit: Some(without_correction),
        ..PLAIN.mlx_experts
    }),
    gguf: Some(GgufFamily::plain(&["ernie4_5-moe"], from_gguf)),
    facts: FamilyFacts::with_router(RouterPrecision::Uniform),
};

/// mlx-lm omits the correction from the file.
fn without_correction(spec: &mut ModelSpec) {
    let blocks = spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks);
    for branch in blocks.flat_map(|block| &mut block.branches) {
        if let Inner::FeedForward(FeedForward::Experts(experts)) = &mut branch.inner {
            experts.router.correction = false;
        }
    }
}

const MIN_SUM: f64 = 1e-12;

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "moe_k": 6,
        "max_position_embeddings": 131072,
    }));
    expect_switch(config, "use_bias", false)?;
    refuse_large_min_sum(config)?;
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 500_000.0, sizes.head_dim)?.interleaved();
    let router = Router {
        correction: true,
        ..Router::softmax(true)
    };
    let fields = ["moe_num_experts", "moe_k", "moe_intermediate_size"];
    let mut experts = gated_experts(config, fields, router)?;
    experts.shared = shared_experts(config, "moe_num_shared_experts", 2, &experts.expert)?;
    let mixture = Mixture::new(&sizes, experts, sparse(config, sizes.layers)?);
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(mixture.pre_norm_model(&sizes, "ernie4_5_moe", tied, |_| {
        Mixer::Attention(sizes.attention(Some(rope.clone())))
    }))
}

/// The weights' sum is at least this before they are divided by it. It has no effect unless it is
/// large, which is not supported.
fn refuse_large_min_sum(config: &Config) -> Result<(), SpecError> {
    let field = "moe_norm_min";
    match config.f64_or(field, MIN_SUM)? {
        least if least <= MIN_SUM => Ok(()),
        least => Err(SpecError::Unsupported {
            field: config.path(field),
            found: least.to_string(),
            supported: "at most 1e-12",
        }),
    }
}

/// Every `interval`th layer of a range whose end may be -1, the last layer.
fn sparse(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let first = config.usize_or("moe_layer_start_index", 1)?;
    let last = match config.f64_opt("moe_layer_end_index")? {
        None | Some(-1.0) => layers.saturating_sub(1),
        Some(_) => config.usize("moe_layer_end_index")?,
    };
    let step = interval(config, "moe_layer_interval", 1)?;
    let range = first..=last;
    let sparse = (0..layers).map(|layer| range.contains(&layer) && (layer + 1) % step == 0);
    Ok(sparse.collect())
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let first = gguf_dense_layers(config)?;
    let step = "interleave_moe_layer_step";
    let step = positive(&config.key(step), config.usize(step)?)?;
    let sparse: Vec<bool> = (0..sizes.layers)
        .map(|layer| layer >= first && (layer + 1) % step == 0)
        .collect();
    let first_sparse = sparse.iter().position(|sparse| *sparse).unwrap_or(first);
    let router = gguf_router(config, Router::softmax(true), first_sparse)?;
    let mixture = Mixture::new(&sizes, gguf_experts(config, router)?, sparse);
    let tied = gguf_tied(config);
    Ok(mixture.pre_norm_model(&sizes, "ernie4_5_moe", tied, |_| {
        Mixer::Attention(sizes.attention(Some(rope.clone())))
    }))
}
