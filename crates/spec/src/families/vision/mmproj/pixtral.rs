//! Pixtral, Mistral Small 3 and Llama 4.

use serde_json::{Value, json};

use super::names::NAMES;
use super::{MmprojFamily, MmprojHeader};
use crate::error::SpecError;
use crate::families::vision::{llama4, pixtral};
use crate::vision_naming::{StepName, VisionNaming};

/// A copy of the text model's embedding of the token that ends a row.
const ROW_END: &[&str] = &["v.token_embd.img_break"];

pub(super) const PIXTRAL: MmprojFamily = MmprojFamily {
    projector: "pixtral",
    marker: None,
    family: &pixtral::PIXTRAL,
    naming: VisionNaming {
        projector: &[StepName::Matrix("mm.1"), StepName::Matrix("mm.2")],
        ignored: ROW_END,
        ..NAMES
    },
    config: pixtral,
    processor: pixtral_processor,
    patch_channels_first: false,
    interleaved_heads: true,
};

pub(super) const MISTRAL3: MmprojFamily = MmprojFamily {
    marker: Some("mm.patch_merger.weight"),
    family: &pixtral::MISTRAL3,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("mm.input_norm"),
            StepName::Matrix("mm.patch_merger"),
            StepName::Matrix("mm.1"),
            StepName::Matrix("mm.2"),
        ],
        ignored: ROW_END,
        ..NAMES
    },
    config: mistral3,
    ..PIXTRAL
};

pub(super) const LLAMA4: MmprojFamily = MmprojFamily {
    projector: "llama4",
    marker: None,
    family: &llama4::FAMILY,
    naming: VisionNaming {
        projector: &[
            StepName::Matrix("mm.model.mlp.1"),
            StepName::Matrix("mm.model.mlp.2"),
            StepName::Matrix("mm.model.fc"),
        ],
        ..NAMES
    },
    config: llama4,
    processor: llama4_processor,
    patch_channels_first: false,
    interleaved_heads: false,
};

fn merged(header: &MmprojHeader<'_>) -> Result<usize, SpecError> {
    header.usize_or("spatial_merge_size", 1)
}

fn pixtral(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let act = header.activation("gelu", "silu");
    Ok(json!({
        "model_type": "llava",
        "multimodal_projector_bias": header.config.has("mm.1.bias"),
        "vision_config": header.tower(json!({ "hidden_act": act }))?,
    }))
}

fn mistral3(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let mut config = pixtral(header)?;
    config["model_type"] = json!("mistral3");
    config["spatial_merge_size"] = json!(merged(header)?);
    Ok(config)
}

fn pixtral_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let patch = header.config.usize("patch_size")?;
    let fields = json!({
        "size": { "longest_edge": header.image_size()? }, "patch_size": patch,
    });
    Ok(json!({
        "processor_class": "PixtralProcessor",
        "patch_size": patch,
        "spatial_merge_size": merged(header)?,
        "image_processor": header.image_processor("PixtralImageProcessor", fields)?,
    }))
}

fn llama4(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let tower = json!({
        "pixel_shuffle_ratio": 1.0 / header.scale_factor(2)? as f64,
        "projector_input_dim": header.config.rows("mm.model.mlp.1.weight")?,
        "projector_output_dim": header.config.rows("mm.model.mlp.2.weight")?,
    });
    Ok(json!({ "model_type": "llama4", "vision_config": header.tower(tower)? }))
}

fn llama4_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let size = header.image_size()?;
    let fields = json!({ "size": { "height": size, "width": size } });
    Ok(json!({
        "processor_class": "Llama4Processor",
        "patch_size": header.config.usize("patch_size")?,
        "pixel_shuffle_ratio": 1.0 / header.scale_factor(2)? as f64,
        "image_processor": header.image_processor("Llama4ImageProcessor", fields)?,
    }))
}
