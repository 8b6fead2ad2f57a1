//! Qwen3-VL and Qwen3.5: a sampled table of positions, and features of inner layers (deepstack).

use super::qwen2_vl::{merge_size, tower};
use super::sizes::{SIGLIP, Sizes, linear, merge};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::model::{Activation, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{Deepstack, PatchPositions, Projector, ProjectorStep, Sampling, VisionSpec};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const FAMILY: VisionFamily = VisionFamily {
    model_types: &["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"],
    towers: &[],
    from_config,
    naming: VisionNaming {
        globals: &[
            (VisionRole::Patch, "visual.patch_embed.proj.weight"),
            (VisionRole::Positions, "visual.pos_embed.weight"),
        ],
        layers: "visual.blocks.{}.",
        layer: LAYER,
        fused_qkv: Some("attn.qkv.weight"),
        projector: &[
            StepName::Norm("visual.merger.norm"),
            StepName::Matrix("visual.merger.linear_fc1"),
            StepName::Matrix("visual.merger.linear_fc2"),
        ],
        deepstack: &[
            StepName::Norm("visual.deepstack_merger_list.{}.norm"),
            StepName::Matrix("visual.deepstack_merger_list.{}.linear_fc1"),
            StepName::Matrix("visual.deepstack_merger_list.{}.linear_fc2"),
        ],
        ignored: &[],
        ..SIGLIP
    },
    text_fields: &[],
};

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "norm1.weight"),
    (Output, "attn.proj.weight"),
    (FeedForwardPreNorm, "norm2.weight"),
    (Up, "mlp.linear_fc1.weight"),
    (Down, "mlp.linear_fc2.weight"),
];

fn from_config(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let sizes = Sizes::new(&config.tower, 1e-6, Activation::GeluTanh)?;
    let norm = Norm::layer(1e-6, true);
    let mut spec = tower(&config.tower, &sizes, norm)?;
    spec.positions = Some(PatchPositions::Sampled {
        side: config
            .tower
            .usize_or("num_position_embeddings", 2304)?
            .isqrt(),
        sampling: Sampling::BilinearCorners,
    });
    let side = merge_size(&config.tower)?;
    let between = sizes.hidden.saturating_mul(side * side);
    let last = [
        linear(between, true),
        ProjectorStep::Activation(Activation::Gelu),
        linear(config.text.hidden_size, true),
    ];
    let norm = ProjectorStep::Norm(norm);
    spec.projector.steps = [&[norm, merge(side)][..], &last].concat();
    let field = "deepstack_visual_indexes";
    for index in config.tower.array(field)?.unwrap_or_default() {
        let after = index.as_u64().and_then(|index| usize::try_from(index).ok());
        let after = after.ok_or_else(|| {
            SpecError::invalid(config.tower.path(field), index, "a list of layers")
        })?;
        // Their norm is over merged patches, unlike the main one's.
        let steps = [&[merge(side), norm][..], &last].concat();
        spec.deepstack.push(Deepstack {
            after,
            projector: Projector { steps },
        });
    }
    Ok(spec)
}
