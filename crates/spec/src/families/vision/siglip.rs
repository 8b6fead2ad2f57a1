//! Models over a plain SigLIP tower: they differ in how its output is joined and projected.

use serde_json::json;

use super::sizes::{SIGLIP, SIGLIP_LAYER, Sizes, linear, merge};
use super::{VisionConfig, VisionFamily};
use crate::error::SpecError;
use crate::model::{Activation, Norm};
use crate::vision::{
    MediaAttention, PatchPositions, PixelInput, ProjectorStep, Sampling, VisionSpec,
};
use crate::vision_naming::{StepName, VisionNaming};
use crate::vision_roles::VisionRole;

pub(super) const GEMMA3: VisionFamily = VisionFamily {
    model_types: &["gemma3"],
    towers: &[],
    from_config: gemma3,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("multi_modal_projector.mm_soft_emb_norm"),
            StepName::Transposed("multi_modal_projector.mm_input_projection_weight"),
        ],
        norms_minus_one: true,
        ..SIGLIP
    },
    text_fields: &[],
};

pub(super) const PALIGEMMA: VisionFamily = VisionFamily {
    model_types: &["paligemma"],
    towers: &[],
    from_config: paligemma,
    naming: VisionNaming {
        projector: &[StepName::Matrix("multi_modal_projector.linear")],
        ..SIGLIP
    },
    // The whole prompt attends both ways, text too.
    text_fields: &["use_bidirectional_attention"],
};

pub(super) const IDEFICS3: VisionFamily = VisionFamily {
    model_types: &["idefics3", "smolvlm"],
    towers: &[],
    from_config: idefics3,
    naming: VisionNaming {
        globals: &[
            (
                VisionRole::Patch,
                "vision_model.embeddings.patch_embedding.weight",
            ),
            (
                VisionRole::Positions,
                "vision_model.embeddings.position_embedding.weight",
            ),
            (VisionRole::FinalNorm, "vision_model.post_layernorm.weight"),
        ],
        layers: "vision_model.encoder.layers.{}.",
        layer: SIGLIP_LAYER,
        projector: &[StepName::Matrix("connector.modality_projection.proj")],
        ..SIGLIP
    },
    text_fields: &[],
};

pub(super) const LFM2: VisionFamily = VisionFamily {
    model_types: &["lfm2_vl"],
    towers: &[],
    from_config: lfm2,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("multi_modal_projector.layer_norm"),
            StepName::Matrix("multi_modal_projector.linear_1"),
            StepName::Matrix("multi_modal_projector.linear_2"),
        ],
        ..SIGLIP
    },
    text_fields: &[],
};

/// SigLIP with its last norm; the config leaves out what its class has by default.
pub(super) fn siglip(config: &VisionConfig<'_>) -> Result<(Sizes, VisionSpec), SpecError> {
    let defaults = json!({
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 224, "patch_size": 14,
    });
    let so400m = ["gemma3", "paligemma"];
    let outer = config.outer.str("model_type")?.unwrap_or_default();
    let tower = if so400m.contains(&outer) {
        config.tower.with_defaults(defaults)
    } else {
        config.tower.clone()
    };
    let sizes = Sizes::new(&tower, 1e-6, Activation::GeluTanh)?;
    let tower = VisionSpec {
        positions: sizes.fixed_positions(0),
        final_norm: Some(Norm::layer(sizes.eps, true)),
        ..sizes.tower(sizes.block())
    };
    Ok((sizes, tower))
}

fn gemma3(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let (sizes, mut spec) = siglip(config)?;
    let tokens = config.outer_usize("mm_tokens_per_image", 256)?;
    let side = sizes.patches().checked_div(tokens.isqrt()).unwrap_or(0);
    if tokens.isqrt().pow(2) != tokens || side * tokens.isqrt() != sizes.patches() {
        return Err(SpecError::invalid(
            config.outer.path("mm_tokens_per_image"),
            tokens,
            "a square that divides the patches",
        ));
    }
    spec.projector.steps = vec![
        ProjectorStep::AveragePool { side },
        ProjectorStep::Norm(Norm::rms(sizes.eps)),
        linear(config.text.hidden_size, false),
    ];
    spec.attention = MediaAttention::View;
    Ok(spec)
}

fn paligemma(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let (_, mut spec) = siglip(config)?;
    spec.projector.steps = vec![linear(config.text.hidden_size, true)];
    spec.attention = MediaAttention::FirstRow;
    Ok(spec)
}

fn idefics3(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let (sizes, mut spec) = siglip(config)?;
    spec.positions = Some(PatchPositions::Sampled {
        side: sizes.patches(),
        sampling: Sampling::Buckets,
    });
    let scale = config.outer_usize("scale_factor", 2)?;
    spec.projector.steps = vec![merge(scale), linear(config.text.hidden_size, false)];
    Ok(spec)
}

/// SigLIP 2 over patches of any grid.
fn lfm2(config: &VisionConfig<'_>) -> Result<VisionSpec, SpecError> {
    let (_, mut spec) = siglip(config)?;
    spec.patch.input = PixelInput::Patches;
    spec.positions = Some(PatchPositions::Sampled {
        side: config.tower.usize_or("num_patches", 256)?.isqrt(),
        sampling: Sampling::BilinearAntialias,
    });
    let between = config.outer_usize("projector_hidden_size", 2560)?;
    let mut steps = vec![merge(config.outer_usize("downsample_factor", 2)?)];
    if config.outer.bool_or("projector_use_layernorm", true)? {
        steps.push(ProjectorStep::Norm(Norm::layer(1e-5, true)));
    }
    steps.extend(config.mlp(between, config.outer.bool_or("projector_bias", true)?)?);
    spec.projector.steps = steps;
    Ok(spec)
}
