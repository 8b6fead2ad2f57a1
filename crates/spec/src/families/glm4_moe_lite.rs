//! GLM-4.7-Flash: DeepSeek-V3's blocks, with a list of the layers that have experts.

use serde_json::json;

use super::Family;
use super::common::{CorrectedDefaults, UNGROUPED, corrected_experts, sparse_layers};
use super::deepseek_v3::{HUGGING_FACE, MLX, latent_model};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::{FamilyFacts, RouterPrecision};
use crate::model::ModelSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["glm4_moe_lite"],
    from_config,
    hugging_face: HUGGING_FACE,
    mlx: Some(MLX),
    // Written as DeepSeek-V3.
    gguf: None,
    facts: FamilyFacts::with_router(RouterPrecision::Unquantized),
};

const DEFAULTS: CorrectedDefaults = CorrectedDefaults {
    scale: 1.8,
    ..UNGROUPED
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    let config = &config.with_defaults(json!({
        "rms_norm_eps": 1e-5,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 202752,
        "q_lora_rank": 768,
    }));
    let experts = corrected_experts(config, &DEFAULTS)?;
    let sparse = |layers| sparse_layers(config, 1, layers);
    latent_model(config, "glm4_moe_lite", experts, sparse)
}
