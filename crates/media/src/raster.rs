//! Decoded pixels: 8-bit RGB, rows from the top.

use crate::decode;
use crate::error::MediaError;
use crate::limits::Limits;

/// A decoded image. Its sides are at least 1 and its data is exactly as long as they say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raster {
    width: u32,
    height: u32,
    rgb: Vec<u8>,
}

impl Raster {
    /// Pixels that were decoded elsewhere.
    pub fn from_rgb8(
        width: u32,
        height: u32,
        rgb: Vec<u8>,
        limits: &Limits,
    ) -> Result<Self, MediaError> {
        limits.check_size(width, height)?;
        let expected = u64::from(width) * u64::from(height) * 3;
        if rgb.len() as u64 != expected {
            return Err(MediaError::PixelCount {
                width,
                height,
                expected,
                found: rgb.len() as u64,
            });
        }
        Ok(Self { width, height, rgb })
    }

    /// Decodes an image file, its first frame if it is animated. EXIF orientation is applied, and
    /// transparency is composited onto white, as transformers does.
    pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Self, MediaError> {
        decode::decode(bytes, limits)
    }

    pub fn width(&self) -> u32 {
        self.width
    }

    pub fn height(&self) -> u32 {
        self.height
    }

    /// Interleaved RGB, rows from the top.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// The callers guarantee sides of at least 1 and matching data.
    pub(crate) fn from_parts(width: u32, height: u32, rgb: Vec<u8>) -> Self {
        debug_assert_eq!(rgb.len(), width as usize * height as usize * 3);
        Self { width, height, rgb }
    }

    fn row(&self, y: u32) -> &[u8] {
        let stride = self.width as usize * 3;
        &self.rgb[y as usize * stride..][..stride]
    }

    /// The part of the image inside the box; what lies outside the image is black.
    pub(crate) fn crop(&self, left: i64, top: i64, width: u32, height: u32) -> Self {
        self.place(-left, -top, width, height, [0; 3])
    }

    /// The image with its corner at (`left`, `top`) of a canvas of one colour; what lies outside
    /// the canvas is cut off.
    pub(crate) fn place(
        &self,
        left: i64,
        top: i64,
        width: u32,
        height: u32,
        fill: [u8; 3],
    ) -> Self {
        let mut rgb = Vec::with_capacity(width as usize * height as usize * 3);
        let skip = (-left).clamp(0, i64::from(self.width));
        let start = left.clamp(0, i64::from(width));
        let copied = (i64::from(self.width) - skip)
            .min(i64::from(width) - start)
            .max(0);
        for y in 0..i64::from(height) {
            let source = y - top;
            if source < 0 || source >= i64::from(self.height) {
                rgb.extend(std::iter::repeat_n(fill, width as usize).flatten());
                continue;
            }
            rgb.extend(std::iter::repeat_n(fill, start as usize).flatten());
            let from = skip as usize * 3;
            rgb.extend_from_slice(&self.row(source as u32)[from..from + copied as usize * 3]);
            let rest = i64::from(width) - start - copied;
            rgb.extend(std::iter::repeat_n(fill, rest as usize).flatten());
        }
        Self::from_parts(width, height, rgb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(width: u32, height: u32) -> Raster {
        let rgb = (0..width * height).flat_map(|n| [n as u8 + 1, 0, 0]);
        Raster::from_parts(width, height, rgb.collect())
    }

    fn reds(raster: &Raster) -> Vec<u8> {
        raster.rgb().iter().copied().step_by(3).collect()
    }

    #[test]
    fn crop_outside_the_image_is_black() {
        let image = numbered(3, 2);
        assert_eq!(reds(&image.crop(1, 0, 2, 2)), [2, 3, 5, 6]);
        assert_eq!(reds(&image.crop(-1, -1, 3, 2)), [0, 0, 0, 0, 1, 2]);
        assert_eq!(reds(&image.crop(2, 1, 2, 2)), [6, 0, 0, 0]);
        assert_eq!(reds(&image.crop(5, 5, 1, 1)), [0]);
    }

    #[test]
    fn pixel_count_must_match_size() {
        let limits = Limits::default();
        assert!(Raster::from_rgb8(2, 2, vec![0; 12], &limits).is_ok());
        for (width, height, bytes) in [(2, 2, 11), (0, 2, 0), (100_000, 1, 300_000)] {
            assert!(Raster::from_rgb8(width, height, vec![0; bytes], &limits).is_err());
        }
    }
}
