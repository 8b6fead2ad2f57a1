//! Granite 3.x MoE: Granite's multipliers, and experts in every layer.

use serde_json::json;

use super::experts_parts::{BLOCK_SPARSE_SWITCH, count_field, gated_experts, gguf_experts};
use super::granite_parts::{EXPERT_DOWN, EXPERT_INPUT, Multipliers, ROUTER};
use super::parts::{Sizes, gguf_rope, gguf_tied};
use super::{Family, GgufFamily, PLAIN};
use crate::config::{Config, GgufConfig};
use crate::error::SpecError;
use crate::experts::{Experts, Router, SharedExpert};
use crate::mixers::Attention;
use crate::model::{Activation, Dense, FeedForward, ModelSpec};
use crate::naming::{Naming, join};
use crate::roles::LayerRole;
use crate::rope::{Rope, RopePairs};

pub(super) const FAMILY: Family = Family {
    model_types: &["granitemoe"],
    from_config,
    hugging_face: Naming {
        overrides: &[ROUTER, EXPERT_DOWN],
        fused: &[EXPERT_INPUT],
        ..PLAIN.0
    },
    mlx: Some(Naming {
        overrides: &MLX,
        ..PLAIN.0
    }),
    gguf: Some(GgufFamily {
        architectures: &["granitemoe"],
        from_gguf,
        naming: PLAIN.1,
    }),
};

const MLX: [(LayerRole, &str); 4] = join(&[&[ROUTER], &BLOCK_SPARSE_SWITCH]);

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-6,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 2048,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 10_000.0, sizes.head_dim)?;
    let bias = config.bool_or("attention_bias", false)?;
    let attention = Attention {
        qkv_bias: bias,
        output_bias: bias,
        ..sizes.attention(Some(rope))
    };
    let fields = [
        count_field(config),
        "num_experts_per_tok",
        "intermediate_size",
    ];
    let experts = gated_experts(config, fields, Router::softmax(true))?;
    let tied = config.bool_or("tie_word_embeddings", false)?;
    let spec = sizes.pre_norm_model("granitemoe", tied, FeedForward::Experts(experts), |_| {
        attention.clone()
    });
    Ok(Multipliers::from_config(config)?.applied(spec))
}

/// Hybrids without a single recurrent layer are written so too, with their shared expert.
fn from_gguf(config: &GgufConfig) -> Result<ModelSpec, SpecError> {
    let sizes = Sizes::from_gguf(config)?;
    let rope = gguf_rope(config, sizes.head_dim, RopePairs::Neighbours)?;
    let attention = sizes.gguf_attention(config, Some(rope));
    let experts = gguf_granite_experts(config, &sizes)?;
    let spec = sizes.pre_norm_model(
        "granitemoe",
        gguf_tied(config),
        FeedForward::Experts(experts),
        |_| attention.clone(),
    );
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
        ..gguf_experts(config, sizes.feed_forward, Router::softmax(true))?
    })
}
