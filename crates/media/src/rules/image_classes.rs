//! The image processor classes: each is a row of defaults and of how its fields are read.

use serde_json::{Map, Value};

use super::config::Config;
use super::{ImageRules, Precision};
use crate::error::MediaError;
use crate::execute::PixelRules;
use crate::output::Layout;
use crate::size::{PixelRange, Size, TargetSize};
use crate::tiles::{Budget, Geometry};

/// How the fields of a class describe its geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeometryFields {
    /// `size`, `crop_size`, `do_pad` to a square.
    Whole,
    /// `size` or `min_pixels` and `max_pixels`, per image.
    PixelRange,
    /// The same, counting the frames that a patch spans.
    FramePixelRange,
    /// `max_soft_tokens`, `pooling_kernel_size`.
    PatchBudget,
    /// `size.longest_edge`, `patch_size`.
    PatchesWithin,
    /// `max_image_size`, `do_image_splitting`.
    Split,
    /// `crop_to_patches`, `min_patches`, `max_patches`.
    ClosestGrid,
    /// `max_patches`, `resize_to_max_canvas`.
    Canvas,
    /// `image_grid_pinpoints`.
    AnyResolution,
    /// `min_image_tokens`, `max_tiles`, …
    Budget,
}

struct ImageClass {
    name: &'static str,
    geometry: GeometryFields,
    precision: Precision,
    /// Over [`COMMON`].
    defaults: &'static str,
}

/// Defaults of every class.
pub(super) const COMMON: &str = r#"{
    "do_resize": true, "do_rescale": true, "rescale_factor": 0.00392156862745098,
    "do_normalize": true, "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711]
}"#;

/// Of processors that split large images into tiles.
const SPLIT_DEFAULTS: &str = r#"{"size": {"longest_edge": 1456},
    "max_image_size": {"longest_edge": 364},
    "resample": 1, "do_image_splitting": true, "do_pad": true,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#;

const CLASSES: &[ImageClass] = &[
    ImageClass {
        name: "CLIPImageProcessor",
        geometry: GeometryFields::Whole,
        precision: Precision::Single,
        defaults: r#"{"size": {"shortest_edge": 224}, "do_center_crop": true,
            "crop_size": {"height": 224, "width": 224}}"#,
    },
    ImageClass {
        name: "LlavaImageProcessor",
        geometry: GeometryFields::Whole,
        precision: Precision::Single,
        defaults: r#"{"size": {"shortest_edge": 224}, "do_center_crop": true,
            "crop_size": {"height": 224, "width": 224}}"#,
    },
    ImageClass {
        name: "SiglipImageProcessor",
        geometry: GeometryFields::Whole,
        precision: Precision::Single,
        defaults: r#"{"size": {"height": 224, "width": 224},
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
    },
    ImageClass {
        name: "Gemma3ImageProcessor",
        geometry: GeometryFields::Whole,
        precision: Precision::Single,
        defaults: r#"{"size": {"height": 224, "width": 224}, "resample": 2,
            "default_to_square": true,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
    },
    ImageClass {
        name: "Gemma4ImageProcessor",
        geometry: GeometryFields::PatchBudget,
        precision: Precision::Single,
        defaults: r#"{"patch_size": 16, "max_soft_tokens": 280, "pooling_kernel_size": 3,
            "do_normalize": false, "image_mean": [0, 0, 0], "image_std": [1, 1, 1]}"#,
    },
    ImageClass {
        name: "Qwen2VLImageProcessor",
        geometry: GeometryFields::PixelRange,
        precision: Precision::Single,
        defaults: r#"{"size": {"shortest_edge": 3136, "longest_edge": 1003520},
            "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}"#,
    },
    ImageClass {
        name: "Glm4vImageProcessor",
        geometry: GeometryFields::FramePixelRange,
        precision: Precision::Single,
        defaults: r#"{"size": {"shortest_edge": 12544, "longest_edge": 11760000},
            "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}"#,
    },
    ImageClass {
        name: "PixtralImageProcessor",
        geometry: GeometryFields::PatchesWithin,
        precision: Precision::Single,
        defaults: r#"{"size": {"longest_edge": 1024}, "patch_size": 16, "do_pad": true}"#,
    },
    ImageClass {
        name: "Idefics3ImageProcessor",
        geometry: GeometryFields::Split,
        precision: Precision::Single,
        defaults: SPLIT_DEFAULTS,
    },
    ImageClass {
        name: "SmolVLMImageProcessor",
        geometry: GeometryFields::Split,
        precision: Precision::Single,
        defaults: SPLIT_DEFAULTS,
    },
    ImageClass {
        name: "GotOcr2ImageProcessor",
        geometry: GeometryFields::ClosestGrid,
        precision: Precision::Single,
        defaults: r#"{"size": {"height": 384, "width": 384}, "crop_to_patches": false,
            "min_patches": 1, "max_patches": 12}"#,
    },
    ImageClass {
        name: "Llama4ImageProcessor",
        geometry: GeometryFields::Canvas,
        precision: Precision::Bfloat16,
        defaults: r#"{"size": {"height": 336, "width": 336}, "resample": 2, "max_patches": 16,
            "resize_to_max_canvas": false,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
    },
    ImageClass {
        name: "LlavaOnevisionImageProcessor",
        geometry: GeometryFields::AnyResolution,
        precision: Precision::Single,
        defaults: r#"{"size": {"height": 384, "width": 384}, "do_pad": true,
            "image_grid_pinpoints": [
            [384, 384], [384, 768], [384, 1152], [384, 1536], [384, 1920], [384, 2304],
            [768, 384], [768, 768], [768, 1152], [768, 1536], [768, 1920], [768, 2304],
            [1152, 384], [1152, 768], [1152, 1152], [1152, 1536], [1152, 1920], [1152, 2304],
            [1536, 384], [1536, 768], [1536, 1152], [1536, 1536], [1536, 1920], [1536, 2304],
            [1920, 384], [1920, 768], [1920, 1152], [1920, 1536], [1920, 1920], [1920, 2304],
            [2304, 384], [2304, 768], [2304, 1152], [2304, 1536], [2304, 1920], [2304, 2304]]}"#,
    },
    ImageClass {
        name: "Lfm2VlImageProcessor",
        geometry: GeometryFields::Budget,
        precision: Precision::Single,
        defaults: r#"{"downsample_factor": 2, "do_image_splitting": true, "min_tiles": 2,
            "max_tiles": 10, "use_thumbnail": true, "min_image_tokens": 64,
            "max_image_tokens": 256, "encoder_patch_size": 16, "tile_size": 512,
            "max_pixels_tolerance": 2.0, "do_pad": true, "resample": 2,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#,
    },
];

/// The name without what versions of transformers append to or write instead of it.
fn canonical(class: &str) -> String {
    let class = class
        .strip_suffix("Fast")
        .or_else(|| class.strip_suffix("Pil"))
        .unwrap_or(class);
    let class = class.replace("FeatureExtractor", "ImageProcessor");
    match class.as_str() {
        "Qwen2_5_VLImageProcessor" | "Qwen3VLImageProcessor" => "Qwen2VLImageProcessor".to_string(),
        _ => class,
    }
}

/// Reads `preprocessor_config.json`, or `image_processor` of `processor_config.json`.
/// `overrides` are values that the processor class passes instead of the file's.
pub(crate) fn read_image_rules(
    file: &str,
    fields: &Map<String, Value>,
    overrides: &[(&str, Value)],
) -> Result<ImageRules, MediaError> {
    let named = ["image_processor_type", "feature_extractor_type"]
        .iter()
        .find_map(|field| fields.get(*field)?.as_str())
        .ok_or_else(|| MediaError::MissingField {
            file: file.to_string(),
            field: "image_processor_type".to_string(),
        })?;
    let name = canonical(named);
    let class = CLASSES.iter().find(|class| class.name == name);
    let class = class.ok_or_else(|| MediaError::UnsupportedClass {
        kind: "image processor",
        class: named.to_string(),
    })?;
    let mut fields = fields.clone();
    for (field, value) in overrides {
        fields.insert((*field).to_string(), value.clone());
    }
    let config = Config::new(file, &fields, &merged(COMMON, class.defaults))?;
    let geometry = class.geometry.read(&config)?;
    let layout = class.geometry.layout(&config)?;
    let filter = config.filter()?;
    let pixels = PixelRules {
        filter,
        arithmetic: config.arithmetic(filter),
        values: config.values(class.precision)?,
        layout,
    };
    class.geometry.ignore(&config);
    config.finish()?;
    Ok(ImageRules {
        class: class.name,
        geometry,
        pixels,
    })
}

/// Two JSON objects, the second over the first.
pub(super) fn merged(common: &str, defaults: &str) -> String {
    let object = |text: &str| match serde_json::from_str(text) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    };
    let mut fields = object(common);
    fields.extend(object(defaults));
    Value::Object(fields).to_string()
}

impl GeometryFields {
    fn read(self, config: &Config<'_>) -> Result<Geometry, MediaError> {
        let resizes = config.flag("do_resize")?;
        let always_resizes = !matches!(
            self,
            GeometryFields::Whole | GeometryFields::PatchesWithin | GeometryFields::Split
        );
        if always_resizes && !resizes {
            return Err(config.unsupported("do_resize"));
        }
        match self {
            GeometryFields::Whole => {
                let resize = if resizes {
                    vec![whole_target(config)?]
                } else {
                    config.get("size");
                    Vec::new()
                };
                let square = if config.flag("do_pad")? {
                    Some(config.background()?)
                } else {
                    None
                };
                Ok(Geometry::Whole {
                    square,
                    resize,
                    crop: read_crop(config)?,
                })
            }
            GeometryFields::PixelRange => whole(pixel_range(config, false)?),
            GeometryFields::FramePixelRange => whole(pixel_range(config, true)?),
            GeometryFields::PatchBudget => whole(patch_budget(config)?),
            GeometryFields::PatchesWithin => {
                if !resizes {
                    return Err(config.unsupported("do_resize"));
                }
                let patch = config.size("patch_size")?;
                let longest = match config.side_entry("size", "longest_edge")? {
                    Some(edge) => Size::square(edge),
                    None => config.size("size")?,
                };
                if read_crop(config)?.is_some() {
                    return Err(config.unsupported("do_center_crop"));
                }
                whole(TargetSize::PatchesWithin { longest, patch })
            }
            GeometryFields::Split => {
                let longest = match (resizes, config.side_entry("size", "longest_edge")?) {
                    (false, _) => None,
                    (true, Some(edge)) => Some(TargetSize::LongestEdge(edge)),
                    (true, None) => Some(TargetSize::Exact(config.size("size")?)),
                };
                let tile = config.side_entry("max_image_size", "longest_edge")?;
                Ok(Geometry::Split {
                    longest,
                    tile: tile.ok_or_else(|| config.unsupported("max_image_size"))?,
                    split: config.flag("do_image_splitting")?,
                })
            }
            GeometryFields::ClosestGrid => {
                let tile = config.size("size")?;
                let (min_tiles, max_tiles) =
                    (tiles(config, "min_patches")?, tiles(config, "max_patches")?);
                if !config.flag("crop_to_patches")? {
                    return whole(TargetSize::Exact(tile));
                }
                Ok(Geometry::ClosestGrid {
                    min_tiles,
                    max_tiles,
                    tile,
                })
            }
            GeometryFields::Canvas => {
                let tile = config.size("size")?;
                if tile.width != tile.height {
                    return Err(config.unsupported("size"));
                }
                Ok(Geometry::Canvas {
                    max_tiles: tiles(config, "max_patches")?,
                    tile: tile.width,
                    resize_to_max: config.flag("resize_to_max_canvas")?,
                })
            }
            GeometryFields::AnyResolution => {
                let base = match config.side_entry("size", "shortest_edge")? {
                    Some(edge) => Size::square(edge),
                    None => config.size("size")?,
                };
                let resolutions = config.sizes("image_grid_pinpoints")?;
                let uneven = |size: &Size| {
                    !size.width.is_multiple_of(base.width)
                        || !size.height.is_multiple_of(base.height)
                };
                if base.width != base.height || resolutions.iter().any(uneven) {
                    return Err(config.unsupported("image_grid_pinpoints"));
                }
                if read_crop(config)?.is_some_and(|crop| crop != base) {
                    return Err(config.unsupported("crop_size"));
                }
                Ok(Geometry::AnyResolution {
                    resolutions,
                    base,
                    background: config.background()?,
                })
            }
            GeometryFields::Budget => {
                let split = config.flag("do_image_splitting")?;
                let (least, most) = (tiles(config, "min_tiles")?, tiles(config, "max_tiles")?);
                if split && least > most {
                    return Err(config.unsupported("min_tiles"));
                }
                Ok(Geometry::Budget(Budget {
                    patch: config.side("encoder_patch_size")?,
                    downsample: config.side("downsample_factor")?,
                    min_tokens: config.side("min_image_tokens")?,
                    max_tokens: config.side("max_image_tokens")?,
                    min_tiles: if split { least } else { 1 },
                    max_tiles: if split { most } else { 1 },
                    tile: config.side("tile_size")?,
                    thumbnail: config.flag("use_thumbnail")?,
                    tolerance: config
                        .optional_number("max_pixels_tolerance")?
                        .unwrap_or(2.0),
                }))
            }
        }
    }

    fn layout(self, config: &Config<'_>) -> Result<Layout, MediaError> {
        Ok(match self {
            GeometryFields::PixelRange | GeometryFields::FramePixelRange => {
                merged_patches(config, false)?
            }
            GeometryFields::PatchBudget => Layout::Patches {
                patch: config.side("patch_size")?,
            },
            GeometryFields::Budget => Layout::Patches {
                patch: config.side("encoder_patch_size")?,
            },
            _ => Layout::Planar,
        })
    }

    /// Marks fields that have no effect in this class.
    fn ignore(self, config: &Config<'_>) {
        let fields: &[&str] = match self {
            // The processor class switches pan-and-scan off, whatever the file says.
            GeometryFields::Whole => &[
                "do_pan_and_scan",
                "pan_and_scan_min_crop_size",
                "pan_and_scan_max_num_crops",
                "pan_and_scan_min_ratio_to_activate",
            ],
            // Padding is of batches only; LFM2-VL takes its sizes from other fields.
            GeometryFields::Budget => &["do_pad", "size", "max_num_patches"],
            GeometryFields::PatchesWithin
            | GeometryFields::Split
            | GeometryFields::AnyResolution => {
                &["do_pad", "video_sampling", "aspect_ratio_setting"]
            }
            _ => &[],
        };
        for field in fields {
            config.get(field);
        }
    }
}

fn whole(target: TargetSize) -> Result<Geometry, MediaError> {
    Ok(Geometry::Whole {
        square: None,
        resize: vec![target],
        crop: None,
    })
}

/// A number of tiles. The grids of this many tiles are enumerated.
fn tiles(config: &Config<'_>, field: &str) -> Result<u32, MediaError> {
    let tiles = config.side(field)?;
    if tiles > 1024 {
        return Err(config.unsupported(field));
    }
    Ok(tiles)
}

fn read_crop(config: &Config<'_>) -> Result<Option<Size>, MediaError> {
    if config.flag("do_center_crop")? {
        return config.size("crop_size").map(Some);
    }
    config.get("crop_size");
    Ok(None)
}

/// The meanings of `size` for a single view.
pub(super) fn whole_target(config: &Config<'_>) -> Result<TargetSize, MediaError> {
    // A plain number is a square or the shorter side, depending on the class.
    if let Some(value) = config.get("size")
        && value.is_number()
        && !config.flag("default_to_square")?
    {
        return Ok(TargetSize::ShortestEdge(config.side("size")?));
    }
    let entry = |key| config.side_entry("size", key);
    match (entry("shortest_edge")?, entry("longest_edge")?) {
        (Some(shortest), Some(longest)) => {
            return Ok(TargetSize::ShortestWithin { shortest, longest });
        }
        (Some(shortest), None) => return Ok(TargetSize::ShortestEdge(shortest)),
        _ => {}
    }
    if let (Some(height), Some(width)) = (entry("max_height")?, entry("max_width")?) {
        return Ok(TargetSize::FitWithin(Size::new(width, height)));
    }
    config.size("size").map(TargetSize::Exact)
}

pub(super) fn pixel_range(
    config: &Config<'_>,
    count_frames: bool,
) -> Result<TargetSize, MediaError> {
    let temporal = config.side("temporal_patch_size")?;
    config.get("size");
    let bound = |older: &str, key: &str| match config.optional_count(older)? {
        Some(pixels) => Ok(Some(pixels)),
        None => config.entry("size", key),
    };
    let min_pixels = bound("min_pixels", "shortest_edge")?;
    let max_pixels = bound("max_pixels", "longest_edge")?;
    let (Some(min_pixels), Some(max_pixels)) = (min_pixels, max_pixels) else {
        return Err(config.unsupported("size"));
    };
    let factor = config
        .side("patch_size")?
        .checked_mul(config.side("merge_size")?);
    Ok(TargetSize::PixelRange(PixelRange {
        factor: factor
            .filter(|factor| *factor <= 65_536)
            .ok_or_else(|| config.unsupported("patch_size"))?,
        min_pixels,
        max_pixels,
        temporal: count_frames.then_some(temporal),
    }))
}

pub(super) fn patch_budget(config: &Config<'_>) -> Result<TargetSize, MediaError> {
    config.get("size");
    Ok(TargetSize::PatchBudget {
        patch: small(config, "patch_size")?,
        pool: small(config, "pooling_kernel_size")?,
        tokens: config.side("max_soft_tokens")?,
    })
}

/// A side of a patch or pool.
fn small(config: &Config<'_>, field: &str) -> Result<u32, MediaError> {
    let side = config.side(field)?;
    if side > 256 {
        return Err(config.unsupported(field));
    }
    Ok(side)
}

/// `is_video`: a still image is stored once, not once per frame that a patch spans.
pub(super) fn merged_patches(config: &Config<'_>, is_video: bool) -> Result<Layout, MediaError> {
    let temporal = small(config, "temporal_patch_size")?;
    Ok(Layout::MergedPatches {
        patch: small(config, "patch_size")?,
        merge: small(config, "merge_size")?,
        temporal,
        repeat: if is_video { 1 } else { temporal },
    })
}
