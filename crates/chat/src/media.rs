//! Images and videos in messages.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use loquat_media::{Limits, MediaError, Raster};

/// An image in a message. Clones share it. Files are decoded when the request is lowered.
///
/// ```no_run
/// use loquat_chat::{ContentPart, Image, Message};
///
/// # fn main() -> Result<(), loquat_chat::MediaError> {
/// let image = Image::open("cat.png")?;
/// let message = Message::user(vec![image.into(), ContentPart::from("What is this?")]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    pub(crate) source: Arc<ImageSource>,
    pub(crate) detail: Detail,
    pub(crate) field: Option<String>,
}

#[derive(PartialEq, Eq)]
pub(crate) enum ImageSource {
    File(Vec<u8>),
    Pixels(Raster),
}

/// How closely a model looks at an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Detail {
    /// At the size that the model's processor chooses.
    #[default]
    Full,
    /// Shrunk to at most 512 pixels a side, if the image then takes fewer positions.
    Low,
}

impl Image {
    /// A PNG, JPEG, WebP, GIF or BMP file. Of an animation, the first frame.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(ImageSource::File(bytes.into()))
    }

    /// Reads a file. It is decoded later.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MediaError> {
        read_file(path.as_ref()).map(Self::from_bytes)
    }

    /// Decoded pixels: red, green and blue bytes, rows from the top.
    pub fn from_rgb8(width: u32, height: u32, rgb: Vec<u8>) -> Result<Self, MediaError> {
        let raster = Raster::from_rgb8(width, height, rgb, &Limits::default())?;
        Ok(Self::new(ImageSource::Pixels(raster)))
    }

    fn new(source: ImageSource) -> Self {
        Self {
            source: Arc::new(source),
            detail: Detail::default(),
            field: None,
        }
    }

    /// How closely the model looks at it.
    pub fn with_detail(self, detail: Detail) -> Self {
        Self { detail, ..self }
    }

    /// How errors name the image: a request's field. By default its place among the messages.
    pub fn with_field(self, field: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..self
        }
    }

    /// The image's file; `None` if it is pixels.
    pub fn file_bytes(&self) -> Option<&[u8]> {
        match &*self.source {
            ImageSource::File(bytes) => Some(bytes),
            ImageSource::Pixels(_) => None,
        }
    }

    /// Bytes that the image holds in memory.
    pub fn byte_len(&self) -> usize {
        match &*self.source {
            ImageSource::File(bytes) => bytes.len(),
            ImageSource::Pixels(raster) => raster.rgb().len(),
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("bytes", &self.byte_len())
            .field("detail", &self.detail)
            .finish_non_exhaustive()
    }
}

/// A video in a message. Clones share it. Files are decoded when the request is lowered: animated
/// GIF and WebP directly, other containers by `ffmpeg`, if it is installed.
#[derive(Clone, PartialEq, Eq)]
pub struct Video {
    pub(crate) source: Arc<VideoSource>,
    pub(crate) field: Option<String>,
}

#[derive(PartialEq)]
pub(crate) enum VideoSource {
    File(Vec<u8>),
    Frames(loquat_media::Video),
}

// The frame rate is never NaN: `Video::from_frames` leaves out rates that are not finite.
impl Eq for VideoSource {}

impl Video {
    /// A video file.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(VideoSource::File(bytes.into()))
    }

    /// Reads a file. It is decoded later.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MediaError> {
        read_file(path.as_ref()).map(Self::from_bytes)
    }

    /// Decoded frames of one size, which are used as they are, and their rate per second.
    pub fn from_frames(frames: Vec<Raster>, fps: Option<f64>) -> Result<Self, MediaError> {
        let video = loquat_media::Video::from_frames(frames, fps)?;
        Ok(Self::new(VideoSource::Frames(video)))
    }

    fn new(source: VideoSource) -> Self {
        Self {
            source: Arc::new(source),
            field: None,
        }
    }

    /// How errors name the video: a request's field. By default its place among the messages.
    pub fn with_field(self, field: impl Into<String>) -> Self {
        Self {
            field: Some(field.into()),
            ..self
        }
    }

    /// The video's file; `None` if it is frames.
    pub fn file_bytes(&self) -> Option<&[u8]> {
        match &*self.source {
            VideoSource::File(bytes) => Some(bytes),
            VideoSource::Frames(_) => None,
        }
    }

    /// Bytes that the video holds in memory.
    pub fn byte_len(&self) -> usize {
        match &*self.source {
            VideoSource::File(bytes) => bytes.len(),
            VideoSource::Frames(video) => {
                let bytes = video.frames.iter().map(|frame| frame.rgb().len());
                bytes.sum()
            }
        }
    }
}

impl fmt::Debug for Video {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Video")
            .field("bytes", &self.byte_len())
            .finish_non_exhaustive()
    }
}

/// A file within the limits on encoded bytes.
fn read_file(path: &Path) -> Result<Vec<u8>, MediaError> {
    let failed = |source| MediaError::Io {
        path: path.to_path_buf(),
        source,
    };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    Limits::default().check_file_bytes(length)?;
    std::fs::read(path).map_err(failed)
}
