//! A checkpoint's processor: its rules, and what they make of images and videos.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{MediaError, Quantity};
use crate::expansion::{Expansion, ImageViews, Piece, ViewSize, expand_prompt};
use crate::limits::{Limits, check};
use crate::output::{Layout, MediaPixels, View, content_hash};
use crate::plan::Plan;
use crate::raster::Raster;
use crate::resample::Arithmetic;
use crate::rules::{
    Config, FrameCap, ImageRules, PromptRules, VideoRules, find_class, read_image_rules,
    read_prompt_rules, read_video_rules,
};
use crate::size::{Size, TargetSize};
use crate::tiles::{Geometry, best_resolution};
use crate::video::{FrameSource, SampleOptions, Video, VideoMetadata};

/// The files that describe a processor. Only the image processor's fields are needed, from
/// either file.
#[derive(Debug, Clone, Default)]
pub struct ProcessorFiles {
    /// `preprocessor_config.json`
    pub preprocessor: Option<Map<String, Value>>,
    /// `processor_config.json`
    pub processor: Option<Map<String, Value>>,
    /// `video_preprocessor_config.json`
    pub video_preprocessor: Option<Map<String, Value>>,
    /// `tokenizer_config.json`: the texts of named tokens.
    pub tokenizer: Option<Map<String, Value>>,
    /// The processor class, if the caller knows it and the files may not name it.
    pub processor_class: Option<String>,
}

const PREPROCESSOR: &str = "preprocessor_config.json";
const PROCESSOR: &str = "processor_config.json";
const VIDEO_PREPROCESSOR: &str = "video_preprocessor_config.json";

impl ProcessorFiles {
    /// The files of a checkpoint's folder; those that do not exist are left out.
    pub fn read(folder: &Path, limits: &Limits) -> Result<Self, MediaError> {
        let read = |name: &str| read_object(&folder.join(name), name, limits);
        Ok(Self {
            preprocessor: read(PREPROCESSOR)?,
            processor: read(PROCESSOR)?,
            video_preprocessor: read(VIDEO_PREPROCESSOR)?,
            // Tokenizer files may be large; only a few of their fields matter here.
            tokenizer: read_object(
                &folder.join("tokenizer_config.json"),
                "tokenizer_config.json",
                limits,
            )?,
            processor_class: None,
        })
    }

    /// The texts of tokens such as `image_token`.
    fn token_texts(&self) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        let fields = self.tokenizer.iter().flatten();
        let extra = self
            .tokenizer
            .as_ref()
            .and_then(|tokenizer| tokenizer.get("extra_special_tokens")?.as_object())
            .into_iter()
            .flatten();
        for (name, value) in extra.chain(fields) {
            let text = value.as_str().or_else(|| value.get("content")?.as_str());
            if let Some(text) = text.filter(|text| !text.is_empty())
                && name.ends_with("_token")
            {
                texts.insert(name.clone(), text.to_string());
            }
        }
        texts
    }
}

fn read_object(
    path: &Path,
    name: &str,
    limits: &Limits,
) -> Result<Option<Map<String, Value>>, MediaError> {
    let failed = |source| MediaError::Io {
        path: path.to_path_buf(),
        source,
    };
    let length = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    check(Quantity::ConfigBytes, length, limits.config_bytes)?;
    let bytes = std::fs::read(path).map_err(failed)?;
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(MediaError::InvalidConfig {
            file: name.to_string(),
            reason: "it is not a JSON object".to_string(),
        }),
        Err(error) => Err(MediaError::InvalidConfig {
            file: name.to_string(),
            reason: error.to_string(),
        }),
    }
}

/// What an item costs, known without decoding it.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaPlan {
    pub views: usize,
    pub values: usize,
    pub expansion: Expansion,
}

impl MediaPlan {
    /// How many positions of the prompt take features of the item.
    pub fn positions(&self) -> usize {
        self.expansion.positions()
    }
}

/// The rules of a checkpoint's processor.
#[derive(Debug, Clone, PartialEq)]
pub struct Processor {
    pub image: ImageRules,
    pub video: Option<VideoRules>,
    pub prompt: PromptRules,
    bos: String,
}

impl Processor {
    pub fn from_files(files: &ProcessorFiles) -> Result<Self, MediaError> {
        let empty = Map::new();
        let processor = files.processor.as_ref().unwrap_or(&empty);
        let object = |field: &str| processor.get(field)?.as_object();
        // transformers reads `processor_config.json` first.
        let (image_file, image_fields) = match (object("image_processor"), &files.preprocessor) {
            (Some(fields), _) => (PROCESSOR, fields),
            (None, Some(fields)) => (PREPROCESSOR, fields),
            (None, None) => {
                return Err(MediaError::MissingField {
                    file: PREPROCESSOR.to_string(),
                    field: "image_processor_type".to_string(),
                });
            }
        };
        let class_field = |fields: &Map<String, Value>| {
            let class = fields.get("processor_class")?.as_str()?;
            Some(class.to_string())
        };
        let named = class_field(processor)
            .or_else(|| files.preprocessor.as_ref().and_then(class_field))
            .or_else(|| files.processor_class.clone());
        // Some files have no type, but a class that has only one.
        let mut image_fields = image_fields.clone();
        let mut class = named
            .as_deref()
            .map(|named| find_class(Some(named), ""))
            .transpose()?;
        let overrides = class.map(|class| class.image_overrides(processor));
        let mut image = read_image_rules(
            image_file,
            &image_fields,
            overrides.as_deref().unwrap_or_default(),
        )?;
        if class.is_none() {
            let implied = find_class(None, image.class)?;
            let overrides = implied.image_overrides(processor);
            image = read_image_rules(image_file, &image_fields, &overrides)?;
            class = Some(implied);
        }
        let Some(class) = class else {
            return Err(MediaError::MissingField {
                file: PROCESSOR.to_string(),
                field: "processor_class".to_string(),
            });
        };
        for (field, value) in class.image_overrides(processor) {
            image_fields.insert(field.to_string(), value);
        }
        let texts = files.token_texts();
        let prompt = read_prompt_rules(
            class,
            &Config::new(PROCESSOR, processor, "{}")?,
            &Config::new(image_file, &image_fields, "{}")?,
            image.pixels.layout,
            &texts,
        )?;
        let video = if class.has_video() {
            let (file, fields, is_own) =
                match (object("video_processor"), &files.video_preprocessor) {
                    (Some(fields), _) => (PROCESSOR, fields, true),
                    (None, Some(fields)) => (VIDEO_PREPROCESSOR, fields, true),
                    (None, None) => (image_file, &image_fields, false),
                };
            Some(read_video_rules(file, fields, class.video_class, is_own)?)
        } else {
            None
        };
        Ok(Self {
            image,
            video,
            prompt,
            bos: texts.get("bos_token").cloned().unwrap_or_default(),
        })
    }

    /// Follows this arithmetic when resizing.
    pub fn with_arithmetic(mut self, arithmetic: Arithmetic) -> Self {
        self.image.pixels.arithmetic = arithmetic;
        if let Some(video) = &mut self.video {
            video.pixels.arithmetic = arithmetic;
        }
        self
    }

    /// What an image of this size costs, one of `images` in its prompt.
    pub fn plan_image(
        &self,
        width: u32,
        height: u32,
        images: usize,
        limits: &Limits,
    ) -> Result<MediaPlan, MediaError> {
        let (plan, expansion) = self.image_plan(Size::new(width, height), images, limits)?;
        let layout = self.image.pixels.layout;
        Ok(MediaPlan {
            views: plan.cuts.len(),
            values: plan.cuts.iter().map(|cut| layout.values(cut.size, 1)).sum(),
            expansion,
        })
    }

    fn image_plan(
        &self,
        size: Size,
        images: usize,
        limits: &Limits,
    ) -> Result<(Plan, Expansion), MediaError> {
        limits.check_size(size.width, size.height)?;
        let layout = self.image.pixels.layout;
        // A patch of a still image repeats it in time.
        let frames = match layout {
            Layout::MergedPatches { temporal, .. } => temporal,
            _ => 1,
        };
        let plan = self.image.geometry.plan(size, images, frames)?;
        plan.check(size, 1, limits)?;
        let views: Vec<ViewSize> = plan
            .cuts
            .iter()
            .map(|cut| ViewSize {
                role: cut.role,
                size: cut.size,
            })
            .collect();
        let resolution = match &self.image.geometry {
            Geometry::AnyResolution { resolutions, .. } => Some(best_resolution(size, resolutions)),
            _ => None,
        };
        let expansion = self.prompt.expand_image(&ImageViews {
            image: size,
            images,
            views: &views,
            columns: plan.columns,
            resolution,
        });
        Ok((plan, expansion))
    }

    /// Preprocesses an image, one of `images` in its prompt: some models treat several
    /// differently.
    pub fn image(
        &self,
        raster: &Raster,
        images: usize,
        limits: &Limits,
    ) -> Result<MediaPixels, MediaError> {
        let size = Size::new(raster.width(), raster.height());
        let (plan, expansion) = self.image_plan(size, images, limits)?;
        let pixels = &self.image.pixels;
        let (views, values) = pixels.image(raster, &plan);
        Ok(finish(
            pixels.layout,
            views,
            values,
            size,
            (plan.rows, plan.columns),
            expansion,
            None,
        ))
    }

    /// Which frames of a video the model takes.
    pub fn sample(
        &self,
        metadata: &VideoMetadata,
        options: &SampleOptions,
    ) -> Result<Vec<usize>, MediaError> {
        let rules = self.video.as_ref().ok_or(MediaError::VideoUnsupported)?;
        rules.sampling.indices(metadata, options)
    }

    /// What a video costs: `indices` are the frames that were sampled.
    pub fn plan_video(
        &self,
        metadata: &VideoMetadata,
        indices: &[usize],
        limits: &Limits,
    ) -> Result<MediaPlan, MediaError> {
        let video = self.video_plan(metadata, indices, limits)?;
        let layout = video.rules.pixels.layout;
        let views = match layout {
            Layout::MergedPatches { .. } => 1,
            _ => indices.len(),
        };
        let frames = if views == 1 { video.frames } else { 1 };
        Ok(MediaPlan {
            views,
            values: layout.values(video.target, frames) * views,
            expansion: video.expansion,
        })
    }

    /// Preprocesses a video's sampled frames.
    pub fn video(&self, video: &Video, limits: &Limits) -> Result<MediaPixels, MediaError> {
        video.check()?;
        let plan = self.video_plan(&video.metadata, &video.indices, limits)?;
        let resized = video.frames.iter().flat_map(|frame| plan.resize(frame));
        let resized: Vec<Raster> = resized.collect();
        Ok(plan.finish(&resized, &video.metadata))
    }

    /// Samples, decodes and preprocesses a video file. One frame at a time is kept at its own
    /// size.
    pub fn video_file(
        &self,
        source: &FrameSource<'_>,
        options: &SampleOptions,
        limits: &Limits,
    ) -> Result<MediaPixels, MediaError> {
        let metadata = source.metadata();
        let indices = self.sample(metadata, options)?;
        // Refuses what is too large before it is decoded.
        let plan = self.video_plan(metadata, &indices, limits)?;
        let mut resized: Vec<Raster> = Vec::with_capacity(indices.len());
        source.frames(&indices, limits, &mut |frame, times| {
            for view in plan.resize(&frame) {
                resized.extend(std::iter::repeat_n(view, times));
            }
        })?;
        Ok(plan.finish(&resized, metadata))
    }

    fn video_plan<'a>(
        &'a self,
        metadata: &VideoMetadata,
        indices: &[usize],
        limits: &Limits,
    ) -> Result<VideoPlan<'a>, MediaError> {
        let (Some(rules), Some(text)) = (&self.video, &self.prompt.video) else {
            return Err(MediaError::VideoUnsupported);
        };
        if indices.is_empty() {
            return Err(MediaError::NoFrames);
        }
        let size = Size::new(metadata.width, metadata.height);
        limits.check_size(size.width, size.height)?;
        check(Quantity::Frames, indices.len() as u64, limits.frames)?;
        let frames = u32::try_from(indices.len()).unwrap_or(u32::MAX);
        let plan = match (&rules.geometry, rules.frame_cap) {
            (Geometry::Whole { resize, .. }, Some(cap)) => {
                let resize = resize.iter().map(|target| cap.apply(target, frames));
                let capped = Geometry::Whole {
                    square: None,
                    resize: resize.collect(),
                    crop: None,
                };
                capped.plan(size, 1, frames)?
            }
            (geometry, _) => geometry.plan(size, 1, frames)?,
        };
        let layout = rules.pixels.layout;
        let group = match layout {
            Layout::MergedPatches { temporal, .. } => temporal as usize,
            _ => 1,
        };
        let padded = indices.len().next_multiple_of(group);
        plan.check(size, padded as u64, limits)?;
        let target = plan.cuts[0].size;
        let groups = padded / group;
        let seconds = metadata.group_seconds(indices, group, text);
        let duration = metadata.duration_seconds(indices);
        let expansion = self
            .prompt
            .expand_video(text, target, groups, &seconds, duration);
        Ok(VideoPlan {
            rules,
            plan,
            target,
            frames,
            expansion,
        })
    }

    /// Replaces the markers of a prompt by the expansions of its items, in order.
    pub fn expand_prompt(
        &self,
        prompt: &str,
        images: &[&Expansion],
        videos: &[&Expansion],
    ) -> Result<Vec<Piece>, MediaError> {
        expand_prompt(&self.prompt, &self.bos, prompt, images, videos)
    }
}

struct VideoPlan<'a> {
    rules: &'a VideoRules,
    plan: Plan,
    target: Size,
    frames: u32,
    expansion: Expansion,
}

impl VideoPlan<'_> {
    fn resize(&self, frame: &Raster) -> Vec<Raster> {
        self.rules.pixels.views(frame, &self.plan)
    }

    /// `resized` are all sampled frames.
    fn finish(self, resized: &[Raster], metadata: &VideoMetadata) -> MediaPixels {
        let pixels = &self.rules.pixels;
        let (views, values) = pixels.frames(resized);
        let seconds_per_grid = match pixels.layout {
            Layout::MergedPatches { temporal, .. } => metadata
                .sampled_fps(resized.len())
                .map(|fps| f64::from(temporal) / fps),
            _ => None,
        };
        let size = Size::new(metadata.width, metadata.height);
        finish(
            pixels.layout,
            views,
            values,
            size,
            (0, 0),
            self.expansion,
            seconds_per_grid,
        )
    }
}

impl FrameCap {
    fn apply(self, target: &TargetSize, frames: u32) -> TargetSize {
        let TargetSize::PixelRange(range) = target else {
            return target.clone();
        };
        let mut range = range.clone();
        let frames = u64::from(frames.max(1));
        let unit = u64::from(range.factor) * u64::from(range.factor);
        let floor = (range.min_pixels as f64 * 1.05) as u64;
        range.max_pixels = match self {
            FrameCap::TotalTokens(tokens) => {
                let total = ((tokens * unit) as f64 * 0.9) as u64;
                // The temporal patch of Qwen2-VL spans two frames.
                range.max_pixels.min(total * 2 / frames).max(floor)
            }
            FrameCap::FrameTokens(tokens) => {
                let each = (tokens * unit).min(range.max_pixels / frames).max(floor);
                each * frames
            }
        };
        TargetSize::PixelRange(range)
    }
}

fn finish(
    layout: Layout,
    views: Vec<View>,
    values: Vec<f32>,
    size: Size,
    (tile_rows, tile_columns): (u32, u32),
    expansion: Expansion,
    seconds_per_grid: Option<f64>,
) -> MediaPixels {
    let hash = content_hash(layout, &views, &values, expansion.positions());
    MediaPixels {
        values,
        layout,
        views,
        width: size.width,
        height: size.height,
        tile_rows,
        tile_columns,
        expansion,
        seconds_per_grid,
        hash,
    }
}
