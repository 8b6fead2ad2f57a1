//! The size an image is resized to: arithmetic of the reference processors, in double precision
//! with Python's rounding, so that every size agrees.

use crate::error::MediaError;

/// A size in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: u32,
    pub height: u32,
}

impl Size {
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }

    pub fn square(side: u32) -> Self {
        Self::new(side, side)
    }

    fn unusable(self, reason: &'static str) -> MediaError {
        MediaError::UnusableSize {
            width: self.width,
            height: self.height,
            reason,
        }
    }
}

/// How a target size follows from an image's size.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetSize {
    Exact(Size),
    /// The shorter side becomes this long; the aspect ratio is kept.
    ShortestEdge(u32),
    /// The same, but the longer side is at most `longest`.
    ShortestWithin {
        shortest: u32,
        longest: u32,
    },
    /// The largest size within this box that keeps the aspect ratio.
    FitWithin(Size),
    /// Multiples of `factor` whose product lies in a range (Qwen-VL's `smart_resize`).
    PixelRange(PixelRange),
    /// The largest multiples of a pooled patch that fit a budget of patches (Gemma 4).
    PatchBudget {
        patch: u32,
        pool: u32,
        tokens: u32,
    },
    /// At most `longest`, rounded up to whole patches (Pixtral).
    PatchesWithin {
        longest: Size,
        patch: Size,
    },
    /// The longer side becomes this long, the other becomes even (Idefics 3).
    LongestEdge(u32),
    /// Both sides rounded up to multiples of a tile (Idefics 3).
    TileMultiple(u32),
}

#[derive(Debug, Clone, PartialEq)]
pub struct PixelRange {
    pub factor: u32,
    pub min_pixels: u64,
    pub max_pixels: u64,
    /// If set, the range counts the pixels of all frames, which are rounded to multiples of this.
    pub temporal: Option<u32>,
}

/// Idefics 3 and SmolVLM resize no side beyond this.
const IDEFICS_MAX_SIDE: u32 = 4096;

impl TargetSize {
    /// The target for an image, or for each of `frames` frames of a video.
    pub fn target(&self, size: Size, frames: u32) -> Result<Size, MediaError> {
        let (width, height) = (size.width, size.height);
        let target = match self {
            TargetSize::Exact(target) => *target,
            TargetSize::ShortestEdge(edge) => {
                let long = |long: u32, short: u32| {
                    (u64::from(*edge) * u64::from(long) / u64::from(short)) as u32
                };
                if width <= height {
                    Size::new(*edge, long(height, width))
                } else {
                    Size::new(long(width, height), *edge)
                }
            }
            TargetSize::ShortestWithin { shortest, longest } => {
                shortest_within(size, *shortest, *longest)
            }
            TargetSize::FitWithin(within) => {
                let scale = (f64::from(within.height) / f64::from(height))
                    .min(f64::from(within.width) / f64::from(width));
                Size::new(
                    (f64::from(width) * scale) as u32,
                    (f64::from(height) * scale) as u32,
                )
            }
            TargetSize::PixelRange(range) => range.target(size, frames)?,
            TargetSize::PatchBudget {
                patch,
                pool,
                tokens,
            } => patch_budget(size, *patch, *pool, *tokens)?,
            TargetSize::PatchesWithin { longest, patch } => patches_within(size, *longest, *patch),
            TargetSize::LongestEdge(edge) => longest_edge(size, *edge),
            TargetSize::TileMultiple(tile) => tile_multiple(size, *tile),
        };
        if target.width == 0 || target.height == 0 {
            return Err(size.unusable("one side would become 0"));
        }
        Ok(target)
    }
}

fn shortest_within(size: Size, shortest: u32, longest: u32) -> Size {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let (low, high) = (width.min(height), width.max(height));
    let mut edge = f64::from(shortest);
    let mut raw = edge;
    if high / low * edge > f64::from(longest) {
        raw = f64::from(longest) * low / high;
        edge = raw.round_ties_even();
    }
    let edge_pixels = edge as u32;
    if size.width.min(size.height) == edge_pixels {
        size
    } else if size.width < size.height {
        Size::new(edge_pixels, (raw * height / width) as u32)
    } else {
        Size::new((raw * width / height) as u32, edge_pixels)
    }
}

impl PixelRange {
    fn target(&self, size: Size, frames: u32) -> Result<Size, MediaError> {
        let factor = f64::from(self.factor);
        let (mut width, mut height) = (f64::from(size.width), f64::from(size.height));
        if self.temporal.is_some() && (width < factor || height < factor) {
            let scale = (factor / height).max(factor / width);
            height = (height * scale).trunc();
            width = (width * scale).trunc();
        }
        if width.max(height) / width.min(height) > 200.0 {
            return Err(size.unusable("its sides differ by more than 200 times"));
        }
        let (frames, rounded_frames) = match self.temporal {
            Some(step) => {
                let frames = f64::from(frames);
                let step = f64::from(step);
                (frames, (frames / step).round_ties_even() * step)
            }
            None => (1.0, 1.0),
        };
        let (min, max) = (self.min_pixels as f64, self.max_pixels as f64);
        let round = |side: f64| (side / factor).round_ties_even() * factor;
        let mut target = (round(width), round(height));
        let total = rounded_frames * target.0 * target.1;
        if total > max {
            let shrink = (frames * height * width / max).sqrt();
            let fit = |side: f64| ((side / shrink / factor).floor() * factor).max(factor);
            target = (fit(width), fit(height));
        } else if total < min {
            let grow = (min / (frames * height * width)).sqrt();
            let fill = |side: f64| (side * grow / factor).ceil() * factor;
            target = (fill(width), fill(height));
        }
        Ok(Size::new(target.0 as u32, target.1 as u32))
    }
}

fn patch_budget(size: Size, patch: u32, pool: u32, tokens: u32) -> Result<Size, MediaError> {
    let unit = u64::from(pool) * u64::from(patch);
    let budget = u64::from(tokens) * unit * unit;
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let scale = (budget as f64 / (width * height)).sqrt();
    let units = |side: f64| (scale * side / unit as f64).floor() as u64;
    let (mut columns, mut rows) = (units(width), units(height));
    let along = |long: u32, short: u32| u64::from(long / short).min(u64::from(tokens));
    match (columns, rows) {
        (0, 0) => return Err(size.unusable("it would become empty")),
        (_, 0) => (columns, rows) = (along(size.width, size.height), 1),
        (0, _) => (columns, rows) = (1, along(size.height, size.width)),
        _ => {}
    }
    if columns * rows > u64::from(tokens) {
        return Err(size.unusable("it does not fit the budget of patches"));
    }
    Ok(Size::new((columns * unit) as u32, (rows * unit) as u32))
}

fn patches_within(size: Size, longest: Size, patch: Size) -> Size {
    let (mut width, mut height) = (size.width, size.height);
    let ratio = (f64::from(height) / f64::from(longest.height))
        .max(f64::from(width) / f64::from(longest.width));
    if ratio > 1.0 {
        height = (f64::from(height) / ratio).floor() as u32;
        width = (f64::from(width) / ratio).floor() as u32;
    }
    // A side that rounds to 0 has no patch; the caller refuses it.
    Size::new(
        width.div_ceil(patch.width) * patch.width,
        height.div_ceil(patch.height) * patch.height,
    )
}

fn longest_edge(size: Size, edge: u32) -> Size {
    let aspect = f64::from(size.width) / f64::from(size.height);
    let even = |side: f64| {
        let side = side as u32;
        side + side % 2
    };
    let target = if size.width >= size.height {
        Size::new(edge, even(f64::from(edge) / aspect))
    } else {
        Size::new(even(f64::from(edge) * aspect), edge)
    };
    let target = Size::new(target.width.max(1), target.height.max(1));
    let aspect = f64::from(target.width) / f64::from(target.height);
    let limit = IDEFICS_MAX_SIDE;
    if target.width >= target.height && target.width > limit {
        Size::new(limit, ((f64::from(limit) / aspect) as u32).max(1))
    } else if target.height > target.width && target.height > limit {
        Size::new(((f64::from(limit) * aspect) as u32).max(1), limit)
    } else {
        target
    }
}

fn tile_multiple(size: Size, tile: u32) -> Size {
    let aspect = f64::from(size.width) / f64::from(size.height);
    let up = |side: u32| side.div_ceil(tile) * tile;
    if size.width >= size.height {
        let width = up(size.width);
        Size::new(width, up((f64::from(width) / aspect) as u32))
    } else {
        let height = up(size.height);
        Size::new(up((f64::from(height) * aspect) as u32), height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(rule: TargetSize, width: u32, height: u32) -> Option<(u32, u32)> {
        let size = rule.target(Size::new(width, height), 2).ok()?;
        Some((size.width, size.height))
    }

    #[test]
    fn sizes_agree_with_transformers() {
        let qwen = PixelRange {
            factor: 28,
            min_pixels: 3136,
            max_pixels: 1_003_520,
            temporal: None,
        };
        let glm = PixelRange {
            factor: 28,
            min_pixels: 12_544,
            max_pixels: 9_633_792,
            temporal: Some(2),
        };
        let gemma = TargetSize::PatchBudget {
            patch: 16,
            pool: 3,
            tokens: 280,
        };
        let pixtral = TargetSize::PatchesWithin {
            longest: Size::square(1024),
            patch: Size::square(16),
        };
        // (rule, width, height, target), computed with transformers 5.22.2.
        let cases = [
            (
                TargetSize::PixelRange(qwen.clone()),
                640,
                480,
                Some((644, 476)),
            ),
            (
                TargetSize::PixelRange(qwen.clone()),
                4000,
                3000,
                Some((1148, 840)),
            ),
            (TargetSize::PixelRange(qwen.clone()), 1, 1, Some((56, 56))),
            (TargetSize::PixelRange(qwen), 1, 300, None),
            (
                TargetSize::PixelRange(glm.clone()),
                640,
                480,
                Some((644, 476)),
            ),
            (TargetSize::PixelRange(glm), 10, 20, Some((56, 112))),
            (gemma.clone(), 1000, 1000, Some((768, 768))),
            (gemma.clone(), 10_000, 10, Some((13_440, 48))),
            (pixtral.clone(), 2000, 1000, Some((1024, 512))),
            (pixtral, 17, 1, Some((32, 16))),
            (TargetSize::ShortestEdge(224), 640, 480, Some((298, 224))),
            (
                TargetSize::LongestEdge(2048),
                3000,
                1999,
                Some((2048, 1364)),
            ),
            (TargetSize::LongestEdge(5000), 3, 3, Some((4096, 4096))),
            (
                TargetSize::TileMultiple(512),
                2048,
                1364,
                Some((2048, 1536)),
            ),
            (
                TargetSize::ShortestWithin {
                    shortest: 224,
                    longest: 400,
                },
                1000,
                100,
                Some((400, 40)),
            ),
        ];
        for (rule, width, height, expected) in cases {
            let name = format!("{rule:?} of {width}x{height}");
            assert_eq!(target(rule, width, height), expected, "{name}");
        }
    }
}
