//! Gemma 4 with a tower.

use serde_json::{Value, json};

use super::names::NAMES;
use super::{MmprojFamily, MmprojHeader};
use crate::error::SpecError;
use crate::families::vision::gemma4;
use crate::vision_naming::{StepName, VisionNaming};

pub(super) const FAMILY: MmprojFamily = MmprojFamily {
    projector: "gemma4v",
    marker: None,
    family: &gemma4::FAMILY,
    naming: VisionNaming {
        projector: &[
            StepName::Standardize("v.std"),
            StepName::Matrix("mm.input_projection"),
        ],
        ..NAMES
    },
    config,
    processor,
    patch_channels_first: true,
    interleaved_heads: false,
};

fn config(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let config = &header.config;
    let table = "v.position_embd.weight";
    let positions = match config.header.tensor_shape(table) {
        Some([2, positions, _]) => *positions,
        found => {
            let expected = "of two tables, one per axis";
            return Err(SpecError::invalid(table, format!("{found:?}"), expected));
        }
    };
    let tower = json!({
        "rms_norm_eps": config.f64("attention.layer_norm_epsilon")?,
        "head_dim": config.rows("v.blk.0.attn_q_norm.weight")?,
        "position_embedding_size": positions,
        "pooling_kernel_size": header.scale_factor(3)?,
        "standardize": config.has("v.std_bias"),
        "use_clipped_linears": config.has("v.blk.0.attn_q.input_min"),
    });
    // Of the published models, those with inputs per layer attend to pictures causally.
    let attention = match &header.text.per_layer_inputs {
        Some(_) => Value::Null,
        None => json!("vision"),
    };
    Ok(json!({
        "model_type": "gemma4",
        "text_config": { "use_bidirectional_attention": attention },
        "vision_config": header.tower(tower)?,
    }))
}

/// Values are not normalized: the file's means are 0, and its deviations 1.
fn processor(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let fields = json!({
        "patch_size": header.config.usize("patch_size")?,
        "pooling_kernel_size": header.scale_factor(3)?,
    });
    Ok(json!({
        "processor_class": "Gemma4Processor",
        "image_processor": header.image_processor("Gemma4ImageProcessor", fields)?,
    }))
}
