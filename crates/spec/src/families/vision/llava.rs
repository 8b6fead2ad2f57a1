//! LLaVA over CLIP, and LLaVA-OneVision over SigLIP with tiles.

use super::siglip::siglip;
use super::sizes::{SIGLIP, Sizes};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::families::common::expect_word;
use crate::model::{Activation, Norm};
use crate::vision::{Arrangement, ClassToken, VisionSpec};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

const PROJECTOR: &[StepName] = &[
    StepName::Matrix("multi_modal_projector.linear_1"),
    StepName::Matrix("multi_modal_projector.linear_2"),
];

pub(super) const CLIP: VisionFamily = VisionFamily {
    model_types: &["llava"],
    towers: &["clip_vision_model"],
    from_config: clip,
    naming: VisionNaming {
        globals: &[
            (
                VisionRole::Patch,
                "vision_tower.embeddings.patch_embedding.weight",
            ),
            (
                VisionRole::ClassToken,
                "vision_tower.embeddings.class_embedding",
            ),
            (
                VisionRole::Positions,
                "vision_tower.embeddings.position_embedding.weight",
            ),
            // Misspelled by the class.
            (
                VisionRole::EmbeddingNorm,
                "vision_tower.pre_layrnorm.weight",
            ),
        ],
        projector: PROJECTOR,
        ignored: &["vision_tower.post_layernorm."],
        ..SIGLIP
    },
    text_fields: &[],
};

pub(super) const ONEVISION: VisionFamily = VisionFamily {
    model_types: &["llava_onevision"],
    towers: &["siglip_vision_model"],
    from_config: onevision,
    naming: VisionNaming {
        globals: &[
            (
                VisionRole::Patch,
                "vision_tower.embeddings.patch_embedding.weight",
            ),
            (
                VisionRole::Positions,
                "vision_tower.embeddings.position_embedding.weight",
            ),
            (VisionRole::RowEnd, "image_newline"),
        ],
        projector: PROJECTOR,
        ignored: &["vision_tower.post_layernorm.", "vision_tower.head."],
        ..SIGLIP
    },
    text_fields: &[],
};

fn clip(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    expect_word(config.outer, "vision_feature_select_strategy", "default")?;
    let sizes = Sizes::new(&config.tower, 1e-5, Activation::QuickGelu)?;
    let mut spec = VisionSpec {
        class_token: Some(ClassToken::First),
        positions: sizes.fixed_positions(1),
        embedding_norm: Some(Norm::layer(sizes.eps, true)),
        ..sizes.tower(sizes.block())
    };
    spec.patch.bias = false;
    spec.layers.truncate(config.used_layers(sizes.layers, -2)?);
    let bias = config.outer.bool_or("multimodal_projector_bias", true)?;
    let steps = config.mlp(config.text.hidden_size, bias)?;
    spec.projector.steps = steps.to_vec();
    Ok(spec)
}

fn onevision(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    expect_word(config.outer, "vision_feature_select_strategy", "full")?;
    let (sizes, mut spec) = siglip(config)?;
    let field = "vision_aspect_ratio";
    let ratio = config.outer.str(field)?.unwrap_or("anyres_max_9");
    let max_tiles = ratio
        .strip_prefix("anyres_max_")
        .and_then(|n| n.parse().ok());
    let max_tiles = max_tiles
        .filter(|max| (1..=1024).contains(max))
        .ok_or_else(|| {
            SpecError::invalid(
                config.outer.path(field),
                ratio,
                "`anyres_max_` and a number",
            )
        })?;
    spec.arrangement = Arrangement::Tiles { max_tiles };
    spec.final_norm = None;
    spec.layers.truncate(config.used_layers(sizes.layers, -1)?);
    spec.video = true;
    let bias = config.outer.bool_or("multimodal_projector_bias", true)?;
    spec.projector.steps = config.mlp(config.text.hidden_size, bias)?.to_vec();
    Ok(spec)
}
