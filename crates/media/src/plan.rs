//! The geometry of preprocessing: which canvases are made from an image, and which views are cut
//! from them. A plan follows from the image's size alone, so that it also prices an image that
//! has not been decoded.

use crate::error::{MediaError, Quantity};
use crate::limits::{Limits, check};
use crate::output::ViewRole;
use crate::size::Size;

/// What a canvas starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    Image,
    Canvas(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Resize(Size),
    /// Puts the image on a larger or smaller canvas, with its corner at (`left`, `top`).
    Place {
        left: i64,
        top: i64,
        size: Size,
        fill: [u8; 3],
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canvas {
    pub base: Base,
    pub steps: Vec<Step>,
}

/// A view and where it is cut from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    pub canvas: usize,
    pub left: u32,
    pub top: u32,
    pub size: Size,
    pub role: ViewRole,
}

/// Canvases in the order they are made, views in the order the tower gets them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub canvases: Vec<Canvas>,
    pub cuts: Vec<Cut>,
    /// Rows and columns of tiles; zero if the image is not tiled.
    pub rows: u32,
    pub columns: u32,
}

impl Plan {
    /// The whole image as one view.
    pub(crate) fn whole(image: Size, steps: Vec<Step>) -> Self {
        let mut plan = Self {
            canvases: Vec::new(),
            cuts: Vec::new(),
            rows: 0,
            columns: 0,
        };
        plan.add_view(image, Base::Image, steps, ViewRole::Whole);
        plan
    }

    pub(crate) fn empty() -> Self {
        Self {
            canvases: Vec::new(),
            cuts: Vec::new(),
            rows: 0,
            columns: 0,
        }
    }

    /// Adds a canvas; returns its index.
    pub(crate) fn add_canvas(&mut self, base: Base, steps: Vec<Step>) -> usize {
        self.canvases.push(Canvas { base, steps });
        self.canvases.len() - 1
    }

    /// Adds a canvas that is one view.
    pub(crate) fn add_view(
        &mut self,
        image: Size,
        base: Base,
        steps: Vec<Step>,
        role: ViewRole,
    ) -> usize {
        let canvas = self.add_canvas(base, steps);
        self.cuts.push(Cut {
            canvas,
            left: 0,
            top: 0,
            size: self.canvas_size(canvas, image),
            role,
        });
        canvas
    }

    /// Cuts a canvas into rows of tiles.
    pub(crate) fn add_tiles(&mut self, canvas: usize, tile: Size, rows: u32, columns: u32) {
        (self.rows, self.columns) = (rows, columns);
        for row in 0..rows {
            for column in 0..columns {
                self.cuts.push(Cut {
                    canvas,
                    left: column * tile.width,
                    top: row * tile.height,
                    size: tile,
                    role: ViewRole::Tile { row, column },
                });
            }
        }
    }

    pub(crate) fn canvas_size(&self, index: usize, image: Size) -> Size {
        let canvas = &self.canvases[index];
        let base = match canvas.base {
            Base::Image => image,
            Base::Canvas(index) => self.canvas_size(index, image),
        };
        canvas.steps.iter().fold(base, |_, step| match step {
            Step::Resize(size) | Step::Place { size, .. } => *size,
        })
    }

    /// Checks what execution will allocate for each frame, before it does.
    pub(crate) fn check(
        &self,
        image: Size,
        frames: u64,
        limits: &Limits,
    ) -> Result<(), MediaError> {
        let area = |width: u32, height: u32| u64::from(width) * u64::from(height);
        for canvas in &self.canvases {
            let mut size = match canvas.base {
                Base::Image => image,
                Base::Canvas(index) => self.canvas_size(index, image),
            };
            for step in &canvas.steps {
                let (Step::Resize(next) | Step::Place { size: next, .. }) = step;
                // A resize first changes the width, then the height.
                let pixels = area(next.width, size.height).max(area(next.width, next.height));
                check(Quantity::Pixels, pixels, limits.pixels)?;
                size = *next;
            }
        }
        let cuts = self.cuts.iter();
        let pixels: u64 = cuts.map(|cut| area(cut.size.width, cut.size.height)).sum();
        let values = pixels.saturating_mul(3).saturating_mul(frames);
        check(Quantity::OutputValues, values, limits.output_values)
    }
}
