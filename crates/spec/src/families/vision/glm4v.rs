//! GLM-4.1V and GLM-4.5V's dense kin: a bicubic table, a strided convolution and a gated merger.

use super::qwen2_vl::{merge_size, tower};
use super::sizes::{SIGLIP, Sizes, linear};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::model::{Activation, Dense, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{MergeOrder, PatchPositions, ProjectorStep, Sampling, VisionSpec};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const FAMILY: VisionFamily = VisionFamily {
    model_types: &["glm4v"],
    towers: &[],
    from_config,
    naming: VisionNaming {
        globals: &[
            (VisionRole::Patch, "visual.patch_embed.proj.weight"),
            (VisionRole::PatchNorm, "visual.post_conv_layernorm.weight"),
            (
                VisionRole::Positions,
                "visual.embeddings.position_embedding.weight",
            ),
            (VisionRole::FinalNorm, "visual.post_layernorm.weight"),
        ],
        layers: "visual.blocks.{}.",
        layer: LAYER,
        fused_qkv: Some("attn.qkv.weight"),
        projector: &[
            StepName::Matrix("visual.downsample"),
            StepName::Matrix("visual.merger.proj"),
            StepName::Norm("visual.merger.post_projection_norm"),
            StepName::Gated([
                "visual.merger.gate_proj.weight",
                "visual.merger.up_proj.weight",
                "visual.merger.down_proj.weight",
            ]),
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
    (Gate, "mlp.gate_proj.weight"),
    (Up, "mlp.up_proj.weight"),
    (Down, "mlp.down_proj.weight"),
];

fn from_config(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let sizes = Sizes::new(&config.tower, 1e-5, Activation::Silu)?;
    let norm = Norm::rms(sizes.eps);
    let out = config.tower.usize_or("out_hidden_size", 4096)?;
    let bias = config.tower.bool_or("attention_bias", false)?;
    let mut spec = tower(&config.tower, &sizes, norm)?;
    spec.block.qkv_bias = bias;
    spec.block.output_bias = false;
    spec.block.mlp = Dense::gated(out, sizes.activation);
    spec.patch_norm = Some(norm);
    spec.positions = Some(PatchPositions::Sampled {
        side: sizes.patches(),
        sampling: Sampling::BicubicCenters,
    });
    spec.final_norm = Some(norm);
    spec.projector.steps = vec![
        ProjectorStep::Merge {
            side: merge_size(&config.tower)?,
            values: MergeOrder::ChannelFirst,
        },
        linear(out, true),
        linear(out, false),
        ProjectorStep::Norm(Norm::layer(1e-5, true)),
        ProjectorStep::Activation(Activation::Gelu),
        ProjectorStep::Gated(Dense::gated(sizes.mlp, sizes.activation)),
    ];
    Ok(spec)
}
