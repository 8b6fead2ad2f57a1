//! Carries out a plan: pixels to values.

use std::borrow::Cow;

use crate::output::{Layout, View, ViewRole};
use crate::plan::{Base, Plan, Step};
use crate::raster::Raster;
use crate::resample::{Arithmetic, Filter, resize};
use crate::rules::ValueRules;

/// How pixels are resized and written.
#[derive(Debug, Clone, PartialEq)]
pub struct PixelRules {
    pub filter: Filter,
    pub arithmetic: Arithmetic,
    pub values: ValueRules,
    pub layout: Layout,
}

/// The value of each channel's 256 levels.
pub struct Levels([[f32; 256]; 3]);

impl Levels {
    pub fn new(rules: &ValueRules) -> Self {
        Self(std::array::from_fn(|channel| {
            std::array::from_fn(|level| rules.value(channel, level as u8))
        }))
    }
}

impl PixelRules {
    /// The views of an image and their values.
    pub fn image(&self, raster: &Raster, plan: &Plan) -> (Vec<View>, Vec<f32>) {
        let levels = Levels::new(&self.values);
        let mut values = Vec::new();
        let mut views = Vec::with_capacity(plan.cuts.len());
        for (cut, raster) in plan.cuts.iter().zip(self.views(raster, plan)) {
            views.push(self.write(&levels, cut.role, &[raster], &mut values));
        }
        (views, values)
    }

    /// The views of a video's resized frames, of which there is at least one, and their values.
    pub fn frames(&self, frames: &[Raster]) -> (Vec<View>, Vec<f32>) {
        let levels = Levels::new(&self.values);
        let mut values = Vec::new();
        let views = if let Layout::MergedPatches { .. } = self.layout {
            vec![self.write(&levels, ViewRole::Frames, frames, &mut values)]
        } else {
            let view = |frame| {
                let frame = std::slice::from_ref(frame);
                self.write(&levels, ViewRole::Frame, frame, &mut values)
            };
            frames.iter().map(view).collect()
        };
        (views, values)
    }

    /// The views of an image, still as pixels.
    pub fn views(&self, raster: &Raster, plan: &Plan) -> Vec<Raster> {
        let mut canvases: Vec<Cow<'_, Raster>> = Vec::with_capacity(plan.canvases.len());
        for canvas in &plan.canvases {
            let mut current = match canvas.base {
                Base::Image => Cow::Borrowed(raster),
                Base::Canvas(index) => canvases[index].clone(),
            };
            for step in &canvas.steps {
                current = match step {
                    Step::Resize(size)
                        if (size.width, size.height) == (current.width(), current.height()) =>
                    {
                        current
                    }
                    Step::Resize(size) => Cow::Owned(resize(
                        &current,
                        size.width,
                        size.height,
                        self.filter,
                        self.arithmetic,
                    )),
                    Step::Place {
                        left,
                        top,
                        size,
                        fill,
                    } => Cow::Owned(current.place(*left, *top, size.width, size.height, *fill)),
                };
            }
            canvases.push(current);
        }
        plan.cuts
            .iter()
            .map(|cut| {
                let canvas = &canvases[cut.canvas];
                canvas.crop(
                    cut.left.into(),
                    cut.top.into(),
                    cut.size.width,
                    cut.size.height,
                )
            })
            .collect()
    }

    /// Appends a view of one image or of frames of equal size.
    fn write(
        &self,
        levels: &Levels,
        role: ViewRole,
        frames: &[Raster],
        values: &mut Vec<f32>,
    ) -> View {
        let offset = values.len();
        let (width, height) = (frames[0].width(), frames[0].height());
        let size = crate::size::Size::new(width, height);
        let count = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        values.reserve_exact(self.layout.values(size, count));
        match self.layout {
            Layout::Planar => write_planar(levels, &frames[0], values),
            Layout::Patches { patch } => write_patches(levels, &frames[0], patch, values),
            Layout::MergedPatches {
                patch,
                merge,
                temporal,
                repeat,
            } => write_merged(levels, frames, [patch, merge, temporal / repeat], values),
        }
        View {
            role,
            width,
            height,
            grid: self.layout.grid(size, count),
            offset,
            values: values.len() - offset,
        }
    }
}

fn write_planar(levels: &Levels, raster: &Raster, values: &mut Vec<f32>) {
    for (channel, levels) in levels.0.iter().enumerate() {
        let pixels = raster.rgb().iter().skip(channel).step_by(3);
        values.extend(pixels.map(|&level| levels[level as usize]));
    }
}

fn write_patches(levels: &Levels, raster: &Raster, patch: u32, values: &mut Vec<f32>) {
    let patch = patch as usize;
    let stride = raster.width() as usize * 3;
    let (rows, columns) = (
        raster.height() as usize / patch,
        raster.width() as usize / patch,
    );
    for row in 0..rows {
        for column in 0..columns {
            for line in 0..patch {
                let start = (row * patch + line) * stride + column * patch * 3;
                for pixel in raster.rgb()[start..start + patch * 3].chunks_exact(3) {
                    let channels = pixel.iter().zip(&levels.0);
                    values.extend(channels.map(|(&level, levels)| levels[level as usize]));
                }
            }
        }
    }
}

fn write_merged(
    levels: &Levels,
    frames: &[Raster],
    [patch, merge, temporal]: [u32; 3],
    values: &mut Vec<f32>,
) {
    let [patch, merge, temporal] = [patch as usize, merge as usize, temporal as usize];
    let stride = frames[0].width() as usize * 3;
    let rows = frames[0].height() as usize / patch;
    let columns = frames[0].width() as usize / patch;
    let last = frames.len() - 1;
    for first in (0..frames.len()).step_by(temporal) {
        for (square_row, square_column) in squares(rows, columns, merge) {
            for (row, column) in squares(merge, merge, 1) {
                let top = (square_row * merge + row) * patch;
                let left = (square_column * merge + column) * patch;
                for (channel, levels) in levels.0.iter().enumerate() {
                    for time in first..first + temporal {
                        let frame = &frames[time.min(last)];
                        for line in 0..patch {
                            let start = (top + line) * stride + left * 3 + channel;
                            let pixels = frame.rgb()[start..].iter().step_by(3).take(patch);
                            values.extend(pixels.map(|&level| levels[level as usize]));
                        }
                    }
                }
            }
        }
    }
}

/// (row, column) of the squares of this side, by rows.
fn squares(rows: usize, columns: usize, side: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows / side).flat_map(move |row| (0..columns / side).map(move |column| (row, column)))
}
