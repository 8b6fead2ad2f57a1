//! Pixtral's tower: pictures of any size, rotary positions over rows and columns, gated
//! feed-forwards.

use super::sizes::{SIGLIP, Sizes, linear};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::families::common::activation;
use crate::model::{Activation, Dense, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{
    MergeOrder, PatchRope, PatchRopeLayout, ProjectorStep, VisionBlock, VisionSpec,
};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const PIXTRAL: VisionFamily = VisionFamily {
    model_types: &["llava"],
    towers: &["pixtral"],
    from_config: pixtral,
    naming: VisionNaming {
        projector: &[
            StepName::Matrix("multi_modal_projector.linear_1"),
            StepName::Matrix("multi_modal_projector.linear_2"),
        ],
        ..NAMING
    },
    text_fields: &[],
};

pub(super) const MISTRAL3: VisionFamily = VisionFamily {
    model_types: &["mistral3"],
    towers: &["pixtral"],
    from_config: mistral3,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("multi_modal_projector.norm"),
            StepName::Matrix("multi_modal_projector.patch_merger.merging_layer"),
            StepName::Matrix("multi_modal_projector.linear_1"),
            StepName::Matrix("multi_modal_projector.linear_2"),
        ],
        ..NAMING
    },
    text_fields: &[],
};

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "attention_norm.weight"),
    (Query, "attention.q_proj.weight"),
    (Key, "attention.k_proj.weight"),
    (Value, "attention.v_proj.weight"),
    (Output, "attention.o_proj.weight"),
    (FeedForwardPreNorm, "ffn_norm.weight"),
    (Gate, "feed_forward.gate_proj.weight"),
    (Up, "feed_forward.up_proj.weight"),
    (Down, "feed_forward.down_proj.weight"),
];

const NAMING: VisionNaming = VisionNaming {
    globals: &[
        (VisionRole::Patch, "vision_tower.patch_conv.weight"),
        (VisionRole::EmbeddingNorm, "vision_tower.ln_pre.weight"),
    ],
    layers: "vision_tower.transformer.layers.{}.",
    layer: LAYER,
    ..SIGLIP
};

fn tower(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let sizes = Sizes::new(&config.tower, 1e-5, Activation::Gelu)?;
    let head_dim = config.tower.usize_or("head_dim", sizes.head_dim())?;
    let norm = Norm::rms(sizes.eps);
    let block = VisionBlock {
        norm,
        head_dim,
        scale: (head_dim as f32).powf(-0.5),
        qkv_bias: false,
        output_bias: false,
        rope: Some(PatchRope {
            theta: rope_theta(&config.tower, 10_000.0)?,
            layout: PatchRopeLayout::HalvesAlternate,
        }),
        mlp: Dense::gated(sizes.mlp, sizes.activation),
        ..sizes.block()
    };
    let mut spec = VisionSpec {
        embedding_norm: Some(norm),
        ..sizes.tower(block)
    };
    spec.patch.bias = false;
    spec.layers.truncate(config.used_layers(sizes.layers, -1)?);
    Ok(spec)
}

/// From either style of config.
pub(super) fn rope_theta(config: &crate::config::Config, default: f64) -> Result<f32, SpecError> {
    let theta = match config.object("rope_parameters")? {
        Some(table) => table.f64_or("rope_theta", default)?,
        None => config.f64_or("rope_theta", default)?,
    };
    Ok(theta as f32)
}

fn pixtral(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let mut spec = tower(config)?;
    let bias = config.outer.bool_or("multimodal_projector_bias", true)?;
    spec.projector.steps = config.mlp(config.text.hidden_size, bias)?.to_vec();
    Ok(spec)
}

fn mistral3(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let mut spec = tower(config)?;
    let bias = config.outer.bool_or("multimodal_projector_bias", false)?;
    let act = activation(config.outer, "projector_hidden_act", Activation::Gelu)?;
    spec.projector.steps = vec![
        ProjectorStep::Norm(Norm::rms(config.text.final_norm.eps)),
        ProjectorStep::Merge {
            side: config.outer_usize("spatial_merge_size", 2)?,
            values: MergeOrder::ChannelFirst,
        },
        linear(spec.hidden_size, false),
        linear(config.text.hidden_size, bias),
        ProjectorStep::Activation(act),
        linear(config.text.hidden_size, bias),
    ];
    Ok(spec)
}
