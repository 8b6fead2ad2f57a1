//! Animated GIF and WebP: frame counts and durations from the block structure alone, and the
//! frames that were chosen.

use std::io::Cursor;

use image::codecs::gif::GifDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, Frames, ImageDecoder};

use super::{ImageFormat, image_limits, le16, le32, rgb};
use crate::error::{MediaError, Quantity};
use crate::limits::{Limits, check};
use crate::raster::Raster;

/// What browsers show for a frame without a duration.
const DEFAULT_MILLISECONDS: u64 = 100;

/// The frames of an animated file, without their pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Animation {
    pub width: u32,
    pub height: u32,
    pub frames: usize,
    pub milliseconds: u64,
}

/// Counts the frames of a GIF or WebP without decoding any. A still image has one frame.
pub fn scan(bytes: &[u8], limits: &Limits) -> Result<Animation, MediaError> {
    let header = super::open(bytes, limits)?;
    let (width, height) = header.decoder.dimensions();
    let durations = match header.format {
        ImageFormat::Gif => gif_durations(bytes, limits.frames),
        ImageFormat::WebP => webp_durations(bytes, limits.frames),
        _ => vec![0],
    };
    check(Quantity::Frames, durations.len() as u64, limits.frames)?;
    let durations = if durations.is_empty() {
        vec![0]
    } else {
        durations
    };
    let shown = |&duration: &u64| {
        if duration == 0 {
            DEFAULT_MILLISECONDS
        } else {
            duration
        }
    };
    // Only stills are turned: no decoder applies an orientation to animations.
    let is_turned = durations.len() == 1 && super::swaps_sides(header.orientation);
    let (width, height) = if is_turned {
        (height, width)
    } else {
        (width, height)
    };
    Ok(Animation {
        width,
        height,
        frames: durations.len(),
        milliseconds: durations.iter().map(shown).sum(),
    })
}

/// Decodes the frames with these numbers, which ascend, and calls `each` with every frame and the
/// count beside its number.
pub fn frames(
    bytes: &[u8],
    numbers: &[(usize, usize)],
    limits: &Limits,
    each: &mut dyn FnMut(Raster, usize),
) -> Result<(), MediaError> {
    let animation = scan(bytes, limits)?;
    let Some(&(last, _)) = numbers.last() else {
        return Err(MediaError::NoFrames);
    };
    let pixels = u64::from(animation.width) * u64::from(animation.height);
    let scanned = pixels.saturating_mul(last as u64 + 1);
    check(Quantity::ScannedPixels, scanned, limits.scanned_pixels)?;
    let format = ImageFormat::detect(bytes)?;
    if animation.frames == 1 {
        each(super::decode(bytes, limits)?, numbers[0].1);
        return Ok(());
    }
    let mut wanted = numbers.iter().peekable();
    for (number, frame) in open(bytes, format, limits)?.enumerate() {
        let frame = frame.map_err(|error| format.error(error))?;
        if let Some((_, times)) = wanted.next_if(|(wanted, _)| *wanted == number) {
            let buffer = frame.into_buffer();
            let (width, height) = buffer.dimensions();
            let rgb = rgb::opaque(buffer.into_raw());
            each(Raster::from_parts(width, height, rgb), *times);
        }
        if wanted.peek().is_none() {
            return Ok(());
        }
    }
    Err(format.error("it ends before its last frame"))
}

fn open<'a>(
    bytes: &'a [u8],
    format: ImageFormat,
    limits: &Limits,
) -> Result<Frames<'a>, MediaError> {
    let failed = |error| format.error(error);
    match format {
        ImageFormat::Gif => {
            let mut decoder = GifDecoder::new(Cursor::new(bytes)).map_err(failed)?;
            decoder.set_limits(image_limits(limits)).map_err(failed)?;
            Ok(decoder.into_frames())
        }
        ImageFormat::WebP => {
            let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(failed)?;
            Ok(decoder.into_frames())
        }
        _ => Err(format.error("it is not an animation")),
    }
}

/// The duration of each frame in milliseconds. A damaged file ends the list; more frames than
/// `limit` are not counted further.
fn gif_durations(bytes: &[u8], limit: u64) -> Vec<u64> {
    let mut durations = Vec::new();
    let mut delay = 0;
    let color_table = |flags: u8| {
        if flags & 0x80 == 0 {
            0
        } else {
            3 << ((flags & 7) + 1)
        }
    };
    let Some(&flags) = bytes.get(10) else {
        return durations;
    };
    let mut at = 13 + color_table(flags);
    while durations.len() as u64 <= limit {
        match bytes.get(at) {
            Some(0x21) => {
                // A graphic control extension has the next frame's delay in hundredths.
                if bytes.get(at + 1..at + 3) == Some(&[0xf9, 4]) {
                    delay = le16(bytes, at + 4).unwrap_or(0);
                }
                at = skip_sub_blocks(bytes, at + 2);
            }
            Some(0x2c) => {
                let Some(&flags) = bytes.get(at + 9) else {
                    break;
                };
                durations.push(u64::from(delay) * 10);
                delay = 0;
                at = skip_sub_blocks(bytes, at + 10 + color_table(flags) + 1);
            }
            _ => break,
        }
    }
    durations
}

fn skip_sub_blocks(bytes: &[u8], mut at: usize) -> usize {
    while let Some(&length) = bytes.get(at) {
        at += 1 + length as usize;
        if length == 0 {
            break;
        }
    }
    at
}

fn webp_durations(bytes: &[u8], limit: u64) -> Vec<u64> {
    let mut durations = Vec::new();
    let mut at = 12;
    while let (Some(kind), Some(length)) = (bytes.get(at..at + 4), le32(bytes, at + 4)) {
        if kind == b"ANMF" {
            let duration = le32(bytes, at + 8 + 12).unwrap_or(0) & 0xff_ffff;
            durations.push(u64::from(duration));
            if durations.len() as u64 > limit {
                break;
            }
        }
        // Chunks are padded to even lengths.
        let length = length as usize;
        at = at.saturating_add(8 + length + length % 2);
    }
    durations
}
