//! InternVL: a BEiT-like tower with a class token and learned gains.

use super::sizes::{SIGLIP, Sizes, merge};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::families::common::{expect_switch, expect_word};
use crate::model::{Activation, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{ClassToken, ProjectorStep, VisionBlock, VisionSpec};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const FAMILY: VisionFamily = VisionFamily {
    model_types: &["internvl"],
    towers: &[],
    from_config,
    naming: VisionNaming {
        globals: &[
            (
                VisionRole::Patch,
                "vision_tower.embeddings.patch_embeddings.projection.weight",
            ),
            (VisionRole::ClassToken, "vision_tower.embeddings.cls_token"),
            (
                VisionRole::Positions,
                "vision_tower.embeddings.position_embeddings",
            ),
        ],
        layers: "vision_tower.encoder.layer.{}.",
        layer: LAYER,
        gains: ["lambda_1", "lambda_2"],
        projector: &[
            StepName::Norm("multi_modal_projector.layer_norm"),
            StepName::Matrix("multi_modal_projector.linear_1"),
            StepName::Matrix("multi_modal_projector.linear_2"),
        ],
        ..SIGLIP
    },
    text_fields: &[],
};

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "layernorm_before.weight"),
    (Query, "attention.q_proj.weight"),
    (Key, "attention.k_proj.weight"),
    (Value, "attention.v_proj.weight"),
    (Output, "attention.projection_layer.weight"),
    (FeedForwardPreNorm, "layernorm_after.weight"),
    (Up, "mlp.fc1.weight"),
    (Down, "mlp.fc2.weight"),
];

fn from_config(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let tower = &config.tower;
    // The 6B tower has these; none of the converted checkpoints does.
    expect_switch(tower, "use_qk_norm", false)?;
    expect_switch(tower, "use_mean_pooling", true)?;
    expect_switch(tower, "use_absolute_position_embeddings", true)?;
    expect_word(tower, "norm_type", "layer_norm")?;
    expect_word(config.outer, "vision_feature_select_strategy", "default")?;
    let sizes = Sizes::new(tower, 1e-6, Activation::Gelu)?;
    let block = VisionBlock {
        gains: true,
        qkv_bias: tower.bool_or("attention_bias", false)?,
        ..sizes.block()
    };
    let mut spec = VisionSpec {
        class_token: Some(ClassToken::First),
        positions: sizes.fixed_positions(1),
        video: true,
        ..sizes.tower(block)
    };
    spec.layers.truncate(config.used_layers(sizes.layers, -1)?);
    let ratio = config.outer.f64_or("downsample_ratio", 0.5)?;
    let side = (1.0 / ratio).round();
    if !(1.0..=16.0).contains(&side) || (side * ratio - 1.0).abs() > 1e-6 {
        let field = config.outer.path("downsample_ratio");
        return Err(SpecError::invalid(field, ratio, "one over a whole number"));
    }
    let mlp = config.mlp(config.text.hidden_size, true)?;
    let norm = ProjectorStep::Norm(Norm::layer(1e-5, true));
    spec.projector.steps = [&[merge(side as usize), norm][..], &mlp].concat();
    Ok(spec)
}
