//! Every colour type to 8-bit RGB, and EXIF orientation.

use image::ColorType;
use image::metadata::Orientation;

use crate::raster::Raster;

/// Converts in place where it can. 16-bit samples keep their high byte. (Pillow does the same for
/// colour, but clips 16-bit gray to 255, which turns most of such images white.)
pub fn from_color(data: Vec<u8>, color: ColorType) -> Option<Vec<u8>> {
    match color {
        ColorType::Rgb8 => Some(data),
        ColorType::Rgba8 => Some(opaque(data)),
        ColorType::L8 => Some(from_gray(&data)),
        ColorType::La8 => Some(opaque_gray(&data)),
        ColorType::Rgb16 => Some(high_bytes(data)),
        ColorType::Rgba16 => Some(opaque(high_bytes(data))),
        ColorType::L16 => Some(from_gray(&high_bytes(data))),
        ColorType::La16 => Some(opaque_gray(&high_bytes(data))),
        _ => None,
    }
}

fn high_bytes(mut data: Vec<u8>) -> Vec<u8> {
    let samples = data.len() / 2;
    for index in 0..samples {
        let sample = u16::from_ne_bytes([data[index * 2], data[index * 2 + 1]]);
        data[index] = (sample >> 8) as u8;
    }
    data.truncate(samples);
    data
}

fn from_gray(data: &[u8]) -> Vec<u8> {
    data.iter().flat_map(|&gray| [gray; 3]).collect()
}

fn opaque_gray(data: &[u8]) -> Vec<u8> {
    data.chunks_exact(2)
        .flat_map(|pixel| [over_white(pixel[0], pixel[1]); 3])
        .collect()
}

pub fn opaque(mut data: Vec<u8>) -> Vec<u8> {
    let pixels = data.len() / 4;
    for index in 0..pixels {
        let alpha = data[index * 4 + 3];
        for channel in 0..3 {
            data[index * 3 + channel] = over_white(data[index * 4 + channel], alpha);
        }
    }
    data.truncate(pixels * 3);
    data.shrink_to_fit();
    data
}

/// Pillow's `alpha_composite` onto an opaque white background, with its rounding.
fn over_white(value: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 255,
        255 => value,
        _ => {
            let front = u32::from(alpha) * 255 * 255 * 128 / (255 * 255);
            let back = 255 * 128 - front;
            let sum = u32::from(value) * front + 255 * back + (0x80 << 7);
            ((((sum >> 8) + sum) >> 8) >> 7) as u8
        }
    }
}

pub fn orient(raster: Raster, orientation: Orientation) -> Raster {
    let (width, height) = (raster.width(), raster.height());
    let right = width - 1;
    let bottom = height - 1;
    match orientation {
        Orientation::NoTransforms => raster,
        Orientation::FlipHorizontal => remap(&raster, width, height, |x, y| (right - x, y)),
        Orientation::FlipVertical => remap(&raster, width, height, |x, y| (x, bottom - y)),
        Orientation::Rotate180 => remap(&raster, width, height, |x, y| (right - x, bottom - y)),
        Orientation::Rotate90 => remap(&raster, height, width, |x, y| (y, bottom - x)),
        Orientation::Rotate270 => remap(&raster, height, width, |x, y| (right - y, x)),
        Orientation::Rotate90FlipH => remap(&raster, height, width, |x, y| (y, x)),
        Orientation::Rotate270FlipH => {
            remap(&raster, height, width, |x, y| (right - y, bottom - x))
        }
    }
}

/// Each pixel from where `source` says.
fn remap(
    raster: &Raster,
    width: u32,
    height: u32,
    source: impl Fn(u32, u32) -> (u32, u32),
) -> Raster {
    let stride = raster.width() as usize;
    let mut rgb = Vec::with_capacity(raster.rgb().len());
    for y in 0..height {
        for x in 0..width {
            let (from_x, from_y) = source(x, y);
            let at = (from_y as usize * stride + from_x as usize) * 3;
            rgb.extend_from_slice(&raster.rgb()[at..at + 3]);
        }
    }
    Raster::from_parts(width, height, rgb)
}
