//! How processors cut an image into tiles.

use crate::error::MediaError;
use crate::output::ViewRole;
use crate::plan::{Base, Plan, Step};
use crate::size::{PixelRange, Size, TargetSize};

/// How an image becomes views.
#[derive(Debug, Clone, PartialEq)]
pub enum Geometry {
    /// One view. In this order: pad to a square, resize, crop around the center.
    Whole {
        square: Option<[u8; 3]>,
        resize: Vec<TargetSize>,
        crop: Option<Size>,
    },
    /// LLaVA-OneVision: the whole image, then tiles of the best of these resolutions. With
    /// several images in a prompt each is padded to a square instead.
    AnyResolution {
        resolutions: Vec<Size>,
        base: Size,
        background: [u8; 3],
    },
    /// Idefics 3, SmolVLM: resized to multiples of a tile, cut, then the whole in one tile.
    Split {
        longest: Option<TargetSize>,
        tile: u32,
        split: bool,
    },
    /// InternVL: the grid with the closest aspect ratio, then the whole in one tile.
    ClosestGrid {
        min_tiles: u32,
        max_tiles: u32,
        tile: Size,
    },
    /// Llama 4: the grid that fits best without distortion, padded, then the whole in one tile.
    Canvas {
        max_tiles: u32,
        tile: u32,
        resize_to_max: bool,
    },
    /// LFM2-VL: small images whole, large ones in the closest grid and as a thumbnail.
    Budget(Budget),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    pub patch: u32,
    pub downsample: u32,
    pub min_tokens: u32,
    pub max_tokens: u32,
    pub min_tiles: u32,
    pub max_tiles: u32,
    pub tile: u32,
    pub thumbnail: bool,
    pub tolerance: f64,
}

impl Geometry {
    /// The plan for an image, one of `images` in its prompt, or for each of `frames` frames.
    pub fn plan(&self, size: Size, images: usize, frames: u32) -> Result<Plan, MediaError> {
        match self {
            Geometry::Whole {
                square,
                resize,
                crop,
            } => {
                let mut steps = Vec::new();
                let mut current = size;
                if let Some(fill) = square {
                    current = push_square(&mut steps, current, *fill);
                }
                for target in resize {
                    current = target.target(current, frames)?;
                    steps.push(Step::Resize(current));
                }
                if let Some(crop) = crop {
                    steps.push(center_crop(current, *crop));
                }
                Ok(Plan::whole(size, steps))
            }
            Geometry::AnyResolution {
                base, background, ..
            } if images > 1 => {
                let mut steps = Vec::new();
                push_square(&mut steps, size, *background);
                steps.push(Step::Resize(*base));
                Ok(Plan::whole(size, steps))
            }
            Geometry::AnyResolution {
                resolutions, base, ..
            } => Ok(any_resolution(size, resolutions, *base)),
            Geometry::Split {
                longest,
                tile,
                split,
            } => split_plan(size, longest.as_ref(), *tile, *split),
            Geometry::ClosestGrid {
                min_tiles,
                max_tiles,
                tile,
            } => {
                let grids = grids_by_area(*min_tiles, *max_tiles);
                let (columns, rows) = closest_grid(size, &grids, *tile);
                let mut plan = Plan::empty();
                let target = Size::new(columns * tile.width, rows * tile.height);
                let canvas = plan.add_canvas(Base::Image, vec![Step::Resize(target)]);
                plan.add_tiles(canvas, *tile, rows, columns);
                if columns * rows > 1 {
                    let thumbnail = vec![Step::Resize(*tile)];
                    plan.add_view(size, Base::Image, thumbnail, ViewRole::Global);
                }
                Ok(plan)
            }
            Geometry::Canvas {
                max_tiles,
                tile,
                resize_to_max,
            } => Ok(canvas_plan(size, *max_tiles, *tile, *resize_to_max)),
            Geometry::Budget(budget) => budget.plan(size),
        }
    }
}

fn push_square(steps: &mut Vec<Step>, size: Size, fill: [u8; 3]) -> Size {
    if size.width == size.height {
        return size;
    }
    let side = size.width.max(size.height);
    steps.push(Step::Place {
        left: i64::from((side - size.width) / 2),
        top: i64::from((side - size.height) / 2),
        size: Size::square(side),
        fill,
    });
    Size::square(side)
}

/// A smaller image is padded with black, with the odd pixel on the right and at the bottom.
fn center_crop(size: Size, crop: Size) -> Step {
    let offset = |side: u32, crop: u32| {
        if crop > side {
            i64::from((crop - side) / 2)
        } else {
            -i64::from((side - crop) / 2)
        }
    };
    Step::Place {
        left: offset(size.width, crop.width),
        top: offset(size.height, crop.height),
        size: crop,
        fill: [0; 3],
    }
}

fn any_resolution(size: Size, resolutions: &[Size], base: Size) -> Plan {
    let best = best_resolution(size, resolutions);
    let mut plan = Plan::empty();
    plan.add_view(
        size,
        Base::Image,
        vec![Step::Resize(base)],
        ViewRole::Global,
    );
    let fitted = fit_rounding_up(size, best);
    let place = Step::Place {
        left: i64::from((best.width - fitted.width) / 2),
        top: i64::from((best.height - fitted.height) / 2),
        size: best,
        fill: [0; 3],
    };
    let canvas = plan.add_canvas(Base::Image, vec![Step::Resize(fitted), place]);
    plan.add_tiles(
        canvas,
        base,
        best.height / base.height,
        best.width / base.width,
    );
    plan
}

/// The resolution that shows most of the image's pixels, and wastes least.
pub(crate) fn best_resolution(size: Size, resolutions: &[Size]) -> Size {
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let mut best = (resolutions[0], 0, u64::MAX);
    for &resolution in resolutions {
        let scale =
            (f64::from(resolution.width) / width).min(f64::from(resolution.height) / height);
        let shown = (width * scale) as u64 * (height * scale) as u64;
        let effective = shown.min(u64::from(size.width) * u64::from(size.height));
        let area = u64::from(resolution.width) * u64::from(resolution.height);
        let wasted = area - effective.min(area);
        if effective > best.1 || (effective == best.1 && wasted < best.2) {
            best = (resolution, effective, wasted);
        }
    }
    best.0
}

fn fit_rounding_up(size: Size, target: Size) -> Size {
    let scale_width = f64::from(target.width) / f64::from(size.width);
    let scale_height = f64::from(target.height) / f64::from(size.height);
    if scale_width < scale_height {
        let height = (f64::from(size.height) * scale_width).ceil() as u32;
        Size::new(target.width, height.min(target.height))
    } else {
        let width = (f64::from(size.width) * scale_height).ceil() as u32;
        Size::new(width.min(target.width), target.height)
    }
}

fn split_plan(
    size: Size,
    longest: Option<&TargetSize>,
    tile: u32,
    split: bool,
) -> Result<Plan, MediaError> {
    let mut steps = Vec::new();
    let mut current = size;
    if let Some(longest) = longest {
        current = longest.target(current, 1)?;
        steps.push(Step::Resize(current));
    }
    if !split {
        steps.push(Step::Resize(Size::square(tile)));
        return Ok(Plan::whole(size, steps));
    }
    let multiple = TargetSize::TileMultiple(tile).target(current, 1)?;
    steps.push(Step::Resize(multiple));
    if multiple == Size::square(tile) {
        return Ok(Plan::whole(size, steps));
    }
    let mut plan = Plan::empty();
    let canvas = plan.add_canvas(Base::Image, steps);
    plan.add_tiles(
        canvas,
        Size::square(tile),
        multiple.height / tile,
        multiple.width / tile,
    );
    plan.add_view(
        size,
        Base::Canvas(canvas),
        vec![Step::Resize(Size::square(tile))],
        ViewRole::Global,
    );
    Ok(plan)
}

/// All (columns, rows) whose product is in the range, by product, then by columns.
fn grids_by_area(min_tiles: u32, max_tiles: u32) -> Vec<(u32, u32)> {
    let mut grids: Vec<(u32, u32)> = (1..=max_tiles)
        .flat_map(|columns| (1..=max_tiles / columns).map(move |rows| (columns, rows)))
        .filter(|(columns, rows)| columns * rows >= min_tiles)
        .collect();
    grids.sort_by_key(|(columns, rows)| columns * rows);
    grids
}

/// The grid whose aspect ratio is closest. Of equal ones the larger is used if the image has
/// more than half of its pixels.
fn closest_grid(size: Size, grids: &[(u32, u32)], tile: Size) -> (u32, u32) {
    let aspect = f64::from(size.width) / f64::from(size.height);
    let area = f64::from(size.width) * f64::from(size.height);
    let mut best = (1, 1);
    let mut smallest = f64::INFINITY;
    for &(columns, rows) in grids {
        let difference = (aspect - f64::from(columns) / f64::from(rows)).abs();
        if difference < smallest {
            smallest = difference;
            best = (columns, rows);
        } else if difference == smallest {
            let tiles = f64::from(columns) * f64::from(rows);
            if area > 0.5 * f64::from(tile.width) * f64::from(tile.height) * tiles {
                best = (columns, rows);
            }
        }
    }
    best
}

fn canvas_plan(size: Size, max_tiles: u32, tile: u32, resize_to_max: bool) -> Plan {
    let canvas_size = best_canvas(size, max_tiles, tile, resize_to_max);
    let bound = if resize_to_max {
        canvas_size
    } else {
        // Nothing is enlarged beyond one tile.
        Size::new(
            size.width.max(tile).min(canvas_size.width),
            size.height.max(tile).min(canvas_size.height),
        )
    };
    let scale_width = f64::from(bound.width) / f64::from(size.width);
    let scale_height = f64::from(bound.height) / f64::from(size.height);
    let fitted = if scale_width < scale_height {
        let height = (f64::from(size.height) * scale_width).floor() as u32;
        Size::new(bound.width, height.clamp(1, bound.height))
    } else {
        let width = (f64::from(size.width) * scale_height).floor() as u32;
        Size::new(width.clamp(1, bound.width), bound.height)
    };
    let place = Step::Place {
        left: 0,
        top: 0,
        size: canvas_size,
        fill: [0; 3],
    };
    let (rows, columns) = (canvas_size.height / tile, canvas_size.width / tile);
    if rows * columns == 1 {
        let mut plan = Plan::whole(size, vec![Step::Resize(fitted), place]);
        (plan.rows, plan.columns) = (1, 1);
        return plan;
    }
    let mut plan = Plan::empty();
    let canvas = plan.add_canvas(Base::Image, vec![Step::Resize(fitted), place]);
    plan.add_tiles(canvas, Size::square(tile), rows, columns);
    let global = vec![Step::Resize(Size::square(tile))];
    plan.add_view(size, Base::Image, global, ViewRole::Global);
    plan
}

/// Llama 4 compares scales in single precision, as its tensors do.
fn best_canvas(size: Size, max_tiles: u32, tile: u32, resize_to_max: bool) -> Size {
    let canvases = canvases_by_ratio(max_tiles)
        .into_iter()
        .map(|(rows, columns)| Size::new(columns * tile, rows * tile));
    let scaled: Vec<(Size, f32)> = canvases
        .map(|canvas| {
            let width = canvas.width as f32 / size.width as f32;
            let height = canvas.height as f32 / size.height as f32;
            (canvas, width.min(height))
        })
        .collect();
    let scales = || scaled.iter().map(|&(_, scale)| scale);
    let enlarging = scales().filter(|&scale| scale >= 1.0);
    let chosen = if resize_to_max {
        enlarging.reduce(f32::max)
    } else {
        enlarging.reduce(f32::min)
    };
    let chosen = chosen.unwrap_or_else(|| scales().fold(0.0, f32::max));
    let area = |canvas: &Size| u64::from(canvas.width) * u64::from(canvas.height);
    scaled
        .iter()
        .filter(|&&(_, scale)| scale == chosen)
        .map(|&(canvas, _)| canvas)
        .min_by_key(area)
        .unwrap_or(Size::square(tile))
}

/// All (rows, columns) with at most `max_tiles` tiles, in the reference's order: by tiles
/// descending, but grouped by aspect ratio. The order decides between canvases of equal area.
fn canvases_by_ratio(max_tiles: u32) -> Vec<(u32, u32)> {
    let mut ratios: Vec<(f64, Vec<(u32, u32)>)> = Vec::new();
    for tiles in (1..=max_tiles).rev() {
        for rows in (1..=tiles).filter(|rows| tiles.is_multiple_of(*rows)) {
            let columns = tiles / rows;
            let ratio = f64::from(rows) / f64::from(columns);
            match ratios.iter_mut().find(|(known, _)| *known == ratio) {
                Some((_, canvases)) => canvases.push((rows, columns)),
                None => ratios.push((ratio, vec![(rows, columns)])),
            }
        }
    }
    ratios
        .into_iter()
        .flat_map(|(_, canvases)| canvases)
        .collect()
}

impl Budget {
    fn plan(&self, size: Size) -> Result<Plan, MediaError> {
        let unit = u64::from(self.patch) * u64::from(self.downsample);
        let pixels = |tokens: u32| u64::from(tokens) * unit * unit;
        let rounded = |side: u32, least: u64| {
            let units = (f64::from(side) / unit as f64).round_ties_even() as u64;
            (units * unit).max(least)
        };
        let resized = PixelRange {
            factor: unit as u32,
            min_pixels: pixels(self.min_tokens),
            max_pixels: pixels(self.max_tokens),
            temporal: None,
        };
        let small = resized_within(&resized, size);
        let (width, height) = (
            rounded(size.width, self.patch.into()),
            rounded(size.height, self.patch.into()),
        );
        let large = (width * height) as f64 > pixels(self.max_tokens) as f64 * self.tolerance;
        let splits = !(self.min_tiles == 1 && self.max_tiles == 1);
        if !(large && splits) {
            return Ok(Plan::whole(size, vec![Step::Resize(small)]));
        }
        let grids = grids_by_area(self.min_tiles, self.max_tiles);
        let tile = Size::square(self.tile);
        let (columns, rows) = closest_grid(size, &grids, tile);
        let mut plan = Plan::empty();
        let target = Size::new(columns * self.tile, rows * self.tile);
        let canvas = plan.add_canvas(Base::Image, vec![Step::Resize(target)]);
        plan.add_tiles(canvas, tile, rows, columns);
        if self.thumbnail && columns * rows != 1 {
            let steps = vec![Step::Resize(small)];
            plan.add_view(size, Base::Image, steps, ViewRole::Global);
        }
        Ok(plan)
    }
}

/// `smart_resize` of LFM2-VL: Qwen-VL's, but any aspect ratio is accepted, and no side is below
/// the factor.
fn resized_within(range: &PixelRange, size: Size) -> Size {
    let factor = f64::from(range.factor);
    let (width, height) = (f64::from(size.width), f64::from(size.height));
    let round = |side: f64| ((side / factor).round_ties_even() * factor).max(factor);
    let mut target = (round(width), round(height));
    let (min, max) = (range.min_pixels as f64, range.max_pixels as f64);
    if target.0 * target.1 > max {
        let shrink = (width * height / max).sqrt();
        let fit = |side: f64| ((side / shrink / factor).floor() * factor).max(factor);
        target = (fit(width), fit(height));
    } else if target.0 * target.1 < min {
        let grow = (min / (width * height)).sqrt();
        let fill = |side: f64| (side * grow / factor).ceil() * factor;
        target = (fill(width), fill(height));
    }
    Size::new(target.0 as u32, target.1 as u32)
}
