//! DeepSeek-V2 and V2-Lite: latent attention, and experts by softmax, chosen among the groups
//! with the best single experts.

use serde_json::json;

use super::common::{
    TOP_K, expect_switch, expect_word, gated_experts, groups, shared_experts, sparse_after_dense,
};
use super::deepseek_v3::{HUGGING_FACE, OLDER_MLX, latent_model};
use super::{Family, PLAIN};
use crate::config::Config;
use crate::error::SpecError;
use crate::experts::{ExpertGroups, GroupScore, Router};
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::model::ModelSpec;
use crate::naming::Naming;

pub(super) const FAMILY: Family = Family {
    model_types: &["deepseek_v2"],
    from_config,
    hugging_face: Naming {
        ignored: PLAIN.hugging_face.ignored,
        ..HUGGING_FACE
    },
    mlx: Some(OLDER_MLX),
    // Written as DeepSeek-V3.
    gguf: None,
    facts: FamilyFacts {
        templates: &["deepseek-v2"],
        mlx: MlxFacts::with_router(RouterPrecision::Unquantized),
        ..FamilyFacts::PLAIN
    },
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "q_lora_rank": 1536,
    }));
    expect_word(config, "scoring_func", "softmax")?;
    // V2's own code scales the weights *or* normalises them; every checkpoint scales.
    expect_switch(config, "norm_topk_prob", false)?;
    expect_switch(config, "mlp_bias", false)?;
    let router = Router {
        groups: limits(config)?,
        scale: config.f64_or("routed_scaling_factor", 1.0)? as f32,
        ..Router::softmax(false)
    };
    let fields = ["n_routed_experts", TOP_K, "moe_intermediate_size"];
    let mut experts = gated_experts(config, fields, router)?;
    experts.shared = shared_experts(config, "n_shared_experts", 2, &experts.expert)?;
    let sparse = |layers| sparse_after_dense(config, 0, layers);
    latent_model(config, "deepseek_v2", experts, sparse)
}

fn limits(config: &Config) -> Result<Option<ExpertGroups>, SpecError> {
    let field = "topk_method";
    match config.str(field)?.unwrap_or("greedy") {
        "greedy" => Ok(None),
        "group_limited_greedy" => Ok(groups(
            config.usize("n_group")?,
            config.usize("topk_group")?,
            GroupScore::Best,
        )),
        other => Err(SpecError::Unsupported {
            field: config.path(field),
            found: format!("`{other}`"),
            supported: "greedy, group_limited_greedy",
        }),
    }
}
