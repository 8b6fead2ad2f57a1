//! Gemma 4: flattened patches of any grid, tables per axis, norms on queries, keys and values.

use super::pixtral::rope_theta;
use super::sizes::{SIGLIP, Sizes, linear};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::model::{Activation, Dense, Norm};
use crate::roles::LayerRole::{self, *};
use crate::vision::{
    MediaAttention, PatchPositions, PatchRope, PatchRopeLayout, PixelInput, ProjectorStep,
    VisionBlock, VisionSpec,
};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const FAMILY: VisionFamily = VisionFamily {
    model_types: &["gemma4"],
    towers: &[],
    from_config,
    naming: VisionNaming {
        globals: &[
            (
                VisionRole::Patch,
                "vision_tower.patch_embedder.input_proj.weight",
            ),
            (
                VisionRole::Positions,
                "vision_tower.patch_embedder.position_embedding_table",
            ),
        ],
        layers: "vision_tower.encoder.layers.{}.",
        layer: LAYER,
        projector: &[
            StepName::Standardize("vision_tower.std"),
            StepName::Matrix("embed_vision.embedding_projection"),
        ],
        ignored: &[],
        ..SIGLIP
    },
    text_fields: &[],
};

const LAYER: &[(LayerRole, &str)] = &[
    (MixerPreNorm, "input_layernorm.weight"),
    (MixerPostNorm, "post_attention_layernorm.weight"),
    (Query, "self_attn.q_proj.linear.weight"),
    (Key, "self_attn.k_proj.linear.weight"),
    (Value, "self_attn.v_proj.linear.weight"),
    (Output, "self_attn.o_proj.linear.weight"),
    (QueryNorm, "self_attn.q_norm.weight"),
    (KeyNorm, "self_attn.k_norm.weight"),
    (FeedForwardPreNorm, "pre_feedforward_layernorm.weight"),
    (FeedForwardPostNorm, "post_feedforward_layernorm.weight"),
    (Gate, "mlp.gate_proj.linear.weight"),
    (Up, "mlp.up_proj.linear.weight"),
    (Down, "mlp.down_proj.linear.weight"),
];

fn from_config(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let tower = &config.tower;
    let sizes = Sizes::new(tower, 1e-6, Activation::GeluTanh)?;
    let norm = Norm::rms(sizes.eps);
    let block = VisionBlock {
        norm,
        sandwich: true,
        head_dim: tower.usize_or("head_dim", sizes.head_dim())?,
        qkv_bias: tower.bool_or("attention_bias", false)?,
        output_bias: tower.bool_or("attention_bias", false)?,
        qk_norm: Some(norm),
        value_norm: Some(norm.weightless()),
        scale: 1.0,
        rope: Some(PatchRope {
            theta: rope_theta(tower, 100.0)?,
            layout: PatchRopeLayout::Parts,
        }),
        mlp: Dense::gated(sizes.mlp, sizes.activation),
        clamped: tower.bool_or("use_clipped_linears", false)?,
        ..sizes.block()
    };
    let mut spec = VisionSpec {
        positions: Some(PatchPositions::PerAxis {
            len: tower.usize_or("position_embedding_size", 10_240)?,
        }),
        video: true,
        ..sizes.tower(block)
    };
    // Pixels from 0 to 1 become -1 to 1.
    (spec.patch.scale, spec.patch.offset) = (2.0, -1.0);
    spec.patch.bias = false;
    spec.patch.input = PixelInput::Patches;
    let side = tower.usize_or("pooling_kernel_size", 3)?;
    let mut steps = vec![
        ProjectorStep::AveragePool { side: side.max(1) },
        ProjectorStep::Scale((sizes.hidden as f32).sqrt()),
    ];
    if tower.bool_or("standardize", false)? {
        steps.push(ProjectorStep::Standardize);
    }
    steps.push(ProjectorStep::Norm(norm.weightless()));
    steps.push(linear(config.text.hidden_size, false));
    spec.projector.steps = steps;
    let text = config.outer.object("text_config")?;
    let attention = match &text {
        Some(text) => text.str("use_bidirectional_attention")?,
        None => None,
    };
    if attention == Some("vision") {
        spec.attention = MediaAttention::WindowedView;
    }
    Ok(spec)
}
