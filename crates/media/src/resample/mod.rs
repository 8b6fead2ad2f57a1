//! Resizing with antialiasing, bit for bit as Pillow and as torchvision do it on 8-bit pixels.
//!
//! Both run one pass per axis, rows first, over normalised filter weights in fixed point, and
//! round to 8 bits between the passes. They differ in the precision of the weights only: Pillow
//! has 22 fractional bits, torch as many as fit into 16 bits beside the largest weight.

use crate::raster::Raster;

/// The interpolation kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    Nearest,
    Box,
    Bilinear,
    Hamming,
    Bicubic,
    Lanczos,
}

/// Whose arithmetic is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arithmetic {
    Pillow,
    /// torchvision on the CPU, which transformers uses since version 5.
    #[default]
    Torchvision,
}

impl Filter {
    /// The filter by the number that Pillow and `preprocessor_config.json` give it.
    pub fn from_pillow(number: u64) -> Option<Self> {
        match number {
            0 => Some(Filter::Nearest),
            1 => Some(Filter::Lanczos),
            2 => Some(Filter::Bilinear),
            3 => Some(Filter::Bicubic),
            4 => Some(Filter::Box),
            5 => Some(Filter::Hamming),
            _ => None,
        }
    }

    fn support(self) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => 0.5,
            Filter::Bilinear | Filter::Hamming => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Nearest | Filter::Box => {
                if x > -0.5 && x <= 0.5 {
                    1.0
                } else {
                    0.0
                }
            }
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Hamming => match x.abs() {
                0.0 => 1.0,
                x if x >= 1.0 => 0.0,
                x => {
                    let x = x * std::f64::consts::PI;
                    x.sin() / x * (0.54 + 0.46 * x.cos())
                }
            },
            // Both use the cubic convolution with a = -0.5.
            Filter::Bicubic => match x.abs() {
                x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
                x if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
                _ => 0.0,
            },
            Filter::Lanczos => {
                if (-3.0..3.0).contains(&x) {
                    sinc(x) * sinc(x / 3.0)
                } else {
                    0.0
                }
            }
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// The image at another size. Sides must be at least 1.
pub fn resize(
    image: &Raster,
    width: u32,
    height: u32,
    filter: Filter,
    arithmetic: Arithmetic,
) -> Raster {
    if (width, height) == (image.width(), image.height()) {
        return image.clone();
    }
    if filter == Filter::Nearest {
        return nearest(image, width, height);
    }
    let rows = (width != image.width()).then(|| {
        let weights = Weights::new(image.width(), width, filter, arithmetic);
        weights.apply_to_rows(image)
    });
    let image = rows.as_ref().unwrap_or(image);
    if height == image.height() {
        return image.clone();
    }
    let weights = Weights::new(image.height(), height, filter, arithmetic);
    weights.apply_to_columns(image)
}

fn nearest(image: &Raster, width: u32, height: u32) -> Raster {
    let source = |at: u32, from: u32, to: u32| {
        let position = (f64::from(at) + 0.5) * (f64::from(from) / f64::from(to));
        (position as u32).min(from - 1) as usize
    };
    let stride = image.width() as usize;
    let mut rgb = Vec::with_capacity(width as usize * height as usize * 3);
    for y in 0..height {
        let row = source(y, image.height(), height) * stride;
        for x in 0..width {
            let at = (row + source(x, image.width(), width)) * 3;
            rgb.extend_from_slice(&image.rgb()[at..at + 3]);
        }
    }
    Raster::from_parts(width, height, rgb)
}

/// For each output pixel along an axis: where its inputs start, and their weights.
struct Weights {
    spans: Vec<Span>,
    values: Vec<i32>,
    fraction_bits: u32,
}

struct Span {
    first: usize,
    offset: usize,
    count: usize,
}

impl Weights {
    fn new(from: u32, to: u32, filter: Filter, arithmetic: Arithmetic) -> Self {
        let scale = f64::from(from) / f64::from(to);
        let stretch = scale.max(1.0);
        let support = filter.support() * stretch;
        let inverse = 1.0 / stretch;
        let mut spans = Vec::with_capacity(to as usize);
        let mut weights: Vec<f64> = Vec::new();
        let mut largest = 0.0_f64;
        for index in 0..to {
            let center = (f64::from(index) + 0.5) * scale;
            let first = ((center - support + 0.5) as i64).max(0);
            let end = ((center + support + 0.5) as i64).min(i64::from(from));
            let offset = weights.len();
            for input in first..end {
                weights.push(filter.weight((input as f64 - center + 0.5) * inverse));
            }
            let span = &mut weights[offset..];
            let total: f64 = span.iter().sum();
            if total != 0.0 {
                for weight in span.iter_mut() {
                    *weight /= total;
                    largest = largest.max(*weight);
                }
            }
            spans.push(Span {
                first: first as usize,
                offset,
                count: weights.len() - offset,
            });
        }
        let fraction_bits = match arithmetic {
            Arithmetic::Pillow => 22,
            // The most bits with which the largest weight is below 2^15.
            Arithmetic::Torchvision => (0..22)
                .find(|bits| (0.5 + largest * f64::from(1u32 << (bits + 1))) as i64 >= 1 << 15)
                .unwrap_or(22),
        };
        let one = f64::from(1u32 << fraction_bits);
        let round = |weight: &f64| (weight * one + 0.5_f64.copysign(*weight)) as i32;
        Self {
            spans,
            values: weights.iter().map(round).collect(),
            fraction_bits,
        }
    }

    fn span(&self, span: &Span) -> &[i32] {
        &self.values[span.offset..span.offset + span.count]
    }

    fn half(&self) -> i32 {
        1 << (self.fraction_bits - 1)
    }

    fn to_byte(&self, sum: i32) -> u8 {
        (sum >> self.fraction_bits).clamp(0, 255) as u8
    }

    fn apply_to_rows(&self, image: &Raster) -> Raster {
        let width = self.spans.len();
        let stride = image.width() as usize * 3;
        let mut rgb = Vec::with_capacity(width * image.height() as usize * 3);
        for row in image.rgb().chunks_exact(stride) {
            for span in &self.spans {
                let pixels = row[span.first * 3..].chunks_exact(3);
                let mut sums = [self.half(); 3];
                for (pixel, &weight) in pixels.zip(self.span(span)) {
                    sums[0] += i32::from(pixel[0]) * weight;
                    sums[1] += i32::from(pixel[1]) * weight;
                    sums[2] += i32::from(pixel[2]) * weight;
                }
                rgb.extend(sums.map(|sum| self.to_byte(sum)));
            }
        }
        Raster::from_parts(width as u32, image.height(), rgb)
    }

    fn apply_to_columns(&self, image: &Raster) -> Raster {
        let height = self.spans.len();
        let stride = image.width() as usize * 3;
        let mut rgb = Vec::with_capacity(height * stride);
        let mut sums = vec![0; stride];
        for span in &self.spans {
            sums.fill(self.half());
            let rows = image.rgb()[span.first * stride..].chunks_exact(stride);
            for (row, &weight) in rows.zip(self.span(span)) {
                for (sum, &value) in sums.iter_mut().zip(row) {
                    *sum += i32::from(value) * weight;
                }
            }
            rgb.extend(sums.iter().map(|&sum| self.to_byte(sum)));
        }
        Raster::from_parts(image.width(), height as u32, rgb)
    }
}

#[cfg(test)]
mod tests;
