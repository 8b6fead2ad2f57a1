//! Qwen2-VL and Qwen2.5-VL: patches of two frames in blocks of the merger; the later one attends
//! in windows.

use super::pixtral::rope_theta;
use super::sizes::{SIGLIP, Sizes, linear, merge};
use super::{VisionConfig, VisionFamily};
use crate::config::Config;
use crate::error::SpecError;
use crate::model::{Activation, Dense, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{
    PatchOrder, PatchRope, PatchRopeLayout, PatchSpan, PixelInput, ProjectorStep, VisionBlock,
    VisionSpec,
};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const QWEN2: VisionFamily = VisionFamily {
    model_types: &["qwen2_vl"],
    towers: &[],
    from_config: qwen2,
    naming: VisionNaming {
        layer: PLAIN_LAYER,
        ..NAMING
    },
    text_fields: &[],
};

pub(super) const QWEN2_5: VisionFamily = VisionFamily {
    model_types: &["qwen2_5_vl"],
    towers: &[],
    from_config: qwen2_5,
    naming: NAMING,
    text_fields: &[],
};

const PLAIN_LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "norm1.weight"),
    (Output, "attn.proj.weight"),
    (FeedForwardPreNorm, "norm2.weight"),
    (Up, "mlp.fc1.weight"),
    (Down, "mlp.fc2.weight"),
];

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "norm1.weight"),
    (Output, "attn.proj.weight"),
    (FeedForwardPreNorm, "norm2.weight"),
    (Gate, "mlp.gate_proj.weight"),
    (Up, "mlp.up_proj.weight"),
    (Down, "mlp.down_proj.weight"),
];

const NAMING: VisionNaming = VisionNaming {
    globals: &[(VisionRole::Patch, "visual.patch_embed.proj.weight")],
    layers: "visual.blocks.{}.",
    layer: LAYER,
    fused_qkv: Some("attn.qkv.weight"),
    projector: &[
        StepName::Norm("visual.merger.ln_q"),
        StepName::Matrix("visual.merger.mlp.0"),
        StepName::Matrix("visual.merger.mlp.2"),
    ],
    ignored: &[],
    ..SIGLIP
};

/// The tower that all Qwen-VL and GLM-V models share, with plain feed-forwards.
pub(super) fn tower(config: &Config, sizes: &Sizes, norm: Norm) -> Result<VisionSpec, SpecError> {
    let block = VisionBlock {
        norm,
        rope: Some(PatchRope {
            theta: rope_theta(config, 10_000.0)?,
            layout: PatchRopeLayout::Halves,
        }),
        ..sizes.block()
    };
    let mut spec = sizes.tower(block);
    spec.patch.frames = config.usize_or("temporal_patch_size", 2)?;
    spec.patch.side = config.usize_or("patch_size", 14)?;
    spec.patch.channels = config.usize_or("in_channels", 3)?;
    spec.patch.input = PixelInput::Patches;
    spec.patch.order = PatchOrder::Blocks(merge_size(config)?);
    spec.video = true;
    Ok(spec)
}

pub(super) fn merge_size(config: &Config) -> Result<usize, SpecError> {
    let field = "spatial_merge_size";
    match config.usize_or(field, 2)? {
        side @ 1..=64 => Ok(side),
        side => Err(SpecError::invalid(config.path(field), side, "from 1 to 64")),
    }
}

/// The merger: a norm over patches, then two matrices over merged ones.
fn merger(spec: &VisionSpec, norm: Norm, side: usize, text_hidden: usize) -> Vec<ProjectorStep> {
    vec![
        ProjectorStep::Norm(norm),
        merge(side),
        linear(spec.hidden_size.saturating_mul(side * side), true),
        ProjectorStep::Activation(Activation::Gelu),
        linear(text_hidden, true),
    ]
}

fn qwen2(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let sizes = Sizes::new(&config.tower, 1e-6, Activation::QuickGelu)?;
    let norm = Norm::layer(1e-6, true);
    let mut spec = tower(&config.tower, &sizes, norm)?;
    spec.patch.bias = false;
    let ratio = config.tower.usize_or("mlp_ratio", 4)?;
    spec.block.mlp = Dense::plain(sizes.hidden.saturating_mul(ratio), sizes.activation, true);
    let side = merge_size(&config.tower)?;
    spec.projector.steps = merger(&spec, norm, side, config.text.hidden_size);
    Ok(spec)
}

fn qwen2_5(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let sizes = Sizes::new(&config.tower, 1e-6, Activation::Silu)?;
    let norm = Norm::rms(1e-6);
    let mut spec = tower(&config.tower, &sizes, norm)?;
    spec.patch.bias = false;
    spec.block.mlp = Dense {
        bias: true,
        ..Dense::gated(sizes.mlp, sizes.activation)
    };
    let side = merge_size(&config.tower)?;
    let pixels = config.tower.usize_or("window_size", 112)?;
    let window = pixels / side / spec.patch.side.max(1) * side;
    if window == 0 {
        let expected = "at least one merged patch";
        return Err(SpecError::invalid(
            config.tower.path("window_size"),
            pixels,
            expected,
        ));
    }
    let field = "fullatt_block_indexes";
    let full = config.tower.array(field)?.unwrap_or_default();
    for (index, span) in spec.layers.iter_mut().enumerate() {
        let is_full = full
            .iter()
            .any(|value| value.as_u64() == Some(index as u64));
        if !is_full {
            *span = PatchSpan::Window(window);
        }
    }
    spec.positions_per_second = Some(config.tower.f64_or("tokens_per_second", 4.0)? as f32);
    spec.projector.steps = merger(&spec, norm, side, config.text.hidden_size);
    Ok(spec)
}
