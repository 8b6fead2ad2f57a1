//! Qwen3-VL with experts (the text model): Qwen3-MoE, whose files keep a layer's experts in two
//! tensors.

use serde_json::json;

use super::common::{EXPERT_GATE_UP, EXPERT_MATRICES, SWITCH_MLP};
use super::{Family, PLAIN, qwen3_moe};
use crate::config::Config;
use crate::error::SpecError;
use crate::facts::FamilyFacts;
use crate::model::ModelSpec;
use crate::naming::{Fused, LayerNames, Naming};
use crate::roles::LayerRole::*;

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_vl_moe_text", "qwen3_vl_moe"],
    from_config,
    hugging_face: Naming {
        overrides: &[EXPERTS],
        fused: &[GATE_UP],
        also: Some(&PUBLISHED),
        ..PLAIN.hugging_face
    },
    mlx: Some(Naming {
        overrides: &[SWITCH_MLP],
        ..PLAIN.hugging_face
    }),
    gguf: None,
    facts: FamilyFacts::PLAIN,
};

const EXPERTS: LayerNames = &[(ExpertDown, "mlp.experts.down_proj")];

const GATE_UP: Fused = Fused::sequential("mlp.experts.gate_up_proj", EXPERT_GATE_UP);

/// Qwen's own checkpoints store experts transposed, as older versions of transformers did.
const PUBLISHED: Naming = Naming {
    overrides: &[EXPERTS],
    fused: &[GATE_UP],
    transposed: EXPERT_MATRICES,
    ..PLAIN.hugging_face
};

fn from_config(config: &Config) -> Result<ModelSpec, SpecError> {
    // The class always makes the chosen experts' shares add up to one.
    let config = config.with_defaults(json!({ "norm_topk_prob": true }));
    let spec = qwen3_moe::from_config(&config)?;
    Ok(ModelSpec {
        family: "qwen3_vl_moe",
        ..spec
    })
}
