//! What can be wrong with a file, a processor's configuration, or a prompt.

use std::fmt;
use std::path::PathBuf;

/// Whose fault an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The image, the video or the prompt that was sent.
    Request,
    /// The model's processor files, or a feature of them that is not implemented.
    Model,
    /// This machine: a file that cannot be read, a program that is not installed.
    System,
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    FileBytes,
    Width,
    Height,
    Pixels,
    DecodedBytes,
    Frames,
    ScannedPixels,
    KeptPixels,
    OutputValues,
    ConfigBytes,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantity::FileBytes => "bytes of the file",
            Quantity::Width => "pixels of width",
            Quantity::Height => "pixels of height",
            Quantity::Pixels => "pixels",
            Quantity::DecodedBytes => "bytes of decoded image",
            Quantity::Frames => "frames",
            Quantity::ScannedPixels => "pixels in all frames",
            Quantity::KeptPixels => "pixels in all sampled frames",
            Quantity::OutputValues => "preprocessed pixel values",
            Quantity::ConfigBytes => "bytes of the processor file",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    #[error("{found} {quantity} exceed the limit of {limit}")]
    TooLarge {
        quantity: Quantity,
        found: u64,
        limit: u64,
    },
    #[error("the image is empty: {width} × {height} pixels")]
    EmptyImage { width: u32, height: u32 },
    #[error("{expected} bytes of RGB pixels are needed for {width} × {height}, got {found}")]
    PixelCount {
        width: u32,
        height: u32,
        expected: u64,
        found: u64,
    },
    #[error("the file is empty")]
    EmptyFile,
    #[error("not an image of a supported format; use PNG, JPEG, WebP, GIF or BMP")]
    UnknownFormat,
    #[error("the file is not {named} but {found}")]
    WrongFormat {
        named: &'static str,
        found: &'static str,
    },
    #[error("the {format} file is damaged or not supported: {reason}")]
    Undecodable {
        format: &'static str,
        reason: String,
    },
    #[error("{width} × {height} pixels cannot be resized for this model: {reason}")]
    UnusableSize {
        width: u32,
        height: u32,
        reason: &'static str,
    },
    #[error("this model does not accept video")]
    VideoUnsupported,
    #[error("the video has no frames")]
    NoFrames,
    #[error("the video's frame rate is unknown, and this model needs it to sample frames")]
    UnknownFrameRate,
    #[error("{requested} frames cannot be sampled from a video of {available}")]
    TooFewFrames { requested: u64, available: u64 },
    #[error("{frames} frames but {indices} frame numbers")]
    FrameIndices { frames: usize, indices: usize },
    #[error(
        "this video cannot be decoded without `ffmpeg` and `ffprobe`: install them, or send an animated GIF or WebP"
    )]
    NoVideoDecoder,
    #[error("`{program}` {reason}")]
    VideoDecoder {
        program: &'static str,
        reason: String,
    },
    #[error("the prompt has {markers} `{marker}` for {items} {kind}")]
    MarkerCount {
        kind: &'static str,
        marker: String,
        markers: usize,
        items: usize,
    },
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("`{file}` is not valid: {reason}")]
    InvalidConfig { file: String, reason: String },
    #[error("`{file}`: `{field}` is missing")]
    MissingField { file: String, field: String },
    #[error("`{file}`: `{field}` is {found}; it must be {expected}")]
    InvalidField {
        file: String,
        field: String,
        found: String,
        expected: &'static str,
    },
    #[error("`{file}`: `{field}` = {value} is not implemented")]
    UnsupportedOption {
        file: String,
        field: String,
        value: String,
    },
    #[error("the {kind} class `{class}` is not implemented")]
    UnsupportedClass { kind: &'static str, class: String },
}

impl MediaError {
    pub fn blame(&self) -> Blame {
        match self {
            MediaError::TooLarge { quantity, .. } => match quantity {
                Quantity::ConfigBytes => Blame::Model,
                _ => Blame::Request,
            },
            MediaError::EmptyImage { .. }
            | MediaError::PixelCount { .. }
            | MediaError::EmptyFile
            | MediaError::UnknownFormat
            | MediaError::WrongFormat { .. }
            | MediaError::Undecodable { .. }
            | MediaError::UnusableSize { .. }
            | MediaError::VideoUnsupported
            | MediaError::NoFrames
            | MediaError::UnknownFrameRate
            | MediaError::TooFewFrames { .. }
            | MediaError::FrameIndices { .. }
            | MediaError::VideoDecoder { .. }
            | MediaError::MarkerCount { .. } => Blame::Request,
            MediaError::NoVideoDecoder | MediaError::Io { .. } => Blame::System,
            MediaError::InvalidConfig { .. }
            | MediaError::MissingField { .. }
            | MediaError::InvalidField { .. }
            | MediaError::UnsupportedOption { .. }
            | MediaError::UnsupportedClass { .. } => Blame::Model,
        }
    }
}
