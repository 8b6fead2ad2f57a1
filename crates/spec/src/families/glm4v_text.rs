//! The text model of GLM-4.1V: GLM-4 with rotary positions by frame, row and column.

use serde_json::json;

use super::{Family, glm4};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::model::ModelSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["glm4v_text", "glm4v"],
    from_config,
    gguf: None,
    facts: FamilyFacts::PLAIN,
    ..glm4::FAMILY
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    // Unlike GLM-4's class, this one computes the size of a head.
    let heads = config.usize("num_attention_heads")?.max(1);
    let head_dim = config.usize("hidden_size")? / heads;
    let config = config.with_defaults(json!({ "head_dim": head_dim, "rms_norm_eps": 1e-5 }));
    let spec = glm4::from_config(&config)?;
    Ok(ModelSpec {
        family: "glm4v_text",
        ..spec
    })
}
