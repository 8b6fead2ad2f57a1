//! Mixtral: Mistral with eight experts for each layer's one feed-forward.

use serde_json::json;

use super::common::{
    BLOCK_SPARSE, BLOCK_SPARSE_ROUTER, BLOCK_SPARSE_SWITCH, Sizes, TOP_K, count_field,
    gated_experts, reach,
};
use super::{Family, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::experts::Router;
use crate::facts::{
    ConfigExport, ConfigFields, FamilyFacts, GgufExport, MlxFacts, RouterPrecision,
};
use crate::mixers::Attention;
use crate::model::{FeedForward, ModelSpec};
use crate::naming::Naming;
use crate::rope::Rope;

pub(super) const FAMILY: Family = Family {
    model_types: &["mixtral"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(MLX),
    // Written as `llama`.
    gguf: None,
    facts: FamilyFacts {
        templates: &["llama2"],
        gguf_export: Some(GgufExport::plain("llama")),
        config_export: Some(ConfigExport {
            class: "MixtralForCausalLM",
            fields: &[ConfigFields::SlidingWindow, ConfigFields::LocalExperts],
        }),
        mlx: MlxFacts::with_router(RouterPrecision::Uniform),
        gguf_pairs_neighbours: true,
        ..FamilyFacts::PLAIN
    },
};

pub(super) const HUGGING_FACE: Naming = Naming {
    overrides: &[BLOCK_SPARSE_ROUTER, BLOCK_SPARSE],
    ..PLAIN.hugging_face
};

pub(super) const MLX: Naming = Naming {
    overrides: &[BLOCK_SPARSE_ROUTER, BLOCK_SPARSE_SWITCH],
    ..PLAIN.hugging_face
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    }));
    let sizes = Sizes::from_config(config)?;
    let rope = Rope::from_config(config, None, 1_000_000.0, sizes.head_dim)?;
    let attention = Attention {
        reach: reach(config.usize_opt("sliding_window")?),
        ..sizes.attention(Some(rope))
    };
    let fields = [count_field(config), TOP_K, "intermediate_size"];
    let experts = gated_experts(config, fields, Router::softmax(true))?;
    let feed_forward = FeedForward::Experts(experts);
    let tied = config.bool_or("tie_word_embeddings", false)?;
    Ok(sizes.pre_norm_model("mixtral", tied, feed_forward, |_| attention.clone()))
}
