//! The processor classes: how prompts name media, and how many features each view has.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::config::Config;
use super::{FeatureCount, FrameText, ImageText, PromptFrame, PromptRules, TimeFormat, VideoText};
use crate::error::MediaError;
use crate::expansion::Template;
use crate::output::Layout;

/// A row of the table. Texts are templates: `{name}` is a token of `tokens`.
pub(crate) struct ProcessorClass {
    pub name: &'static str,
    /// Image processor classes that imply this class if the files name none.
    implied_by: &'static [&'static str],
    /// Names and default texts; `tokenizer_config.json` and `processor_config.json` may say
    /// otherwise.
    tokens: &'static [(&'static str, &'static str)],
    marker: &'static str,
    placeholder: &'static str,
    image: ImageTexts,
    features: Features,
    video: Option<VideoTexts>,
    /// The video processor of checkpoints without a file of their own for it.
    pub video_class: &'static str,
    frame: PromptFrame,
}

struct ImageTexts {
    /// Names of tokens that chat templates write around the marker.
    around_marker: [&'static str; 2],
    start: &'static str,
    single: &'static str,
    tile: &'static str,
    column_gap: &'static str,
    row_end: &'static str,
    global: &'static str,
    feature_row_gap: &'static str,
    end: &'static str,
}

const PLAIN: ImageTexts = ImageTexts {
    around_marker: [""; 2],
    start: "",
    single: "",
    tile: "",
    column_gap: "",
    row_end: "",
    global: "",
    feature_row_gap: "",
    end: "",
};

struct VideoTexts {
    marker: &'static str,
    placeholder: &'static str,
    frames: FrameTexts,
}

enum FrameTexts {
    Run,
    Each {
        intro: &'static str,
        before: &'static str,
        after: &'static str,
        separator: &'static str,
        outro: &'static str,
        time: TimeFormat,
    },
}

/// Where the number of a view's features comes from.
#[derive(Clone, Copy)]
enum Features {
    /// This field of the processor, or of the image processor; or the default.
    Field(&'static str, Option<u64>),
    /// Patches after merging.
    Merged,
    /// Patches after pooling (`pooling_kernel_size`).
    Pooled,
    /// Patches of the tower, with its class token (`num_additional_image_tokens`).
    Tower,
    /// Merged patches of Pixtral (`patch_size`, `spatial_merge_size`).
    Rows,
    /// Patches after `downsample_factor`.
    Downsampled,
    /// Patches after a pixel shuffle (`pixel_shuffle_ratio`).
    Shuffled,
    /// LLaVA-OneVision's (`num_image_tokens`, `vision_aspect_ratio`).
    AnyResolution,
}

const QWEN_TOKENS: &[(&str, &str)] = &[
    ("image_token", "<|image_pad|>"),
    ("video_token", "<|video_pad|>"),
    ("vision_start_token", "<|vision_start|>"),
    ("vision_end_token", "<|vision_end|>"),
];

const IDEFICS_TOKENS: &[(&str, &str)] = &[
    ("image_token", "<image>"),
    ("fake_image_token", "<fake_token_around_image>"),
    ("global_image_token", "<global-img>"),
    ("tile", "<row_{row}_col_{column}>"),
    ("video_token", "<video>"),
];

const IDEFICS_IMAGE: ImageTexts = ImageTexts {
    single: "{fake_image_token}{global_image_token}",
    tile: "{fake_image_token}{tile}",
    row_end: "\n",
    global: "\n{fake_image_token}{global_image_token}",
    end: "{fake_image_token}",
    ..PLAIN
};

const QWEN_IMAGE: ImageTexts = ImageTexts {
    around_marker: ["vision_start_token", "vision_end_token"],
    ..PLAIN
};

const QWEN2_VL: ProcessorClass = ProcessorClass {
    name: "Qwen2VLProcessor",
    implied_by: &[],
    tokens: QWEN_TOKENS,
    marker: "image_token",
    placeholder: "image_token",
    image: QWEN_IMAGE,
    features: Features::Merged,
    video: Some(VideoTexts {
        marker: "video_token",
        placeholder: "video_token",
        frames: FrameTexts::Run,
    }),
    video_class: "Qwen2VLVideoProcessor",
    frame: PromptFrame::Unchanged,
};

const CLASSES: &[ProcessorClass] = &[
    ProcessorClass {
        name: "Gemma3Processor",
        implied_by: &["Gemma3ImageProcessor"],
        tokens: &[
            ("boi_token", "<start_of_image>"),
            ("eoi_token", "<end_of_image>"),
            ("image_token", "<image_soft_token>"),
        ],
        marker: "boi_token",
        placeholder: "image_token",
        image: ImageTexts {
            start: "\n\n{boi_token}",
            end: "{eoi_token}\n\n",
            ..PLAIN
        },
        features: Features::Field("image_seq_length", Some(256)),
        video: None,
        video_class: "",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "Gemma4Processor",
        implied_by: &["Gemma4ImageProcessor"],
        tokens: &[
            ("boi_token", "<|image>"),
            ("eoi_token", "<image|>"),
            ("image_token", "<|image|>"),
            ("video_token", "<|video|>"),
        ],
        marker: "image_token",
        placeholder: "image_token",
        image: ImageTexts {
            start: "{boi_token}",
            end: "{eoi_token}",
            ..PLAIN
        },
        features: Features::Pooled,
        video: Some(VideoTexts {
            marker: "video_token",
            placeholder: "video_token",
            frames: FrameTexts::Each {
                intro: "",
                before: "{time} {boi_token}",
                after: "{eoi_token}",
                separator: " ",
                outro: "",
                time: TimeFormat::MinutesSeconds,
            },
        }),
        video_class: "Gemma4VideoProcessor",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "PaliGemmaProcessor",
        implied_by: &[],
        tokens: &[("image_token", "<image>")],
        marker: "image_token",
        placeholder: "image_token",
        image: PLAIN,
        features: Features::Field("image_seq_length", None),
        video: None,
        video_class: "",
        frame: PromptFrame::BosAfterImages,
    },
    QWEN2_VL,
    ProcessorClass {
        name: "Qwen2_5_VLProcessor",
        ..QWEN2_VL
    },
    ProcessorClass {
        name: "Qwen3VLProcessor",
        implied_by: &[],
        tokens: QWEN_TOKENS,
        marker: "image_token",
        placeholder: "image_token",
        image: QWEN_IMAGE,
        features: Features::Merged,
        video: Some(VideoTexts {
            marker: "video_token",
            placeholder: "video_token",
            frames: FrameTexts::Each {
                intro: "",
                before: "<{time} seconds>{vision_start_token}",
                after: "{vision_end_token}",
                separator: "",
                outro: "",
                time: TimeFormat::Tenths,
            },
        }),
        video_class: "Qwen3VLVideoProcessor",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "Glm4vProcessor",
        implied_by: &["Glm4vImageProcessor"],
        tokens: &[
            ("image_token", "<|image|>"),
            ("video_token", "<|video|>"),
            ("begin_of_image", "<|begin_of_image|>"),
            ("end_of_image", "<|end_of_image|>"),
        ],
        marker: "image_token",
        placeholder: "image_token",
        image: ImageTexts {
            around_marker: ["begin_of_image", "end_of_image"],
            ..PLAIN
        },
        features: Features::Merged,
        video: Some(VideoTexts {
            marker: "video_token",
            placeholder: "image_token",
            frames: FrameTexts::Each {
                intro: "",
                before: "{begin_of_image}",
                after: "{end_of_image}{time}",
                separator: "",
                outro: "",
                time: TimeFormat::Seconds,
            },
        }),
        video_class: "Glm4vVideoProcessor",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "LlavaProcessor",
        implied_by: &["LlavaImageProcessor"],
        tokens: &[("image_token", "<image>")],
        marker: "image_token",
        placeholder: "image_token",
        image: PLAIN,
        features: Features::Tower,
        video: None,
        video_class: "",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "LlavaOnevisionProcessor",
        implied_by: &["LlavaOnevisionImageProcessor"],
        tokens: &[("image_token", "<image>"), ("video_token", "<video>")],
        marker: "image_token",
        placeholder: "image_token",
        image: PLAIN,
        features: Features::AnyResolution,
        video: Some(VideoTexts {
            marker: "video_token",
            placeholder: "video_token",
            frames: FrameTexts::Run,
        }),
        video_class: "LlavaOnevisionVideoProcessor",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "PixtralProcessor",
        implied_by: &["PixtralImageProcessor"],
        tokens: &[
            ("image_token", "[IMG]"),
            ("image_break_token", "[IMG_BREAK]"),
            ("image_end_token", "[IMG_END]"),
        ],
        marker: "image_token",
        placeholder: "image_token",
        image: ImageTexts {
            feature_row_gap: "{image_break_token}",
            end: "{image_end_token}",
            ..PLAIN
        },
        features: Features::Rows,
        video: None,
        video_class: "",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "Idefics3Processor",
        implied_by: &["Idefics3ImageProcessor"],
        tokens: IDEFICS_TOKENS,
        marker: "image_token",
        placeholder: "image_token",
        image: IDEFICS_IMAGE,
        features: Features::Field("image_seq_len", Some(169)),
        video: None,
        video_class: "",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "SmolVLMProcessor",
        implied_by: &["SmolVLMImageProcessor"],
        tokens: IDEFICS_TOKENS,
        marker: "image_token",
        placeholder: "image_token",
        image: IDEFICS_IMAGE,
        features: Features::Field("image_seq_len", Some(169)),
        video: Some(VideoTexts {
            marker: "video_token",
            placeholder: "image_token",
            frames: FrameTexts::Each {
                intro: "You are provided the following series of {count} frames from a \
                        {duration} [H:MM:SS] video.\n",
                before: "\nFrame from {time}:{fake_image_token}{global_image_token}",
                after: "{fake_image_token}",
                separator: "",
                outro: "\n\n",
                time: TimeFormat::MinutesSeconds,
            },
        }),
        video_class: "SmolVLMVideoProcessor",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "InternVLProcessor",
        implied_by: &["GotOcr2ImageProcessor"],
        tokens: &[
            ("start_image_token", "<img>"),
            ("end_image_token", "</img>"),
            ("context_image_token", "<IMG_CONTEXT>"),
            ("video_token", "<video>"),
        ],
        marker: "context_image_token",
        placeholder: "context_image_token",
        image: ImageTexts {
            start: "{start_image_token}",
            end: "{end_image_token}",
            ..PLAIN
        },
        features: Features::Field("image_seq_length", Some(256)),
        video: Some(VideoTexts {
            marker: "video_token",
            placeholder: "context_image_token",
            frames: FrameTexts::Each {
                intro: "",
                before: "Frame{index}: {start_image_token}",
                after: "{end_image_token}",
                separator: "\n",
                outro: "",
                time: TimeFormat::Seconds,
            },
        }),
        video_class: "InternVLVideoProcessor",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "Lfm2VlProcessor",
        implied_by: &["Lfm2VlImageProcessor"],
        tokens: &[
            ("image_token", "<image>"),
            ("image_start_token", "<|image_start|>"),
            ("image_end_token", "<|image_end|>"),
            ("image_thumbnail_token", "<|img_thumbnail|>"),
            ("tile", "<|img_row_{row}_col_{column}|>"),
        ],
        marker: "image_token",
        placeholder: "image_token",
        image: ImageTexts {
            start: "{image_start_token}",
            tile: "{tile}",
            global: "{image_thumbnail_token}",
            end: "{image_end_token}",
            ..PLAIN
        },
        features: Features::Downsampled,
        video: None,
        video_class: "",
        frame: PromptFrame::Unchanged,
    },
    ProcessorClass {
        name: "Llama4Processor",
        implied_by: &["Llama4ImageProcessor"],
        tokens: &[
            ("image_token", "<|image|>"),
            ("start_of_image_token", "<|image_start|>"),
            ("end_of_image_token", "<|image_end|>"),
            ("patch_token", "<|patch|>"),
            ("tile_x_separator_token", "<|tile_x_separator|>"),
            ("tile_y_separator_token", "<|tile_y_separator|>"),
        ],
        marker: "image_token",
        placeholder: "patch_token",
        image: ImageTexts {
            start: "{start_of_image_token}",
            single: "{image_token}",
            column_gap: "{tile_x_separator_token}",
            row_end: "{tile_y_separator_token}",
            global: "{image_token}",
            end: "{end_of_image_token}",
            ..PLAIN
        },
        features: Features::Shuffled,
        video: None,
        video_class: "",
        frame: PromptFrame::Unchanged,
    },
];

/// The class by its name; if the files name none, by the image processor's class.
pub(crate) fn find_class(
    named: Option<&str>,
    image_class: &str,
) -> Result<&'static ProcessorClass, MediaError> {
    match named {
        Some(named) => CLASSES
            .iter()
            .find(|class| class.name == named)
            .ok_or_else(|| MediaError::UnsupportedClass {
                kind: "processor",
                class: named.to_string(),
            }),
        None => CLASSES
            .iter()
            .find(|class| class.implied_by.contains(&image_class))
            .ok_or_else(|| MediaError::MissingField {
                file: "processor_config.json".to_string(),
                field: "processor_class".to_string(),
            }),
    }
}

impl ProcessorClass {
    pub fn has_video(&self) -> bool {
        self.video.is_some()
    }

    /// Values that the class passes to its image processor instead of the file's.
    pub fn image_overrides(&self, processor: &Map<String, Value>) -> Vec<(&'static str, Value)> {
        match self.name {
            "InternVLProcessor" => vec![("crop_to_patches", Value::Bool(true))],
            "PixtralProcessor" => {
                let count = |field: &str, default: u64| {
                    processor
                        .get(field)
                        .and_then(Value::as_u64)
                        .unwrap_or(default)
                };
                // Out of range values are refused where the field is read.
                let unit = count("patch_size", 16).saturating_mul(count("spatial_merge_size", 1));
                vec![("patch_size", Value::from(unit))]
            }
            _ => Vec::new(),
        }
    }
}

/// `image` are the image processor's fields, `texts` the token texts by name.
pub(crate) fn read_prompt_rules(
    class: &'static ProcessorClass,
    processor: &Config<'_>,
    image: &Config<'_>,
    layout: Layout,
    texts: &BTreeMap<String, String>,
) -> Result<PromptRules, MediaError> {
    let mut tokens: BTreeMap<&str, String> = BTreeMap::new();
    for &(name, default) in class.tokens {
        let given = processor.optional_text(name)?.map(str::to_string);
        let text = given.or_else(|| texts.get(name).cloned());
        tokens.insert(name, text.unwrap_or_else(|| default.to_string()));
    }
    let token = |name: &str| tokens.get(name).cloned().unwrap_or_default();
    let template = |text: &str| Template::parse(text, &tokens);
    let texts = &class.image;
    let [before, after] = texts.around_marker.map(token);
    let image_marker = token(class.marker);
    Ok(PromptRules {
        class: class.name,
        untemplated_image: format!("{before}{image_marker}{after}"),
        image_marker,
        image: ImageText {
            placeholder: token(class.placeholder),
            start: template(texts.start),
            single: template(texts.single),
            tile: template(texts.tile),
            column_gap: template(texts.column_gap),
            row_end: template(texts.row_end),
            global: template(texts.global),
            feature_row_gap: template(texts.feature_row_gap),
            end: template(texts.end),
        },
        video: class.video.as_ref().map(|video| VideoText {
            marker: token(video.marker),
            placeholder: token(video.placeholder),
            frames: match &video.frames {
                FrameTexts::Run => FrameText::Run,
                FrameTexts::Each {
                    intro,
                    before,
                    after,
                    separator,
                    outro,
                    time,
                } => FrameText::Each {
                    intro: template(intro),
                    before: template(before),
                    after: template(after),
                    separator: template(separator),
                    outro: template(outro),
                    time: *time,
                },
            },
        }),
        features: class.features.read(processor, image, layout)?,
        frame: class.frame,
    })
}

impl Features {
    fn read(
        self,
        processor: &Config<'_>,
        image: &Config<'_>,
        layout: Layout,
    ) -> Result<FeatureCount, MediaError> {
        let area = |unit: u32, divide: u32, add: i64, round_up: bool| FeatureCount::Area {
            unit: unit.max(1),
            divide: divide.max(1),
            add,
            round_up,
        };
        Ok(match self {
            Features::Field(field, default) => {
                let count = match processor.optional_side(field)? {
                    Some(count) => Some(count),
                    None => image.optional_side(field)?,
                };
                match count.or(default.map(|default| default as u32)) {
                    Some(count) => FeatureCount::Fixed(count),
                    None => FeatureCount::Fixed(processor.side(field)?),
                }
            }
            Features::Merged => match layout {
                Layout::MergedPatches { patch, merge, .. } => area(patch * merge, 1, 0, false),
                _ => return Err(image.unsupported("image_processor_type")),
            },
            Features::Pooled => match layout {
                Layout::Patches { patch } => area(
                    patch * image.optional_side("pooling_kernel_size")?.unwrap_or(3),
                    1,
                    0,
                    false,
                ),
                _ => return Err(image.unsupported("image_processor_type")),
            },
            Features::Tower => {
                let extra = match processor.get("num_additional_image_tokens") {
                    Some(value) => value.as_i64().filter(|extra| (0..=1024).contains(extra)),
                    None => Some(0),
                };
                let extra =
                    extra.ok_or_else(|| processor.unsupported("num_additional_image_tokens"))?;
                area(
                    processor.side("patch_size")?,
                    1,
                    extra - dropped(processor)?,
                    false,
                )
            }
            Features::Rows => match image.optional_size("patch_size")? {
                Some(size) if size.width == size.height => area(size.width, 1, 0, false),
                _ => return Err(image.unsupported("patch_size")),
            },
            Features::Downsampled => {
                let patch = image.optional_side("encoder_patch_size")?.unwrap_or(16);
                let factor = image.optional_side("downsample_factor")?.unwrap_or(2);
                area(patch.saturating_mul(factor), 1, 0, true)
            }
            Features::Shuffled => {
                let ratio = processor
                    .optional_number("pixel_shuffle_ratio")?
                    .unwrap_or(0.5);
                let divide = (1.0 / (ratio * ratio)).round_ties_even();
                let patch = processor.optional_side("patch_size")?.unwrap_or(14);
                area(patch, divide as u32, 0, false)
            }
            Features::AnyResolution => {
                let tokens = processor.side("num_image_tokens")?;
                let side = tokens.isqrt();
                if side * side != tokens {
                    return Err(processor.unsupported("num_image_tokens"));
                }
                let ratio = processor.optional_text("vision_aspect_ratio")?;
                let max_tiles = ratio
                    .unwrap_or("anyres_max_9")
                    .strip_prefix("anyres_max_")
                    .and_then(|tiles| tiles.parse().ok())
                    .filter(|tiles| (1..=1024).contains(tiles))
                    .ok_or_else(|| processor.unsupported("vision_aspect_ratio"))?;
                FeatureCount::AnyResolution {
                    side,
                    max_tiles,
                    add: -dropped(processor)?,
                }
            }
        })
    }
}

/// Features that the tower's selection drops: `default` drops the class token.
fn dropped(processor: &Config<'_>) -> Result<i64, MediaError> {
    match processor.optional_text("vision_feature_select_strategy")? {
        Some("default") => Ok(1),
        Some("full") | None => Ok(0),
        Some(_) => Err(processor.unsupported("vision_feature_select_strategy")),
    }
}
