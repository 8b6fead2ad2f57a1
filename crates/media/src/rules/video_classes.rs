//! The video processor classes.

use serde_json::{Map, Value};

use super::config::Config;
use super::image_classes::{
    COMMON, merged, merged_patches, patch_budget, pixel_range, whole_target,
};
use super::{FrameCap, Precision, VideoRules};
use crate::error::MediaError;
use crate::execute::PixelRules;
use crate::output::Layout;
use crate::size::{Size, TargetSize};
use crate::tiles::Geometry;
use crate::video::{Sampling, SamplingMethod};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameFields {
    Whole,
    PixelRange,
    VideoPixelRange,
    PatchBudget,
    /// The longer side, then a square.
    LongestThenSquare,
}

struct VideoClass {
    name: &'static str,
    frame: FrameFields,
    sampling: SamplingMethod,
    defaults: &'static str,
}

const CLASSES: &[VideoClass] = &[
    VideoClass {
        name: "Gemma4VideoProcessor",
        frame: FrameFields::PatchBudget,
        sampling: SamplingMethod::Uniform,
        defaults: r#"{"patch_size": 16, "max_soft_tokens": 70, "pooling_kernel_size": 3,
            "num_frames": 32, "do_sample_frames": true,
            "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}"#,
    },
    VideoClass {
        name: "Qwen2VLVideoProcessor",
        frame: FrameFields::PixelRange,
        sampling: SamplingMethod::Stride,
        defaults: r#"{"size": {"shortest_edge": 100352, "longest_edge": 602112},
            "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
            "min_frames": 4, "max_frames": 768, "max_video_tokens": 128000}"#,
    },
    VideoClass {
        name: "Qwen3VLVideoProcessor",
        frame: FrameFields::VideoPixelRange,
        sampling: SamplingMethod::EvenlySpaced,
        defaults: r#"{"size": {"shortest_edge": 131072, "longest_edge": 786432},
            "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "fps": 2,
            "min_frames": 4, "max_frames": 768, "max_video_tokens": 768,
            "do_sample_frames": true,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
    },
    VideoClass {
        name: "Glm4vVideoProcessor",
        frame: FrameFields::VideoPixelRange,
        sampling: SamplingMethod::Seconds,
        defaults: r#"{"size": {"shortest_edge": 12544, "longest_edge": 47040000},
            "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "fps": 2,
            "num_frames": 16, "max_duration": 300, "do_sample_frames": true}"#,
    },
    VideoClass {
        name: "InternVLVideoProcessor",
        frame: FrameFields::Whole,
        sampling: SamplingMethod::Centers,
        defaults: r#"{"size": {"height": 384, "width": 384}, "initial_shift": true}"#,
    },
    VideoClass {
        name: "LlavaOnevisionVideoProcessor",
        frame: FrameFields::Whole,
        sampling: SamplingMethod::Uniform,
        defaults: r#"{"size": {"height": 384, "width": 384}}"#,
    },
    VideoClass {
        name: "SmolVLMVideoProcessor",
        frame: FrameFields::LongestThenSquare,
        sampling: SamplingMethod::Trimmed,
        defaults: r#"{"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364},
            "resample": 1, "do_pad": true,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
    },
];

/// Reads a video processor's file. Checkpoints that have none use `class` and the fields of the
/// image processor; then fields that the class does not know are ignored.
pub(crate) fn read_video_rules(
    file: &str,
    fields: &Map<String, Value>,
    class: &str,
    is_own_file: bool,
) -> Result<VideoRules, MediaError> {
    let named = fields.get("video_processor_type").and_then(Value::as_str);
    let named = named.unwrap_or(class);
    let class = CLASSES
        .iter()
        .find(|class| class.name == named)
        .ok_or_else(|| MediaError::UnsupportedClass {
            kind: "video processor",
            class: named.to_string(),
        })?;
    let config = Config::new(file, fields, &merged(COMMON, class.defaults))?;
    if !config.flag("do_resize")? {
        return Err(config.unsupported("do_resize"));
    }
    if config.flag("do_center_crop")? {
        return Err(config.unsupported("do_center_crop"));
    }
    config.get("crop_size");
    let filter = config.filter()?;
    let rules = VideoRules {
        class: class.name,
        geometry: Geometry::Whole {
            square: None,
            resize: class.frame.targets(&config)?,
            crop: None,
        },
        pixels: PixelRules {
            filter,
            arithmetic: config.arithmetic(filter),
            values: config.values(Precision::Single)?,
            layout: class.frame.layout(&config)?,
        },
        sampling: read_sampling(&config, class.sampling)?,
        frame_cap: read_frame_cap(&config, class.frame)?,
    };
    // `max_image_size` of GLM-4V and Qwen3-VL, and padding of batches, have no effect.
    for field in [
        "max_image_size",
        "do_pad",
        "max_video_tokens",
        "max_duration",
    ] {
        config.get(field);
    }
    if is_own_file {
        config.finish()?;
    }
    Ok(rules)
}

impl FrameFields {
    fn targets(self, config: &Config<'_>) -> Result<Vec<TargetSize>, MediaError> {
        Ok(match self {
            FrameFields::Whole => vec![whole_target(config)?],
            FrameFields::PixelRange => vec![pixel_range(config, false)?],
            FrameFields::VideoPixelRange => vec![pixel_range(config, true)?],
            FrameFields::PatchBudget => vec![patch_budget(config)?],
            FrameFields::LongestThenSquare => {
                // SmolVLM's older files nest the size in `video_sampling`.
                let nested = config
                    .get("video_sampling")
                    .and_then(|sampling| sampling.pointer("/video_size/longest_edge"))
                    .and_then(Value::as_u64)
                    .and_then(|edge| u32::try_from(edge).ok());
                let edge = match nested {
                    Some(edge) => Some(edge),
                    None => config.side_entry("size", "longest_edge")?,
                };
                let tile = config.side_entry("max_image_size", "longest_edge")?;
                let (Some(edge), Some(tile)) = (edge, tile) else {
                    return Err(config.unsupported("size"));
                };
                vec![
                    TargetSize::LongestEdge(edge.min(4096)),
                    TargetSize::Exact(Size::square(tile)),
                ]
            }
        })
    }

    fn layout(self, config: &Config<'_>) -> Result<Layout, MediaError> {
        match self {
            FrameFields::PixelRange | FrameFields::VideoPixelRange => merged_patches(config, true),
            FrameFields::PatchBudget => Ok(Layout::Patches {
                patch: config.side("patch_size")?,
            }),
            FrameFields::Whole | FrameFields::LongestThenSquare => Ok(Layout::Planar),
        }
    }
}

fn read_sampling(config: &Config<'_>, method: SamplingMethod) -> Result<Sampling, MediaError> {
    let nested = |key: &str| config.entry("video_sampling", key);
    let fps = match config.optional_number("fps")? {
        Some(fps) => Some(fps),
        None => nested("fps")?.map(|fps| fps as f64),
    };
    let num_frames = match config.optional_count("num_frames")? {
        Some(frames) => Some(frames),
        None => nested("max_frames")?,
    };
    match config.get("initial_shift") {
        None | Some(Value::Bool(true)) => {}
        Some(_) => return Err(config.unsupported("initial_shift")),
    }
    Ok(Sampling {
        method,
        enabled: config.flag("do_sample_frames")?,
        fps,
        num_frames,
        min_frames: config.optional_count("min_frames")?.unwrap_or(1),
        max_frames: config.optional_count("max_frames")?.unwrap_or(u64::MAX),
        max_seconds: config.optional_number("max_duration")?,
        multiple: config.optional_side("temporal_patch_size")?.unwrap_or(1),
    })
}

fn read_frame_cap(config: &Config<'_>, frame: FrameFields) -> Result<Option<FrameCap>, MediaError> {
    if !config.flag("cap_pixels_per_frame")? {
        return Ok(None);
    }
    let tokens = config.count("max_video_tokens")?;
    match frame {
        FrameFields::PixelRange => Ok(Some(FrameCap::TotalTokens(tokens))),
        FrameFields::VideoPixelRange => Ok(Some(FrameCap::FrameTokens(tokens))),
        _ => Err(config.unsupported("cap_pixels_per_frame")),
    }
}
