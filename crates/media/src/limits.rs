//! What may be decoded. Everything is checked against headers before anything is allocated.

use crate::error::{MediaError, Quantity};

/// Limits on one image or video. The defaults keep decoding and preprocessing of one item below
/// 512 MB, whatever the file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Bytes of the encoded file.
    pub bytes: u64,
    /// Pixels along either side.
    pub side: u32,
    /// Pixels of one image or frame. The default fits a photo of 8192 × 6144.
    pub pixels: u64,
    /// Bytes of one decoded image in the file's own colour type, such as 16-bit RGBA.
    pub decoded_bytes: u64,
    /// Frames that may be read of an animation or video.
    pub frames: u64,
    /// Pixels of all frames together that may be read while frames are chosen.
    pub scanned_pixels: u64,
    /// Pixels of all frames together that are kept at their own size.
    pub kept_pixels: u64,
    /// Pixel values of the preprocessed item, all tiles and frames together. The default fits the
    /// largest images and videos of Qwen3-VL.
    pub output_values: u64,
    /// Bytes of one processor file.
    pub config_bytes: u64,
    /// Seconds that an external decoder may take.
    pub decoder_seconds: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            side: 16_384,
            pixels: 48 << 20,
            decoded_bytes: 256 << 20,
            frames: 4_096,
            scanned_pixels: 96 << 20,
            kept_pixels: 48 << 20,
            output_values: 80 << 20,
            config_bytes: 4 << 20,
            decoder_seconds: 60.0,
        }
    }
}

impl Limits {
    /// Refuses a file of this length.
    pub fn check_file_bytes(&self, bytes: u64) -> Result<(), MediaError> {
        check(Quantity::FileBytes, bytes, self.bytes)
    }

    /// Refuses several items that have more pixels before, or more values after preprocessing, than
    /// the largest single item may have.
    pub fn check_together(&self, pixels: u64, values: u64) -> Result<(), MediaError> {
        check(Quantity::ScannedPixels, pixels, self.scanned_pixels)?;
        check(Quantity::OutputValues, values, self.output_values)
    }

    pub(crate) fn check_file(&self, bytes: usize) -> Result<(), MediaError> {
        self.check_file_bytes(bytes as u64)
    }

    pub(crate) fn check_size(&self, width: u32, height: u32) -> Result<(), MediaError> {
        if width == 0 || height == 0 {
            return Err(MediaError::EmptyImage { width, height });
        }
        check(Quantity::Width, width.into(), self.side.into())?;
        check(Quantity::Height, height.into(), self.side.into())?;
        check(
            Quantity::Pixels,
            u64::from(width) * u64::from(height),
            self.pixels,
        )
    }
}

pub(crate) fn check(quantity: Quantity, found: u64, limit: u64) -> Result<(), MediaError> {
    if found > limit {
        return Err(MediaError::TooLarge {
            quantity,
            found,
            limit,
        });
    }
    Ok(())
}
