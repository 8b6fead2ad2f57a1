//! LLaVA over CLIP, and InternVL.

use serde_json::{Value, json};

use super::names::NAMES;
use super::{MmprojFamily, MmprojHeader};
use crate::error::SpecError;
use crate::families::vision::{internvl, llava};
use crate::vision_naming::{StepName, VisionNaming};

pub(super) const LLAVA: MmprojFamily = MmprojFamily {
    projector: "mlp",
    marker: None,
    family: &llava::CLIP,
    naming: VisionNaming {
        projector: &[StepName::Matrix("mm.0"), StepName::Matrix("mm.2")],
        ignored: &["v.post_ln."],
        ..NAMES
    },
    config: llava,
    processor: llava_processor,
    patch_channels_first: false,
    interleaved_heads: false,
};

pub(super) const INTERNVL: MmprojFamily = MmprojFamily {
    projector: "internvl",
    marker: None,
    family: &internvl::FAMILY,
    naming: VisionNaming {
        projector: &[
            StepName::Norm("mm.model.mlp.0"),
            StepName::Matrix("mm.model.mlp.1"),
            StepName::Matrix("mm.model.mlp.3"),
        ],
        ..NAMES
    },
    config: internvl,
    processor: internvl_processor,
    patch_channels_first: false,
    interleaved_heads: false,
};

fn llava(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let config = &header.config;
    for field in ["mm_patch_merge_type", "image_grid_pinpoints"] {
        let key = config.key(field);
        if config.header.contains(&key) && config.header.str(&key) != Some("flat") {
            return Err(SpecError::Unsupported {
                field: key,
                found: "set, as in LLaVA-NeXT".to_owned(),
                supported: "LLaVA 1.5, whose pictures have one view",
            });
        }
    }
    let layers = config.usize("block_count")?;
    let field = config.key("feature_layer");
    let layer = match config.header.u64s(&field).as_deref() {
        None | Some([]) => layers.saturating_sub(1) as u64,
        Some([layer]) => *layer,
        Some(several) => {
            let found = format!("a list of {}", several.len());
            return Err(SpecError::invalid(field, found, "one layer"));
        }
    };
    let act = header.activation("gelu", "quick_gelu");
    Ok(json!({
        "model_type": "llava",
        "vision_feature_layer": layer,
        "multimodal_projector_bias": config.has("mm.0.bias"),
        "vision_config": header.tower(json!({ "hidden_act": act }))?,
    }))
}

fn llava_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let side = header.image_size()?;
    let fields = json!({
        "size": { "shortest_edge": side }, "crop_size": { "height": side, "width": side },
    });
    Ok(json!({
        "processor_class": "LlavaProcessor",
        "patch_size": header.config.usize("patch_size")?,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
        "image_processor": header.image_processor("CLIPImageProcessor", fields)?,
    }))
}

fn internvl(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let tower = json!({
        "hidden_act": header.activation("gelu", "gelu"),
        "attention_bias": header.config.has("v.blk.0.attn_q.bias"),
    });
    Ok(json!({
        "model_type": "internvl",
        "downsample_ratio": 1.0 / header.scale_factor(2)? as f64,
        "vision_config": header.tower(tower)?,
    }))
}

fn internvl_processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let size = header.image_size()?;
    let side = header.patches()? / header.scale_factor(2)?;
    let fields = json!({
        "size": { "height": size, "width": size },
        "min_patches": header.usize_or("preproc_min_tiles", 1)?,
        "max_patches": header.usize_or("preproc_max_tiles", 12)?,
    });
    Ok(json!({
        "processor_class": "InternVLProcessor",
        "image_seq_length": side.saturating_mul(side),
        "image_processor": header.image_processor("GotOcr2ImageProcessor", fields)?,
    }))
}
