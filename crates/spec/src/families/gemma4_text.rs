//! Gemma 4 (text): Gemma 3's layers with heads of another size on the global ones, unscaled
//! queries, normalised values and a learned scale per layer; some sizes add experts to the
//! dense feed-forward, others inputs per layer and upper layers that read lower ones' keys.

mod config;
mod gguf;
mod model;

use super::common::EXPERT_GATE_UP;
use super::{Family, GgufFamily, PLAIN};
use crate::facts::{FamilyFacts, MlxFacts, RouterPrecision};
use crate::naming::{Fused, Naming};
use crate::roles::LayerRole::*;
use crate::roles::Role;

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma4_text", "gemma4"],
    from_config: config::from_config,
    hugging_face: Naming {
        fused: &[
            Fused::sequential("experts.gate_up_proj", EXPERT_GATE_UP),
            Fused::sequential("experts.down_proj", &[ExpertDown]),
        ],
        ..NAMING
    },
    mlx: Some(NAMING),
    gguf: Some(GgufFamily {
        architectures: &["gemma4"],
        from_gguf: gguf::from_gguf,
        naming: Naming {
            fused: &[Fused::sequential("ffn_gate_up_exps.weight", EXPERT_GATE_UP)],
            // Gate and up may be separate tensors.
            also: Some(&GGUF_NAMING),
            ..GGUF_NAMING
        },
    }),
    facts: FamilyFacts {
        mlx: MlxFacts {
            required_fields: &["global_head_dim"],
            ..MlxFacts::with_router(RouterPrecision::EightBits)
        },
        ..FamilyFacts::PLAIN
    },
};

/// The experts' names are mlx-lm's; transformers fuses them.
const NAMING: Naming = Naming {
    global_overrides: &[
        (
            Role::PerLayerEmbedding,
            "model.embed_tokens_per_layer.weight",
        ),
        (
            Role::PerLayerProjection,
            "model.per_layer_model_projection.weight",
        ),
        (Role::PerLayerNorm, "model.per_layer_projection_norm.weight"),
    ],
    overrides: &[&[
        (MixerPostNorm, "post_attention_layernorm.weight"),
        (FeedForwardPreNorm, "pre_feedforward_layernorm.weight"),
        (FeedForwardPostNorm, "post_feedforward_layernorm_1.weight"),
        (ExpertsPreNorm, "pre_feedforward_layernorm_2.weight"),
        (ExpertsPostNorm, "post_feedforward_layernorm_2.weight"),
        (SumPostNorm, "post_feedforward_layernorm.weight"),
        (Router, "router.proj.weight"),
        (RouterInput, "router.scale"),
        (ExpertScale, "router.per_expert_scale"),
        (ExpertGate, "experts.switch_glu.gate_proj.weight"),
        (ExpertUp, "experts.switch_glu.up_proj.weight"),
        (ExpertDown, "experts.switch_glu.down_proj.weight"),
        (PerLayerGate, "per_layer_input_gate.weight"),
        (PerLayerOutput, "per_layer_projection.weight"),
        (PerLayerPostNorm, "post_per_layer_input_norm.weight"),
        (LayerScale, "layer_scalar"),
    ]],
    ..PLAIN.hugging_face
};

const GGUF_NAMING: Naming = Naming {
    overrides: &[&[
        (FeedForwardPostNorm, "post_ffw_norm_1.weight"),
        (ExpertsPreNorm, "pre_ffw_norm_2.weight"),
        (ExpertsPostNorm, "post_ffw_norm_2.weight"),
        (SumPostNorm, "post_ffw_norm.weight"),
        (RouterInput, "ffn_gate_inp.scale"),
        (ExpertScale, "ffn_down_exps.scale"),
        (PerLayerGate, "inp_gate.weight"),
        (PerLayerOutput, "proj.weight"),
        (PerLayerPostNorm, "post_norm.weight"),
        (LayerScale, "layer_output_scale.weight"),
    ]],
    ..PLAIN.gguf
};

/// Every sixth layer is global unless the config says otherwise.
const PATTERN: usize = 6;
