//! Videos as lists of frames: where frames come from, and which ones a model takes.

mod ffmpeg;
mod sampling;

pub use sampling::{SampleOptions, Sampling, SamplingMethod};

use crate::decode::{self, ImageFormat};
use crate::error::MediaError;
use crate::limits::Limits;
use crate::raster::Raster;
use crate::rules::{FrameText, TimeFormat, VideoText};

/// Processors assume this frame rate for timestamps when it is unknown.
const DEFAULT_FPS: f64 = 24.0;

/// What is known of a video before its frames are decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoMetadata {
    pub width: u32,
    pub height: u32,
    pub total_frames: usize,
    /// Frames per second; `None` if unknown.
    pub fps: Option<f64>,
}

impl VideoMetadata {
    pub(crate) fn duration_seconds(&self, indices: &[usize]) -> f64 {
        match self.fps {
            Some(fps) => self.total_frames as f64 / fps,
            None => indices
                .last()
                .map_or(0.0, |&last| last as f64 / DEFAULT_FPS),
        }
    }

    /// The rate of `sampled` frames spread over the whole video.
    pub(crate) fn sampled_fps(&self, sampled: usize) -> Option<f64> {
        let fps = self.fps?;
        Some(sampled as f64 / self.total_frames as f64 * fps)
    }

    /// The time of each group of frames that share patches, as the prompt writes it.
    pub(crate) fn group_seconds(
        &self,
        indices: &[usize],
        group: usize,
        text: &VideoText,
    ) -> Vec<f64> {
        let fps = self.fps.unwrap_or(DEFAULT_FPS);
        let average = matches!(
            text.frames,
            FrameText::Each {
                time: TimeFormat::Tenths,
                ..
            }
        );
        indices
            .chunks(group)
            .map(|frames| {
                let first = frames[0] as f64 / fps;
                // A last group that is not full repeats its last frame.
                let last = frames[frames.len() - 1] as f64 / fps;
                if average { (first + last) / 2.0 } else { first }
            })
            .collect()
    }
}

/// The sampled frames of a video.
#[derive(Debug, Clone, PartialEq)]
pub struct Video {
    pub metadata: VideoMetadata,
    /// The number of each frame in the whole video.
    pub indices: Vec<usize>,
    pub frames: Vec<Raster>,
}

impl Video {
    /// Frames that were decoded elsewhere, all of them, of equal sizes.
    pub fn from_frames(frames: Vec<Raster>, fps: Option<f64>) -> Result<Self, MediaError> {
        let first = frames.first().ok_or(MediaError::NoFrames)?;
        let video = Self {
            metadata: VideoMetadata {
                width: first.width(),
                height: first.height(),
                total_frames: frames.len(),
                fps: fps.filter(|fps| fps.is_finite() && *fps > 0.0),
            },
            indices: (0..frames.len()).collect(),
            frames,
        };
        video.check()?;
        Ok(video)
    }

    pub(crate) fn check(&self) -> Result<(), MediaError> {
        if self.frames.is_empty() {
            return Err(MediaError::NoFrames);
        }
        if self.frames.len() != self.indices.len() {
            return Err(MediaError::FrameIndices {
                frames: self.frames.len(),
                indices: self.indices.len(),
            });
        }
        let size = (self.metadata.width, self.metadata.height);
        let other = |frame: &&Raster| (frame.width(), frame.height()) != size;
        match self.frames.iter().find(other) {
            Some(frame) => Err(MediaError::UnusableSize {
                width: frame.width(),
                height: frame.height(),
                reason: "frames of a video must have equal sizes",
            }),
            None => Ok(()),
        }
    }
}

/// A video file whose frames are not decoded yet. Animated GIF and WebP are decoded here, other
/// containers by `ffmpeg`, if it is installed.
#[derive(Debug)]
pub struct FrameSource<'a> {
    bytes: &'a [u8],
    metadata: VideoMetadata,
    is_image: bool,
}

impl<'a> FrameSource<'a> {
    /// Reads what the container says, without decoding frames.
    pub fn open(bytes: &'a [u8], limits: &Limits) -> Result<Self, MediaError> {
        limits.check_file(bytes.len())?;
        match ImageFormat::detect(bytes) {
            Ok(_) => {
                let animation = decode::scan(bytes, limits)?;
                let seconds = animation.milliseconds as f64 / 1000.0;
                Ok(Self {
                    bytes,
                    metadata: VideoMetadata {
                        width: animation.width,
                        height: animation.height,
                        total_frames: animation.frames,
                        fps: Some(animation.frames as f64 / seconds),
                    },
                    is_image: true,
                })
            }
            Err(MediaError::UnknownFormat) => Ok(Self {
                bytes,
                metadata: ffmpeg::probe(bytes, limits)?,
                is_image: false,
            }),
            Err(error) => Err(error),
        }
    }

    pub fn metadata(&self) -> &VideoMetadata {
        &self.metadata
    }

    /// Decodes the frames with these numbers, which ascend, and calls `each` with every one and
    /// how often its number occurs.
    pub fn frames(
        &self,
        indices: &[usize],
        limits: &Limits,
        each: &mut dyn FnMut(Raster, usize),
    ) -> Result<(), MediaError> {
        let mut numbers: Vec<(usize, usize)> = Vec::new();
        for &index in indices {
            match numbers.last_mut() {
                Some((last, times)) if *last == index => *times += 1,
                _ => numbers.push((index, 1)),
            }
        }
        if numbers.is_empty() {
            return Err(MediaError::NoFrames);
        }
        if !numbers.is_sorted() || numbers.last() >= Some(&(self.metadata.total_frames, 0)) {
            return Err(MediaError::TooFewFrames {
                requested: numbers.len() as u64,
                available: self.metadata.total_frames as u64,
            });
        }
        if self.is_image {
            decode::frames(self.bytes, &numbers, limits, each)
        } else {
            ffmpeg::frames(self.bytes, &self.metadata, &numbers, limits, each)
        }
    }
}
