//! Tiny models that read pictures, with random weights: one for each way in which media enter a
//! text model.

use std::collections::BTreeMap;
use std::sync::Arc;

use loquat_session::{Grid, Media, ModelSource, Picture, Tiling, View};
use loquat_spec::{Config, Kind, Naming, Orientation, Slot, VisionNaming, families};
use loquat_synthetic::SplitMix64;
use loquat_weights::{Blob, Checkpoint, Dtype, RawTensor};
use serde_json::{Value, json};

/// A model and media that it takes.
pub struct VisionModel {
    pub name: &'static str,
    pub source: ModelSource,
    pub media: Vec<Media>,
}

/// All of them.
pub fn models() -> Vec<VisionModel> {
    configs()
        .into_iter()
        .map(|(name, config)| model(name, &config))
        .collect()
}

fn text(model_type: &str, more: Value) -> Value {
    let base = json!({
        "model_type": model_type, "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 48, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": false,
    });
    merged(base, more)
}

fn merged(mut base: Value, more: Value) -> Value {
    for (field, value) in more.as_object().into_iter().flatten() {
        base[field] = value.clone();
    }
    base
}

fn tower(more: Value) -> Value {
    let base = json!({
        "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 24, "image_size": 16, "patch_size": 4,
    });
    merged(base, more)
}

fn configs() -> Vec<(&'static str, Value)> {
    let qwen = json!({
        "hidden_size": 16, "num_heads": 2, "depth": 2, "intermediate_size": 24, "patch_size": 4,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16,
        "fullatt_block_indexes": [1], "num_position_embeddings": 9,
        "deepstack_visual_indexes": [0],
    });
    let mrope = |more: Value| {
        let rope = json!({"rope_theta": 1e4, "rope_type": "default", "mrope_section": [2, 1, 1]});
        json!({"rope_parameters": merged(rope, more)})
    };
    vec![
        (
            // Views attend to themselves, in layers with windows too.
            "gemma3",
            json!({
                "model_type": "gemma3", "mm_tokens_per_image": 4, "vision_config": tower(json!({})),
                "text_config": text("gemma3_text", json!({
                    "query_pre_attn_scalar": 8, "sliding_window": 6,
                    "layer_types": ["sliding_attention", "full_attention"],
                })),
            }),
        ),
        (
            // The first row attends to itself.
            "paligemma",
            json!({
                "model_type": "paligemma", "vision_config": tower(json!({})),
                "text_config": text("gemma", json!({"use_bidirectional_attention": true})),
            }),
        ),
        (
            // Rotary positions of a grid, windows in the tower.
            "qwen2_5_vl",
            json!({
                "model_type": "qwen2_5_vl", "vision_config": merged(qwen.clone(), json!({"hidden_act": "silu"})),
                "text_config": text("qwen2_5_vl_text", mrope(json!({}))),
            }),
        ),
        (
            // Features of inner layers, alternating positions.
            "qwen3_vl",
            json!({
                "model_type": "qwen3_vl", "vision_config": qwen,
                "text_config": text("qwen3_vl_text", mrope(json!({"mrope_interleaved": true}))),
            }),
        ),
        (
            // Tiles in one picture.
            "llava_onevision",
            json!({
                "model_type": "llava_onevision",
                "vision_config": tower(json!({"model_type": "siglip_vision_model"})),
                "text_config": text("qwen2", json!({})),
            }),
        ),
        (
            // Inputs of every layer, clamped matrices.
            "gemma4_e",
            json!({
                "model_type": "gemma4",
                "vision_config": tower(json!({
                    "model_type": "gemma4_vision", "head_dim": 8, "pooling_kernel_size": 2,
                    "position_embedding_size": 16, "use_clipped_linears": true,
                })),
                "text_config": text("gemma4_text", json!({
                    "global_head_dim": 16, "sliding_window": 6, "num_kv_shared_layers": 0,
                    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64,
                    "pad_token_id": 3, "layer_types": ["sliding_attention", "full_attention"],
                })),
            }),
        ),
        (
            // Recurrent layers.
            "lfm2_vl",
            json!({
                "model_type": "lfm2_vl", "projector_hidden_size": 24,
                "vision_config": tower(json!({"num_patches": 9})),
                "text_config": text("lfm2", json!({
                    "conv_L_cache": 3, "conv_bias": false, "norm_eps": 1e-5,
                    "block_auto_adjust_ff_dim": false,
                    "layer_types": ["conv", "full_attention"],
                })),
            }),
        ),
    ]
}

fn model(name: &'static str, config: &Value) -> VisionModel {
    let config = Config::parse(&config.to_string(), name).expect("a JSON object");
    let described =
        families::from_config(&config).unwrap_or_else(|error| panic!("{name}: {error}"));
    let refusal = described.spec.vision_refusal.clone();
    let vision = described
        .vision
        .unwrap_or_else(|| panic!("{name}: {refusal:?}"));
    let naming: &Naming = &described.namings[0];
    let of_vision: &VisionNaming = &vision.naming;
    let mut slots: Vec<(String, Slot)> = Vec::new();
    for slot in naming.slots(&described.spec) {
        slots.extend(
            slot.names
                .iter()
                .map(|name| (format!("language_model.{name}"), slot.clone())),
        );
    }
    for slot in of_vision.slots(&vision.spec, described.spec.hidden_size) {
        slots.extend(slot.names.iter().map(|name| (name.clone(), slot.clone())));
    }
    let mut tensors = BTreeMap::new();
    for (seed, (name, slot)) in slots.into_iter().enumerate() {
        let members = slot.kind.count() / slot.names.len();
        tensors
            .entry(name.clone())
            .or_insert_with(|| tensor(&name, &slot, members, seed as u64));
    }
    let checkpoint = Checkpoint::from_config(&config, tensors.into_values().collect());
    let checkpoint = checkpoint.unwrap_or_else(|error| panic!("{name}: {error}"));
    let weights = checkpoint
        .bind()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    let media = media(&checkpoint.spec);
    VisionModel {
        name,
        source: ModelSource {
            weights: Arc::new(weights),
            paths: Vec::new(),
            spec: Arc::new(checkpoint.spec),
        },
        media,
    }
}

fn tensor(name: &str, slot: &Slot, members: usize, seed: u64) -> RawTensor {
    let (total, cols) = (slot.layout.total, slot.kind.cols());
    let mut shape = match (slot.kind, slot.layout.orientation) {
        (Kind::Conv { .. }, _) => vec![total, 1, cols],
        (Kind::Vector { .. } | Kind::Vectors { .. }, _) => vec![total],
        (_, Orientation::Rows) => vec![total, cols],
        (_, Orientation::Columns) => vec![cols, total],
        (_, Orientation::PartColumns) => vec![total, slot.kind.rows()],
    };
    if members > 1 {
        shape.insert(0, members);
    }
    let count: usize = shape.iter().product();
    let spread = (3.0 / cols.max(1) as f32).sqrt().min(1.0);
    let mut random = SplitMix64::new(seed + 1);
    // Upper bounds above lower ones, and scales that do not vanish.
    let offset = match name {
        name if name.ends_with("_max") => 3.0,
        name if name.ends_with("_min") => -3.0,
        name if name.ends_with("norm.weight") => 1.0,
        _ => 0.0,
    };
    let values = (0..count).map(|_| {
        let unit = random.below(1 << 20) as f32 / (1 << 20) as f32;
        offset + (unit * 2.0 - 1.0) * spread
    });
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    RawTensor::new(name, Dtype::F32, shape, Blob::from_vec(bytes)).expect("the bytes fit the shape")
}

/// Pictures of two sizes if the tower takes several, and a video if it takes one.
pub fn media(spec: &loquat_spec::ModelSpec) -> Vec<Media> {
    let vision = spec.vision.as_ref().expect("a tower");
    let view = |frames: usize, rows: usize, cols: usize, seed: u64| {
        let mut random = SplitMix64::new(seed);
        let count = frames * rows * cols * vision.patch.values();
        let value = |_| random.below(1 << 16) as f32 / (1 << 16) as f32;
        View {
            grid: Grid { frames, rows, cols },
            values: (0..count).map(value).collect(),
        }
    };
    let picture = |views: Vec<View>| Picture {
        views,
        ..Picture::default()
    };
    let mut media = vec![Media::Image(picture(vec![view(1, 4, 4, 7)]))];
    let tiles = matches!(vision.arrangement, loquat_spec::Arrangement::Tiles { .. });
    if tiles {
        let views = (0..3).map(|seed| view(1, 4, 4, seed)).collect();
        media.push(Media::Image(Picture {
            tiling: Some(Tiling {
                rows: 1,
                cols: 2,
                height: 20,
                width: 50,
            }),
            ..picture(views)
        }));
    } else if vision.fixed_patches().is_none() {
        media.push(Media::Image(picture(vec![view(1, 4, 6, 8)])));
    }
    if vision.video {
        let views = if vision.patch.frames > 1 {
            vec![view(2, 4, 4, 9)]
        } else {
            vec![view(1, 4, 4, 9), view(1, 4, 4, 10)]
        };
        media.push(Media::Video(picture(views)));
    }
    media
}
