//! Processor classes as data: which rules the fields of a checkpoint's processor files mean.

mod config;
mod image_classes;
mod prompt_classes;
mod video_classes;

pub(crate) use config::Config;
pub(crate) use image_classes::read_image_rules;
pub(crate) use prompt_classes::{find_class, read_prompt_rules};
pub(crate) use video_classes::read_video_rules;

use crate::execute::PixelRules;
use crate::expansion::Template;
use crate::tiles::Geometry;
use crate::video::Sampling;

/// How images are preprocessed.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRules {
    pub class: &'static str,
    pub geometry: Geometry,
    pub pixels: PixelRules,
}

/// How videos are preprocessed.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoRules {
    pub class: &'static str,
    /// Applied to each frame.
    pub geometry: Geometry,
    pub pixels: PixelRules,
    pub sampling: Sampling,
    /// Lowers the pixel range of long videos, if the model asks for it.
    pub frame_cap: Option<FrameCap>,
}

/// Qwen's bound on the pixels of each frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FrameCap {
    /// An even share of the pixels of this many tokens.
    TotalTokens(u64),
    /// At most this many tokens in each frame, and an even share of the range's maximum.
    FrameTokens(u64),
}

/// How 8-bit levels become values.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueRules {
    pub scale: Option<f64>,
    /// Mean and standard deviation of each channel.
    pub normalize: Option<([f64; 3], [f64; 3])>,
    pub precision: Precision,
}

/// What the reference computes values in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Scale and normalisation fused in single precision.
    Single,
    /// One after the other in bfloat16 (Llama 4).
    Bfloat16,
}

impl ValueRules {
    pub(crate) fn value(&self, channel: usize, level: u8) -> f32 {
        let level = f32::from(level);
        match (self.precision, self.scale, self.normalize) {
            (Precision::Single, Some(scale), Some((mean, std))) => {
                let inverse = (1.0 / scale) as f32;
                let mean = mean[channel] as f32 * inverse;
                let std = std[channel] as f32 * inverse;
                (level - mean) / std
            }
            (Precision::Single, None, Some((mean, std))) => {
                (level - mean[channel] as f32) / std[channel] as f32
            }
            (Precision::Bfloat16, scale, Some((mean, std))) => {
                let scaled = bfloat16(level * scale.unwrap_or(1.0) as f32);
                let centered = bfloat16(scaled - bfloat16(mean[channel] as f32));
                bfloat16(centered / bfloat16(std[channel] as f32))
            }
            (_, Some(scale), None) => level * scale as f32,
            (_, None, None) => level,
        }
    }
}

/// Rounds to the nearest bfloat16, ties to even. The values here are finite.
fn bfloat16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits + 0x7fff + ((bits >> 16) & 1);
    f32::from_bits(rounded & 0xffff_0000)
}

/// How a prompt names images and videos.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptRules {
    pub class: &'static str,
    /// The placeholder for an image in the prompt that the chat template renders.
    pub image_marker: String,
    /// What chat templates write for an image: the placeholder, and perhaps tokens around it.
    pub untemplated_image: String,
    pub image: ImageText,
    pub video: Option<VideoText>,
    pub features: FeatureCount,
    /// Where the prompt's start and end change because of media.
    pub frame: PromptFrame,
}

/// The text around an image's features.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageText {
    /// The token that is repeated for each feature.
    pub placeholder: String,
    pub start: Template,
    /// Before an image without tiles.
    pub single: Template,
    /// Before each tile; may contain its row and column.
    pub tile: Template,
    /// Between the tiles of a row.
    pub column_gap: Template,
    /// After each row of tiles.
    pub row_end: Template,
    /// Before the whole image, if it also has tiles.
    pub global: Template,
    /// Between rows of features within a view (Pixtral).
    pub feature_row_gap: Template,
    pub end: Template,
}

/// The text around a video's features.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoText {
    pub marker: String,
    pub placeholder: String,
    pub frames: FrameText,
}

#[derive(Debug, Clone, PartialEq)]
pub enum FrameText {
    /// All features in one run.
    Run,
    /// Each frame, or group of frames that share patches, with text around it.
    Each {
        intro: Template,
        before: Template,
        after: Template,
        separator: Template,
        outro: Template,
        time: TimeFormat,
    },
}

/// How `{time}` in a frame's text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeFormat {
    /// `01:05`
    MinutesSeconds,
    /// `65.0`, the middle of the frames that share patches.
    Tenths,
    /// `65`, of the first frame that shares patches.
    Seconds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptFrame {
    Unchanged,
    /// PaliGemma: `bos` after the last image, a line break after the prompt.
    BosAfterImages,
}

/// How many features a view has.
#[derive(Debug, Clone, PartialEq)]
pub enum FeatureCount {
    Fixed(u32),
    /// Per patch in time: `height / unit × width / unit / divide + add`.
    Area {
        unit: u32,
        divide: u32,
        add: i64,
        round_up: bool,
    },
    /// LLaVA-OneVision: the whole image, and the tiles without their padding, with one more
    /// feature per row, reduced to an area of `max_tiles`.
    AnyResolution {
        side: u32,
        max_tiles: u32,
        add: i64,
    },
}
