//! Granite 3.x MoE: Granite's multipliers, and experts in every layer.

use serde_json::json;

use super::common::{
    BLOCK_SPARSE_SWITCH, GRANITE_EXPERT_INPUT, GRANITE_EXPERT_OUTPUT, GRANITE_ROUTER, Multipliers,
    Sizes, TOP_K, count_field, gated_experts, gguf_experts_of, gguf_rope, gguf_tied,
};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router, SharedExpert};
use crate::facts::{FamilyFacts, GgufExport, GgufKeys, MlxFacts, RouterPrecision};
use crate::model::{Activation, Dense, FeedForward, ModelSpec};
use crate::naming::Naming;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoe"],
    from_config,
    hugging_face: Naming {
        overrides: &[GRANITE_ROUTER, GRANITE_EXPERT_OUTPUT],
        fused: &[GRANITE_EXPERT_INPUT],
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[GRANITE_ROUTER, BLOCK_SPARSE_SWITCH],
        ..PLAIN.hugging_face
    }),
    gguf: Some(GgufFamily::plain(&["granitemoe"], from_gguf)),
    facts: FamilyFacts {
        gguf_export: Some(GgufExport {
            keys: &[GgufKeys::Multipliers],
            ..GgufExport::plain("granitemoe")
        }),
        mlx: MlxFacts {
            eight_bit_outputs: true,
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 2048,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let attention = sizes.biased_attention(config, Some(rope))?;
    let fields = [count_field(config), TOP_K, "intermediate_size"];
    let experts = gated_experts(config, fields, Router::softmax(true))?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let feed_forward = FeedForward::Experts(experts);
    let spec = sizes.pre_norm_model("granitemoe", tied, feed_forward, |_| attention.clone());
    Ok(Multipliers::from_config(config)?.applied(spec))
}

/// Hybrids without recurrent layers have this architecture too, with their shared expert.
fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Interleaved)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let feed_forward = FeedForward::Experts(gguf_granite_experts(config, &sizes)?);
    let tied = gguf_tied(config);
    let spec = sizes.pre_norm_model("granitemoe", tied, feed_forward, |_| attention.clone());
    Ok(Multipliers::from_gguf(config)?.applied(spec))
}

pub(super) fn gguf_granite_experts(
    config: &GgufConfig,
    sizes: &Sizes,
) -> Result<Experts, SpecError> {
    let shared = config.usize_opt("expert_shared_feed_forward_length")?;
    let shared = shared.filter(|size| *size > 0).map(|size| SharedExpert {
        dense: Dense::gated(size, Activation::Silu),
        gated: false,
    });
    Ok(Experts {
        shared,
        ..gguf_experts_of(config, sizes.feed_forward, Router::softmax(true))?
    })
}
