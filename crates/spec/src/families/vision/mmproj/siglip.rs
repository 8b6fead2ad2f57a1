//! Gemma 3, Idefics 3 with SmolVLM, and LFM2-VL.

use serde_json::{Value, json};

use super::names::NAMES;
use super::{MmprojFamily, MmprojHeader};
use crate::error::SpecError;
use crate::families::vision::siglip;
use crate::vision_naming::{StepName, VisionNaming};

pub(super) const GEMMA3: MmprojFamily = MmprojFamily {
    projector: "gemma3",
    marker: None,
    family: &siglip::GEMMA3,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("mm.soft_emb_norm"),
            StepName::Transposed("mm.input_projection.weight"),
        ],
        ..NAMES
    },
    config: gemma3,
    processor: gemma3_processor,
    patch_channels_first: false,
    interleaved_heads: false,
};

/// Files do not say which of the two processors they are of; images are the same in both.
pub(super) const IDEFICS3: MmprojFamily = MmprojFamily {
    projector: "idefics3",
    marker: None,
    family: &siglip::IDEFICS3,
    naming: VisionNaming {
        projector: &[StepName::Matrix("mm.model.fc")],
        ..NAMES
    },
    config: idefics3,
    processor: idefics3_processor,
    patch_channels_first: false,
    interleaved_heads: false,
};

pub(super) const LFM2: MmprojFamily = MmprojFamily {
    projector: "lfm2",
    marker: None,
    family: &siglip::LFM2,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("mm.input_norm"),
            StepName::Matrix("mm.1"),
            StepName::Matrix("mm.2"),
        ],
        ..NAMES
    },
    config: lfm2,
    processor: lfm2_processor,
    patch_channels_first: true,
    interleaved_heads: false,
};

fn gemma3_tokens(header: &MmprojHeader<'_>) -> Result<usize, SpecError> {
    let side = header.patches()? / header.scale_factor(4)?;
    Ok(side.saturating_mul(side))
}

fn gemma3(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    Ok(json!({
        "model_type": "gemma3",
        "mm_tokens_per_image": gemma3_tokens(header)?,
        "vision_config": header.tower(json!({}))?,
    }))
}

fn gemma3_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let side = header.image_size()?;
    let size = json!({ "size": { "height": side, "width": side } });
    Ok(json!({
        "processor_class": "Gemma3Processor",
        "image_seq_length": gemma3_tokens(header)?,
        "image_processor": header.image_processor("Gemma3ImageProcessor", size)?,
    }))
}

fn idefics3(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    Ok(json!({
        "model_type": "idefics3",
        "scale_factor": header.scale_factor(2)?,
        "vision_config": header.tower(json!({}))?,
    }))
}

fn idefics3_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let tile = header.image_size()?;
    let side = header.patches()? / header.scale_factor(2)?;
    // Four tiles a side, if the file does not say how far images are resized.
    let longest = header.usize_or("preproc_image_size", tile.saturating_mul(4))?;
    let fields = json!({
        "size": { "longest_edge": longest }, "max_image_size": { "longest_edge": tile },
    });
    Ok(json!({
        "processor_class": "Idefics3Processor",
        "image_seq_len": side.saturating_mul(side),
        "image_processor": header.image_processor("Idefics3ImageProcessor", fields)?,
    }))
}

fn lfm2(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let normed = header.config.has("mm.input_norm.weight");
    let tower = json!({ "num_patches": header.config.rows("v.position_embd.weight")? });
    Ok(json!({
        "model_type": "lfm2_vl",
        "downsample_factor": header.scale_factor(2)?,
        "projector_use_layernorm": normed,
        "projector_bias": header.config.has("mm.1.bias"),
        "projector_hidden_size": header.config.rows("mm.1.weight")?,
        "vision_config": header.tower(tower)?,
    }))
}

fn lfm2_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let fields = json!({
        "encoder_patch_size": header.config.usize("patch_size")?,
        "downsample_factor": header.scale_factor(2)?,
    });
    Ok(json!({
        "processor_class": "Lfm2VlProcessor",
        "image_processor": header.image_processor("Lfm2VlImageProcessor", fields)?,
    }))
}
