//! What preprocessing returns.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::expansion::Expansion;
use crate::size::Size;

/// What a view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewRole {
    /// The whole image, which has no other view.
    Whole,
    /// The whole image, beside its tiles.
    Global,
    Tile {
        row: u32,
        column: u32,
    },
    /// A frame of a video.
    Frame,
    /// All frames of a video, in patches that span several frames.
    Frames,
}

/// The order of pixel values within a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[3, height, width]`.
    Planar,
    /// `[patches, patch × patch × 3]`: patches by rows; within a patch rows, columns, channels.
    Patches { patch: u32 },
    /// `[patches, 3 × (temporal / repeat) × patch × patch]`: patches by time, then by squares of
    /// `merge` × `merge` in rows, then within a square; within a patch channels, frames, rows,
    /// columns. An odd last frame is stored twice. A patch of a still image spans `temporal`
    /// equal frames, of which one is stored: `repeat` equals `temporal` then, otherwise 1.
    MergedPatches {
        patch: u32,
        merge: u32,
        temporal: u32,
        repeat: u32,
    },
}

impl Layout {
    /// Patches along time, height and width; for planar pixels `[frames, height, width]`.
    pub fn grid(self, size: Size, frames: u32) -> [u32; 3] {
        match self {
            Layout::Planar => [frames, size.height, size.width],
            Layout::Patches { patch } => [frames, size.height / patch, size.width / patch],
            Layout::MergedPatches {
                patch, temporal, ..
            } => [
                frames.div_ceil(temporal),
                size.height / patch,
                size.width / patch,
            ],
        }
    }

    /// Values of a view.
    pub fn values(self, size: Size, frames: u32) -> usize {
        let [time, rows, columns] = self.grid(size, frames).map(|side| side as usize);
        let each = match self {
            Layout::Planar => 3,
            Layout::Patches { patch } => 3 * (patch * patch) as usize,
            Layout::MergedPatches {
                patch,
                temporal,
                repeat,
                ..
            } => 3 * (temporal / repeat * patch * patch) as usize,
        };
        time * rows * columns * each
    }
}

/// A part of the pixel values: an image, a tile, a frame, or all frames of a video.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    pub role: ViewRole,
    /// Pixels before they are flattened.
    pub width: u32,
    pub height: u32,
    /// See [`Layout::grid`]: (t, h, w) for patches.
    pub grid: [u32; 3],
    /// Where the view's values start in [`MediaPixels::values`], and how many there are.
    pub offset: usize,
    pub values: usize,
}

impl View {
    /// The column and row of each patch, as Gemma 4's towers take them.
    pub fn patch_positions(&self) -> impl Iterator<Item = [u32; 2]> + '_ {
        let [_, rows, columns] = self.grid;
        (0..rows).flat_map(move |row| (0..columns).map(move |column| [column, row]))
    }
}

/// One preprocessed image or video. Nothing is padded: batch-wide padding and masks of the
/// reference follow from the views' sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct MediaPixels {
    pub values: Vec<f32>,
    pub layout: Layout,
    /// In the order in which the tower gets them, and their features enter the prompt.
    pub views: Vec<View>,
    /// The size of the image or of each frame before preprocessing.
    pub width: u32,
    pub height: u32,
    /// Rows and columns of tiles; zero if the image is not tiled.
    pub tile_rows: u32,
    pub tile_columns: u32,
    /// What replaces the item's marker in a prompt.
    pub expansion: Expansion,
    /// Seconds between the patches along time, if the video's frame rate is known.
    pub seconds_per_grid: Option<f64>,
    /// SHA-256 of the views and their values: equal hashes mean equal input to the tower.
    pub hash: [u8; 32],
}

impl MediaPixels {
    /// How many positions of the prompt take features of this item.
    pub fn positions(&self) -> usize {
        self.expansion.positions()
    }

    pub fn view_values(&self, view: &View) -> &[f32] {
        &self.values[view.offset..view.offset + view.values]
    }

    /// The values with every frame of a patch written out, as the reference's `pixel_values`.
    /// Differs from `values` only if the layout has a `repeat` above 1.
    pub fn repeated_values(&self) -> Cow<'_, [f32]> {
        let Layout::MergedPatches { patch, repeat, .. } = self.layout else {
            return Cow::Borrowed(&self.values);
        };
        if repeat == 1 {
            return Cow::Borrowed(&self.values);
        }
        let frame = (patch * patch) as usize;
        let mut values = Vec::with_capacity(self.values.len() * repeat as usize);
        for stored in self.values.chunks_exact(frame) {
            for _ in 0..repeat {
                values.extend_from_slice(stored);
            }
        }
        Cow::Owned(values)
    }
}

/// The hash of [`MediaPixels::hash`]. `positions` is hashed because the same pixels may have
/// a different number of features under other rules.
pub(crate) fn content_hash(
    layout: Layout,
    views: &[View],
    values: &[f32],
    positions: usize,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"loquat-media 1\n");
    hash.update(format!("{layout:?} {positions}\n"));
    for view in views {
        let View {
            role,
            width,
            height,
            grid,
            offset,
            values,
        } = view;
        hash.update(format!(
            "{role:?} {width} {height} {grid:?} {offset} {values}\n"
        ));
    }
    let mut block = Vec::with_capacity(1 << 14);
    for chunk in values.chunks(1 << 12) {
        block.clear();
        block.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
        hash.update(&block);
    }
    hash.finalize().into()
}
