//! Qwen2-VL, Qwen2.5-VL, Qwen3-VL with Qwen3.5, and GLM-4.1V.

use serde_json::{Value, json};

use super::names::NAMES;
use super::{MmprojFamily, MmprojHeader, merge};
use crate::error::SpecError;
use crate::families::vision::{glm4v, qwen2_vl, qwen3_vl};
use crate::vision_naming::{StepName, VisionNaming};

const MERGER: &[StepName] = &[
    StepName::Norm("v.post_ln"),
    StepName::Matrix("mm.0"),
    StepName::Matrix("mm.2"),
];

pub(super) const QWEN2: MmprojFamily = MmprojFamily {
    projector: "qwen2vl_merger",
    marker: None,
    family: &qwen2_vl::QWEN2,
    naming: VisionNaming {
        projector: MERGER,
        ..NAMES
    },
    config: qwen2,
    processor: |header| qwen_processor(header, "Qwen2VLProcessor", [3136, 12_845_056]),
    patch_channels_first: false,
    interleaved_heads: false,
};

pub(super) const QWEN2_5: MmprojFamily = MmprojFamily {
    projector: "qwen2.5vl_merger",
    family: &qwen2_vl::QWEN2_5,
    config: qwen2_5,
    processor: |header| qwen_processor(header, "Qwen2_5_VLProcessor", [3136, 12_845_056]),
    ..QWEN2
};

pub(super) const QWEN3: MmprojFamily = MmprojFamily {
    projector: "qwen3vl_merger",
    family: &qwen3_vl::FAMILY,
    naming: VisionNaming {
        fused_qkv: Some("attn_qkv.weight"),
        projector: MERGER,
        deepstack: &[
            StepName::Norm("v.deepstack.{}.norm"),
            StepName::Matrix("v.deepstack.{}.fc1"),
            StepName::Matrix("v.deepstack.{}.fc2"),
        ],
        ..NAMES
    },
    config: qwen3,
    processor: |header| qwen_processor(header, "Qwen3VLProcessor", [65_536, 16_777_216]),
    ..QWEN2
};

pub(super) const GLM4V: MmprojFamily = MmprojFamily {
    projector: "glm4v",
    family: &glm4v::FAMILY,
    naming: VisionNaming {
        fused_qkv: Some("attn_qkv.weight"),
        projector: &[
            StepName::Matrix("mm.patch_merger"),
            StepName::Matrix("mm.model.fc"),
            StepName::Norm("mm.post_norm"),
            StepName::Gated(["mm.gate.weight", "mm.up.weight", "mm.down.weight"]),
        ],
        ..NAMES
    },
    config: glm4v,
    processor: |header| {
        let image = pixel_range(header, "Glm4vImageProcessor", [12_544, 9_633_792])?;
        Ok(json!({ "processor_class": "Glm4vProcessor", "image_processor": image }))
    },
    ..QWEN2
};

fn merged(header: &MmprojHeader<'_>) -> Result<usize, SpecError> {
    header.usize_or("spatial_merge_size", 2)
}

/// A tower under Qwen's names.
fn tower(header: &MmprojHeader<'_>, more: Value) -> Result<Value, SpecError> {
    let mut fields = header.tower(json!({ "spatial_merge_size": merged(header)? }))?;
    merge(&mut fields, more);
    Ok(fields)
}

fn qwen2(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let hidden = header.config.usize("embedding_length")?;
    let size = header.feed_forward()?;
    if hidden == 0 || !size.is_multiple_of(hidden) {
        let expected = format!("a multiple of {hidden}");
        return Err(SpecError::invalid("v.blk.0.ffn_up.weight", size, expected));
    }
    let more = json!({ "embed_dim": hidden, "mlp_ratio": size / hidden });
    Ok(json!({ "model_type": "qwen2_vl", "vision_config": tower(header, more)? }))
}

fn qwen2_5(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let field = "n_wa_pattern";
    let every = header.config.usize(field)?;
    let layers = header.config.usize("block_count")?;
    if every == 0 {
        return Err(SpecError::invalid(
            header.config.key(field),
            0,
            "at least 1",
        ));
    }
    let full: Vec<usize> = (every - 1..layers.min(1024)).step_by(every).collect();
    let more = json!({
        "fullatt_block_indexes": full,
        // llama.cpp's constant; its converter does not write it.
        "window_size": header.usize_or("window_size", 112)?,
        // Of all published models; files do not say it.
        "tokens_per_second": 2,
    });
    Ok(json!({ "model_type": "qwen2_5_vl", "vision_config": tower(header, more)? }))
}

fn qwen3(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let config = &header.config;
    let flags = config.header.u64s(&config.key("is_deepstack_layers"));
    let layers = flags.iter().flatten().enumerate();
    let stacked: Vec<usize> = layers
        .filter(|(_, flag)| **flag != 0)
        .map(|(i, _)| i)
        .collect();
    let more = json!({
        "num_position_embeddings": config.rows("v.position_embd.weight")?,
        "deepstack_visual_indexes": stacked,
    });
    Ok(json!({ "model_type": "qwen3_vl", "vision_config": tower(header, more)? }))
}

fn glm4v(header: &MmprojHeader<'_>) -> Result<Value, SpecError> {
    let config = &header.config;
    let more = json!({
        "out_hidden_size": header.feed_forward()?,
        "intermediate_size": config.rows("mm.up.weight")?,
        "attention_bias": config.has("v.blk.0.attn_qkv.bias"),
        "hidden_act": header.activation("gelu", "silu"),
    });
    Ok(json!({ "model_type": "glm4v", "vision_config": tower(header, more)? }))
}

fn qwen_processor(
    header: &MmprojHeader<'_>,
    class: &str,
    pixels: [u64; 2],
) -> Result<Value, SpecError> {
    let image = pixel_range(header, "Qwen2VLImageProcessor", pixels)?;
    Ok(json!({ "processor_class": class, "image_processor": image }))
}

/// `pixels` are the least and the most that the hub's files allow, for files that do not say it.
fn pixel_range(
    header: &MmprojHeader<'_>,
    class: &str,
    [least, most]: [u64; 2],
) -> Result<Value, SpecError> {
    let fields = json!({
        "size": {
            "shortest_edge": header.usize_or("image_min_pixels", least as usize)?,
            "longest_edge": header.usize_or("image_max_pixels", most as usize)?,
        },
        "patch_size": header.config.usize("patch_size")?,
        "merge_size": merged(header)?,
        "temporal_patch_size": 2,
    });
    header.image_processor(class, fields)
}
