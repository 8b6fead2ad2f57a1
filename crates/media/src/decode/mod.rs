//! Image files to pixels, within limits that are checked against the header first.

mod animation;
mod jpeg;
mod rgb;

use std::io::Cursor;

use image::metadata::Orientation;
use image::{ImageDecoder, ImageReader};

use crate::error::{MediaError, Quantity};
use crate::limits::{Limits, check};
use crate::raster::Raster;

pub use animation::{Animation, frames, scan};

/// The formats that are decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    Png,
    Jpeg,
    WebP,
    Gif,
    Bmp,
}

impl ImageFormat {
    /// The format by the file's first bytes.
    pub fn detect(bytes: &[u8]) -> Result<Self, MediaError> {
        match bytes {
            [] => Err(MediaError::EmptyFile),
            [0x89, b'P', b'N', b'G', ..] => Ok(ImageFormat::Png),
            [0xff, 0xd8, 0xff, ..] => Ok(ImageFormat::Jpeg),
            [b'G', b'I', b'F', b'8', ..] => Ok(ImageFormat::Gif),
            [b'B', b'M', ..] => Ok(ImageFormat::Bmp),
            _ if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") => {
                Ok(ImageFormat::WebP)
            }
            _ => Err(MediaError::UnknownFormat),
        }
    }

    /// The format that a media type such as `image/png` names, if it is supported.
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        match media_type.to_ascii_lowercase().as_str() {
            "image/png" => Some(ImageFormat::Png),
            "image/jpeg" | "image/jpg" => Some(ImageFormat::Jpeg),
            "image/webp" => Some(ImageFormat::WebP),
            "image/gif" => Some(ImageFormat::Gif),
            "image/bmp" | "image/x-ms-bmp" => Some(ImageFormat::Bmp),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Png => "PNG",
            ImageFormat::Jpeg => "JPEG",
            ImageFormat::WebP => "WebP",
            ImageFormat::Gif => "GIF",
            ImageFormat::Bmp => "BMP",
        }
    }

    /// Refuses bytes of another format than the one the sender named.
    pub fn expect(self, bytes: &[u8]) -> Result<(), MediaError> {
        let found = Self::detect(bytes)?;
        if found == self {
            return Ok(());
        }
        Err(MediaError::WrongFormat {
            named: self.name(),
            found: found.name(),
        })
    }

    fn of_image_crate(self) -> image::ImageFormat {
        match self {
            ImageFormat::Png => image::ImageFormat::Png,
            ImageFormat::Jpeg => image::ImageFormat::Jpeg,
            ImageFormat::WebP => image::ImageFormat::WebP,
            ImageFormat::Gif => image::ImageFormat::Gif,
            ImageFormat::Bmp => image::ImageFormat::Bmp,
        }
    }

    fn error(self, error: impl ToString) -> MediaError {
        MediaError::Undecodable {
            format: self.name(),
            reason: error.to_string(),
        }
    }
}

/// What a file's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageInfo {
    pub format: ImageFormat,
    /// As displayed: EXIF orientation is applied.
    pub width: u32,
    pub height: u32,
}

/// Reads a file's header, without decoding it. The size is within `limits`.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<ImageInfo, MediaError> {
    let Header {
        format,
        decoder,
        orientation,
    } = open(bytes, limits)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = if swaps_sides(orientation) {
        (height, width)
    } else {
        (width, height)
    };
    Ok(ImageInfo {
        format,
        width,
        height,
    })
}

pub(crate) fn decode(bytes: &[u8], limits: &Limits) -> Result<Raster, MediaError> {
    let Header {
        format,
        decoder,
        orientation,
    } = open(bytes, limits)?;
    if format == ImageFormat::Jpeg && !jpeg::has_end(bytes) {
        return Err(format.error("it ends before the end of the image"));
    }
    let (width, height) = decoder.dimensions();
    let color = decoder.color_type();
    let size = decoder.total_bytes();
    check(Quantity::DecodedBytes, size, limits.decoded_bytes)?;
    let mut data = vec![0; size as usize];
    decoder
        .read_image(&mut data)
        .map_err(|error| format.error(error))?;
    let rgb = rgb::from_color(data, color).ok_or_else(|| {
        let reason = format!("colour type {color:?}");
        format.error(reason)
    })?;
    Ok(rgb::orient(
        Raster::from_parts(width, height, rgb),
        orientation,
    ))
}

struct Header<'a> {
    format: ImageFormat,
    decoder: Box<dyn ImageDecoder + 'a>,
    orientation: Orientation,
}

fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Header<'a>, MediaError> {
    let format = ImageFormat::detect(bytes)?;
    limits.check_file(bytes.len())?;
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format.of_image_crate());
    reader.limits(image_limits(limits));
    let mut decoder = reader.into_decoder().map_err(|error| {
        // A size beyond the limits is reported by its numbers, if the header can be read.
        oversized(bytes, format, limits).unwrap_or_else(|| format.error(error))
    })?;
    let (width, height) = decoder.dimensions();
    limits.check_size(width, height)?;
    if let ImageFormat::Jpeg = format {
        let pixels = u64::from(width) * u64::from(height);
        jpeg::check_scans(bytes, pixels).map_err(|reason| format.error(reason))?;
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    Ok(Header {
        format,
        decoder: Box::new(decoder),
        orientation,
    })
}

fn image_limits(limits: &Limits) -> image::Limits {
    let mut image_limits = image::Limits::default();
    image_limits.max_image_width = Some(limits.side);
    image_limits.max_image_height = Some(limits.side);
    image_limits.max_alloc = Some(limits.decoded_bytes);
    image_limits
}

fn oversized(bytes: &[u8], format: ImageFormat, limits: &Limits) -> Option<MediaError> {
    let (width, height) = match format {
        ImageFormat::Png => (be32(bytes, 16)?, be32(bytes, 20)?),
        ImageFormat::Gif => (le16(bytes, 6)?, le16(bytes, 8)?),
        ImageFormat::Bmp => (le32(bytes, 18)?, (le32(bytes, 22)? as i32).unsigned_abs()),
        ImageFormat::Jpeg => jpeg::dimensions(bytes)?,
        ImageFormat::WebP => return None,
    };
    limits.check_size(width, height).err()
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

fn le16(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?).into())
}

fn swaps_sides(orientation: Orientation) -> bool {
    matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    )
}

#[cfg(test)]
mod tests;
