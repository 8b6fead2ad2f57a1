//! ERNIE 4.5 MoE: experts by softmax with a learned correction, in a range of layers.

use serde_json::json;

use super::experts_parts::{
    Mixture, SWITCH_MLP, gated_experts, gguf_experts, gguf_router, shared_experts,
};
use super::parts::{Sizes, gguf_rope, gguf_tied, interval, refuse_switch};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router};
use crate::mixers::Mixer;
use crate::model::{Activation, FeedForward, Inner, ModelSpec};
use crate::naming::{Ignored, Naming};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["ernie4_5_moe"],
    from_config,
    hugging_face: Naming {
        overrides: &[(
            LayerRole::RouterCorrection,
            "mlp.moe_statics.e_score_correction_bias",
        )],
        ignored: Ignored {
            beginnings: &["model.mtp_"],
            ..PLAIN.0.ignored
        },
        ..PLAIN.0
    },
    mlx: Some(Naming {
        overrides: &SWITCH_MLP,
        refit: Some(without_correction),
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["ernie4_5-moe"],
        from_gguf,
        naming: PLAIN.1,
    }),
};

/// mlx-lm leaves it out of the file.
fn without_correction(spec: &mut ModelSpec) {
    let blocks = spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks);
    for branch in blocks.flat_map(|block| &mut block.branches) {
        if let Inner::FeedForward(FeedForward::Experts(experts)) = &mut branch.inner {
            experts.router.correction = false;
        }
    }
}

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "moe_k": 6,
        "max_position_embeddings": 131072,
    }));
    refuse_switch(config, "use_bias")?;
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 500_000.0, sizes.head_dim)?.neighbours();
    let router = Router {
        correction: true,
        ..Router::softmax(true)
    };
    let fields = ["moe_num_experts", "moe_k", "moe_intermediate_size"];
    let experts = gated_experts(config, fields, router)?;
    let mixture = Mixture {
        dense: sizes.gated(experts.expert.activation, false),
        experts: Experts {
            shared: shared_experts(config, "moe_num_shared_experts", 2, &experts.expert)?,
            ..experts
        },
        sparse: sparse(config, sizes.layers)?,
    };
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(mixture.pre_norm_model(&sizes, "ernie4_5_moe", tied, |_| {
        Mixer::Attention(sizes.attention(Some(rope.clone())))
    }))
}

/// Every so many layers of the range; the range's end may be -1, the last layer.
fn sparse(config: &Config, layers: usize) -> Result<Vec<bool>, SpecError> {
    let first = config.usize_or("moe_layer_start_index", 1)?;
    let last = match config.f64_opt("moe_layer_end_index")? {
        None | Some(-1.0) => layers.saturating_sub(1),
        Some(_) => config.usize("moe_layer_end_index")?,
    };
    let step = interval(
        config.path("moe_layer_interval"),
        config.usize_or("moe_layer_interval", 1)?,
    )?;
    let range = first..=last;
    let sparse = (0..layers).map(|layer| range.contains(&layer) && (layer + 1) % step == 0);
    Ok(sparse.collect())
}

fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Neighbours)?;
    let first = config.usize_opt("leading_dense_block_count")?.unwrap_or(0);
    let step = interval(
        config.key("interleave_moe_layer_step"),
        config.usize("interleave_moe_layer_step")?,
    )?;
    let sparse: Vec<bool> = (0..sizes.layers)
        .map(|layer| layer >= first && (layer + 1) % step == 0)
        .collect();
    let first_sparse = sparse.iter().position(|sparse| *sparse).unwrap_or(first);
    let router = gguf_router(config, Router::softmax(true), first_sparse)?;
    let size = config.usize("expert_feed_forward_length")?;
    let mixture = Mixture {
        experts: gguf_experts(config, size, router)?,
        dense: sizes.gated(Activation::Silu, false),
        sparse,
    };
    Ok(
        mixture.pre_norm_model(&sizes, "ernie4_5_moe", gguf_tied(config), |_| {
            Mixer::Attention(sizes.attention(Some(rope.clone())))
        }),
    )
}
