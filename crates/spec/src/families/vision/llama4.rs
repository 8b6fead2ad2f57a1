//! Llama 4: a class token at the end, interleaved rotary positions, pixel shuffle.

use super::pixtral::rope_theta;
use super::sizes::{SIGLIP, Sizes, linear, merge};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::families::common::{expect_switch, expect_word};
use crate::model::{Activation, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{
    ClassToken, PatchRope, PatchRopeLayout, ProjectorStep, VisionBlock, VisionSpec,
};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const FAMILY: VisionFamily = VisionFamily {
    model_types: &["llama4"],
    towers: &[],
    from_config,
    naming: VisionNaming {
        globals: &[
            (
                VisionRole::Patch,
                "vision_model.patch_embedding.linear.weight",
            ),
            (VisionRole::ClassToken, "vision_model.class_embedding"),
            (
                VisionRole::Positions,
                "vision_model.positional_embedding_vlm",
            ),
            (
                VisionRole::EmbeddingNorm,
                "vision_model.layernorm_pre.weight",
            ),
            (VisionRole::FinalNorm, "vision_model.layernorm_post.weight"),
        ],
        layers: "vision_model.model.layers.{}.",
        layer: LAYER,
        projector: &[
            StepName::Matrix("vision_model.vision_adapter.mlp.fc1"),
            StepName::Matrix("vision_model.vision_adapter.mlp.fc2"),
            StepName::Matrix("multi_modal_projector.linear_1"),
        ],
        ..SIGLIP
    },
    text_fields: &[],
};

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "input_layernorm.weight"),
    (Query, "self_attn.q_proj.weight"),
    (Key, "self_attn.k_proj.weight"),
    (Value, "self_attn.v_proj.weight"),
    (Output, "self_attn.o_proj.weight"),
    (FeedForwardPreNorm, "post_attention_layernorm.weight"),
    (Up, "mlp.fc1.weight"),
    (Down, "mlp.fc2.weight"),
];

fn from_config(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let tower = &config.tower;
    expect_switch(tower, "multi_modal_projector_bias", false)?;
    expect_word(tower, "vision_feature_select_strategy", "default")?;
    let sizes = Sizes::new(tower, 1e-5, Activation::Gelu)?;
    let norm = Norm::layer(sizes.eps, true);
    let block = VisionBlock {
        // The class fixes it, whatever the config says.
        norm,
        rope: Some(PatchRope {
            theta: rope_theta(tower, 10_000.0)?,
            layout: PatchRopeLayout::Interleaved,
        }),
        ..sizes.block()
    };
    let mut spec = VisionSpec {
        class_token: Some(ClassToken::Last),
        positions: sizes.fixed_positions(1),
        embedding_norm: Some(norm),
        final_norm: Some(norm),
        ..sizes.tower(block)
    };
    spec.patch.bias = false;
    let ratio = tower.f64_or("pixel_shuffle_ratio", 0.5)?;
    let side = (1.0 / ratio).round();
    if !(1.0..=16.0).contains(&side) || (side * ratio - 1.0).abs() > 1e-6 {
        let field = tower.path("pixel_shuffle_ratio");
        return Err(SpecError::invalid(field, ratio, "one over a whole number"));
    }
    let gelu = ProjectorStep::Activation(Activation::Gelu);
    spec.projector.steps = vec![
        merge(side as usize),
        linear(tower.usize_or("projector_input_dim", 4096)?, false),
        gelu,
        linear(tower.usize_or("projector_output_dim", 4096)?, false),
        gelu,
        linear(config.text.hidden_size, false),
    ];
    Ok(spec)
}
