//! Pictures, videos and raw embeddings as inputs of a session.
//!
//! [`Session::encode`](crate::Session::encode) turns one of them into features that stay on the
//! device. A row of a step then contains [spans](crate::Span) of them between its tokens. Which
//! positions they occupy, how those rotate and what they attend to follow from the model's spec
//! and the [`MediaLayout`]; callers see only how many positions there are.

use std::ops::Range;

use loquat_spec::{
    Arrangement, Grid, MediaAttention, ModelSpec, PatchOrder, PatchPositions, PixelInput,
    VisionSpec,
};

use crate::SessionError;

/// Names encoded media inside the session that encoded it. Never reused within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MediaId(pub u64);

/// Encoded media. It holds memory until every reference is
/// [released](crate::Session::release_media).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaHandle {
    /// For spans.
    pub id: MediaId,
    /// Positions that all of it occupies in a sequence.
    pub positions: usize,
    /// A span of it may be cut between two rows. Otherwise a span is one or more whole views.
    pub divisible: bool,
}

/// What a session encodes.
#[derive(Debug, Clone, PartialEq)]
pub enum Media {
    /// One picture, preprocessed as the model's processor does.
    Image(Picture),
    /// The frames of a video, preprocessed likewise.
    Video(Picture),
    /// Vectors of the text model's hidden size, one per position, which enter its stream as they
    /// are.
    Embeddings(Vec<f32>),
}

/// The views that a tower sees of one picture or video.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Picture {
    /// The whole, tiles of it, or frames, in the processor's order.
    pub views: Vec<View>,
    /// For models that put tiles together again.
    pub tiling: Option<Tiling>,
    /// Of a video whose model counts positions in time: seconds from one frame of a view's grid
    /// to the next.
    pub seconds_per_frame: Option<f32>,
}

/// One input of the tower.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// In patches.
    pub grid: Grid,
    /// As [`PixelInput`] of the spec says.
    pub values: Vec<f32>,
}

/// A picture cut into tiles, which are its views after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tiling {
    /// Tiles from top to bottom.
    pub rows: usize,
    /// Tiles from left to right.
    pub cols: usize,
    /// Of the picture before it was resized and padded, in pixels.
    pub height: usize,
    /// Of the picture before it was resized and padded, in pixels.
    pub width: usize,
}

/// Where the positions of encoded media are, for backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaLayout {
    /// One after another.
    pub views: Vec<ViewLayout>,
    /// See [`MediaHandle::divisible`].
    pub divisible: bool,
}

/// The positions of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewLayout {
    /// How many.
    pub positions: usize,
    /// For models whose positions have rows and columns. `None`: counted like text.
    pub grid: Option<PositionGrid>,
}

/// Frames, rows and columns of positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionGrid {
    /// Positions per frame and row.
    pub rows: usize,
    /// Positions per row.
    pub cols: usize,
    /// How many.
    pub frames: usize,
    /// From one frame to the next.
    pub frame_step: usize,
}

impl PositionGrid {
    /// Frame, row and column of a position, relative to the first.
    pub fn offset(&self, position: usize) -> [usize; 3] {
        let frame = self.rows * self.cols;
        let inside = position % frame;
        [
            position / frame * self.frame_step,
            inside / self.cols,
            inside % self.cols,
        ]
    }

    /// Text after the view continues this far from its first position.
    pub fn extent(&self) -> usize {
        let frames = (self.frames - 1) * self.frame_step + 1;
        frames.max(self.rows).max(self.cols)
    }
}

impl MediaLayout {
    /// Positions of all views.
    pub fn positions(&self) -> usize {
        self.views.iter().map(|view| view.positions).sum()
    }

    /// The layout of `media` for a model that accepts it, or why it is refused. Counts and sizes
    /// are checked; no view may have more than `max_patches`.
    pub fn new(spec: &ModelSpec, media: &Media, max_patches: usize) -> Result<Self, SessionError> {
        let picture = match media {
            Media::Embeddings(values) => return embeddings(spec, values),
            Media::Image(picture) | Media::Video(picture) => picture,
        };
        let vision = spec.vision.as_ref();
        let vision = vision.ok_or(SessionError::Unsupported("media"))?;
        let is_video = matches!(media, Media::Video(_));
        if is_video && !vision.video {
            return Err(SessionError::Unsupported("video"));
        }
        if picture.views.is_empty() {
            return Err(invalid("views", "there is none"));
        }
        let mut views = Vec::with_capacity(picture.views.len());
        for view in &picture.views {
            let merged = check_view(vision, view)?;
            let patches = view.grid.len().unwrap_or(usize::MAX);
            if patches > max_patches {
                let max = max_patches;
                return Err(SessionError::MediaTooLarge { patches, max });
            }
            views.push(merged);
        }
        let divisible = vision.attention == MediaAttention::Causal;
        let views = match vision.arrangement {
            Arrangement::Views => {
                let has_grid = spec.has_grid_positions();
                let frame_step = frame_step(vision, picture)?;
                let layout = |grid: &Grid| ViewLayout {
                    positions: grid.frames * grid.rows * grid.cols,
                    grid: has_grid.then_some(PositionGrid {
                        rows: grid.rows,
                        cols: grid.cols,
                        frames: grid.frames,
                        frame_step,
                    }),
                };
                views.iter().map(layout).collect()
            }
            Arrangement::Tiles { .. } => vec![ViewLayout {
                positions: TiledFeatures::new(vision, picture, is_video)?.positions(),
                grid: None,
            }],
        };
        Ok(Self { views, divisible })
    }
}

fn embeddings(spec: &ModelSpec, values: &[f32]) -> Result<MediaLayout, SessionError> {
    let hidden = spec.hidden_size;
    if values.is_empty() || !values.len().is_multiple_of(hidden) {
        let why = format!("{} values are not rows of {hidden}", values.len());
        return Err(invalid("embeddings", why));
    }
    if !values.iter().all(|value| value.is_finite()) {
        return Err(invalid("embeddings", "a value is not a finite number"));
    }
    Ok(MediaLayout {
        views: vec![ViewLayout {
            positions: values.len() / hidden,
            grid: None,
        }],
        divisible: true,
    })
}

/// The grid of positions of a view that fits the tower.
fn check_view(vision: &VisionSpec, view: &View) -> Result<Grid, SessionError> {
    let Grid { frames, rows, cols } = view.grid;
    let patches = view.grid.len().unwrap_or(usize::MAX);
    let expected = patches.checked_mul(vision.patch.values());
    if expected != Some(view.values.len()) {
        let why = format!(
            "a grid of {frames} × {rows} × {cols} patches has {} values",
            view.values.len()
        );
        return Err(invalid("values", why));
    }
    if frames != 1 && vision.patch.input == PixelInput::Planes {
        return Err(invalid("grid", "a view of planes is one frame"));
    }
    // A fixed table is one of a square.
    let is_fixed = |fixed: usize| fixed != patches || rows != cols;
    if vision.fixed_patches().is_some_and(is_fixed) {
        let why = format!("the tower takes no grid of {rows} × {cols} patches");
        return Err(invalid("grid", why));
    }
    if vision
        .max_side()
        .is_some_and(|max| rows > max || cols > max)
    {
        let why = format!("{rows} × {cols} patches are beyond the table of positions");
        return Err(invalid("grid", why));
    }
    // A broken pixel must not become a NaN that the text model attributes to its weights.
    if !view.values.iter().all(|value| value.is_finite()) {
        return Err(invalid("values", "a value is not a finite number"));
    }
    let merged = vision.merged(view.grid);
    merged.ok_or_else(|| {
        let side = vision.projector.merged_side();
        invalid(
            "grid",
            format!("{rows} × {cols} patches are not blocks of {side}"),
        )
    })
}

/// Positions from one frame to the next.
fn frame_step(vision: &VisionSpec, picture: &Picture) -> Result<usize, SessionError> {
    const MAX_SECONDS: f32 = 1e4;
    match (vision.positions_per_second, picture.seconds_per_frame) {
        (None, _) | (_, None) => Ok(1),
        (Some(rate), Some(seconds)) if (0.0..=MAX_SECONDS).contains(&seconds) => {
            Ok((seconds * rate) as usize)
        }
        (_, Some(seconds)) => Err(invalid("seconds_per_frame", format!("it is {seconds}"))),
    }
}

fn invalid(field: &'static str, why: impl Into<String>) -> SessionError {
    SessionError::InvalidMedia {
        field,
        why: why.into(),
    }
}

/// How the features of a tiled picture, or of a video's frames, are put together
/// ([`Arrangement::Tiles`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TiledFeatures {
    /// The first view alone, then the learned vector.
    Single {
        /// Positions of the view.
        positions: usize,
    },
    /// The first view, then rows of the tiles' picture.
    Tiles {
        /// Positions of a view, a square of this side.
        side: usize,
        /// Tiles from top to bottom, and from left to right.
        tiles: [usize; 2],
        /// Rows of the tiles' picture that are not padding.
        rows: Range<usize>,
        /// Columns of the tiles' picture that are not padding.
        cols: Range<usize>,
        /// Rows and columns to resize to, if the picture has too many positions.
        resized: Option<[usize; 2]>,
    },
    /// Frames, each shrunk to a square of `to` positions a side, then the learned vector.
    Frames {
        /// How many.
        frames: usize,
        /// The side of a frame's positions before and after.
        from: usize,
        /// The side after.
        to: usize,
    },
}

impl TiledFeatures {
    /// For a picture or a video whose views have been checked.
    pub fn new(
        vision: &VisionSpec,
        picture: &Picture,
        is_video: bool,
    ) -> Result<Self, SessionError> {
        let merged = vision.projector.merged_side();
        let side = picture.views[0].grid.rows / merged;
        let square = |view: &View| {
            let Grid { frames, rows, cols } = view.grid;
            frames == 1 && rows == cols && rows / merged == side
        };
        if !picture.views.iter().all(square) {
            return Err(invalid("grid", "the tower takes square views of one size"));
        }
        let count = picture.views.len();
        if is_video {
            return Ok(Self::Frames {
                frames: count,
                from: side,
                to: side.div_ceil(2),
            });
        }
        let Some(tiling) = picture.tiling.filter(|_| count > 1) else {
            return match count {
                1 => Ok(Self::Single {
                    positions: side * side,
                }),
                _ => Err(invalid("tiling", "there are several views but no grid")),
            };
        };
        let Tiling {
            rows,
            cols,
            height,
            width,
        } = tiling;
        if rows.checked_mul(cols) != Some(count - 1) || height == 0 || width == 0 {
            let why = format!("{rows} × {cols} tiles of {height} × {width} pixels");
            return Err(invalid("tiling", why));
        }
        let (all_rows, all_cols) = (rows * side, cols * side);
        let (rows_kept, cols_kept) = unpadded((height, width), (all_rows, all_cols));
        let Arrangement::Tiles { max_tiles } = vision.arrangement else {
            return Err(invalid("tiling", "the model does not put tiles together"));
        };
        let (kept_rows, kept_cols) = (rows_kept.len(), cols_kept.len());
        let most = (max_tiles * side * side) as f64;
        let ratio = ((kept_rows * kept_cols) as f64 / most).sqrt();
        let resized = (ratio > 1.1).then(|| {
            let shrunk = |len: usize| ((len as f64 / ratio) as usize).max(1);
            [shrunk(kept_rows), shrunk(kept_cols)]
        });
        Ok(Self::Tiles {
            side,
            tiles: [rows, cols],
            rows: rows_kept,
            cols: cols_kept,
            resized,
        })
    }

    /// What each position is made of: weighted rows of the views' features, one view after another.
    /// `row_end` is the index of the learned vector that ends a row.
    pub fn sources(&self, row_end: usize) -> Vec<Vec<(usize, f32)>> {
        let whole = |index: usize| vec![(index, 1.0)];
        let mut sources: Vec<Vec<(usize, f32)>> = Vec::with_capacity(self.positions());
        match self {
            Self::Single { positions } => sources.extend((0..*positions).map(whole)),
            Self::Frames { frames, from, to } => {
                let taps = taps(*from, *to);
                for frame in 0..*frames {
                    let at = |row, col| (frame * from + row) * from + col;
                    sources.extend(resized((&taps, &taps), at));
                }
            }
            Self::Tiles {
                side,
                tiles,
                rows,
                cols,
                resized: size,
            } => {
                sources.extend((0..side * side).map(whole));
                let at = |row: usize, col: usize| {
                    let (y, x) = (rows.start + row, cols.start + col);
                    let tile = 1 + y / side * tiles[1] + x / side;
                    tile * side * side + y % side * side + x % side
                };
                let [to_rows, to_cols] = size.unwrap_or([rows.len(), cols.len()]);
                let kept: Vec<Vec<(usize, f32)>> = match size {
                    None => (0..to_rows * to_cols)
                        .map(|cell| whole(at(cell / to_cols, cell % to_cols)))
                        .collect(),
                    Some(_) => {
                        let (down, across) = (taps(rows.len(), to_rows), taps(cols.len(), to_cols));
                        resized((&down, &across), at).collect()
                    }
                };
                let mut cells = kept.into_iter();
                for _ in 0..to_rows {
                    // A row may be all padding.
                    sources.extend(cells.by_ref().take(to_cols));
                    sources.push(whole(row_end));
                }
                return sources;
            }
        }
        sources.push(whole(row_end));
        sources
    }

    /// All positions.
    pub fn positions(&self) -> usize {
        match self {
            Self::Single { positions } => positions + 1,
            Self::Tiles {
                side,
                rows,
                cols,
                resized,
                ..
            } => {
                let [rows, cols] = resized.unwrap_or([rows.len(), cols.len()]);
                side * side + rows * (cols + 1)
            }
            Self::Frames { frames, to, .. } => frames * to * to + 1,
        }
    }
}

/// Two cells along an axis, and their weights.
type Taps = [(usize, f32); 2];

/// Cells resized bilinearly between centers, without a filter; `at` is the index of a cell.
fn resized<'a>(
    (down, across): (&'a [Taps], &'a [Taps]),
    at: impl Fn(usize, usize) -> usize + 'a,
) -> impl Iterator<Item = Vec<(usize, f32)>> + 'a {
    let cells = down
        .iter()
        .flat_map(move |y| across.iter().map(move |x| (y, x)));
    cells.map(move |(y, x)| {
        let rows = y.iter();
        let taps =
            rows.flat_map(|(row, down)| x.iter().map(move |(col, share)| (row, col, down * share)));
        taps.map(|(row, col, weight)| (at(*row, *col), weight))
            .collect()
    })
}

/// The two cells around each new center, and their weights.
fn taps(from: usize, to: usize) -> Vec<Taps> {
    let scale = from as f32 / to as f32;
    let tap = |index: usize| {
        let center = (scale * (index as f32 + 0.5) - 0.5).max(0.0);
        let below = (center as usize).min(from - 1);
        let share = center - below as f32;
        [(below, 1.0 - share), ((below + 1).min(from - 1), share)]
    };
    (0..to).map(tap).collect()
}

/// The rows and columns of a padded picture that show the original, as transformers'
/// `unpad_image` computes them.
fn unpadded(
    (height, width): (usize, usize),
    (rows, cols): (usize, usize),
) -> (Range<usize>, Range<usize>) {
    // Sides are compared as ratios, whose rounding decides; transformers uses doubles too.
    let original = width as f64 / height as f64;
    let current = cols as f64 / rows as f64;
    let round = |value: f64| (value * 1e7).round() / 1e7;
    if original > current {
        let kept = round(height as f64 * (cols as f64 / width as f64)) as usize;
        let padding = rows.saturating_sub(kept) / 2;
        (padding..rows - padding, 0..cols)
    } else {
        let kept = round(width as f64 * (rows as f64 / height as f64)) as usize;
        let padding = cols.saturating_sub(kept) / 2;
        (0..rows, padding..cols - padding)
    }
}

/// A view's patches as the tower's matrix reads them, `[patch][value]` in [`PatchOrder`]: values
/// are only copied.
pub fn patches(vision: &VisionSpec, view: &View) -> Vec<f32> {
    let patch = &vision.patch;
    if patch.input == PixelInput::Patches {
        return view.values.clone();
    }
    let (side, Grid { rows, cols, .. }) = (patch.side, view.grid);
    let (height, width) = (rows * side, cols * side);
    let mut values = Vec::with_capacity(view.values.len());
    for (row, col) in patch_places(patch.order, view.grid) {
        for channel in 0..patch.channels {
            for y in row * side..(row + 1) * side {
                let at = (channel * height + y) * width + col * side;
                values.extend_from_slice(&view.values[at..at + side]);
            }
        }
    }
    values
}

/// Row and column of each patch of a frame, in the tower's order.
pub fn patch_places(order: PatchOrder, grid: Grid) -> impl Iterator<Item = (usize, usize)> {
    let block = match order {
        PatchOrder::RowMajor => 1,
        PatchOrder::Blocks(side) => side,
    };
    let Grid { rows, cols, .. } = grid;
    let blocks_across = cols / block;
    (0..rows * cols).map(move |index| {
        let (outer, inner) = (index / (block * block), index % (block * block));
        if block == 1 {
            return (index / cols, index % cols);
        }
        (
            outer / blocks_across * block + inner / block,
            outer % blocks_across * block + inner % block,
        )
    })
}

/// Rows and weights of a square table that make up each patch's position, in row-major order of a
/// frame's grid. Empty for towers without a sampled table.
pub fn position_weights(vision: &VisionSpec, grid: Grid) -> Vec<Vec<(usize, f32)>> {
    match vision.positions {
        Some(PatchPositions::Sampled { side, sampling }) => {
            crate::sampled_positions::weights(side, sampling, grid)
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_removed_as_transformers_does() {
        // Height and width before, rows and columns of the tiles; rows and columns kept.
        let table = [
            ((100, 100), (8, 8), (0..8, 0..8)),
            ((50, 100), (8, 8), (2..6, 0..8)),
            ((100, 50), (8, 8), (0..8, 2..6)),
            ((61, 90), (8, 8), (1..7, 0..8)),
            // Nothing is left of the thinnest pictures, and nothing panics.
            ((1, 100_000), (8, 8), (4..4, 0..8)),
            ((100_000, 1), (8, 8), (0..8, 4..4)),
            ((1, 100_000), (7, 7), (3..4, 0..7)),
        ];
        for (size, tiles, expected) in table {
            assert_eq!(unpadded(size, tiles), expected, "{size:?} {tiles:?}");
        }
    }

    #[test]
    fn blocks_of_patches_are_row_major_inside() {
        let grid = Grid {
            frames: 1,
            rows: 2,
            cols: 4,
        };
        let places: Vec<_> = patch_places(PatchOrder::Blocks(2), grid).collect();
        let expected = [
            (0, 0),
            (0, 1),
            (1, 0),
            (1, 1),
            (0, 2),
            (0, 3),
            (1, 2),
            (1, 3),
        ];
        assert_eq!(places, expected);
        let places: Vec<_> = patch_places(PatchOrder::RowMajor, grid).collect();
        assert_eq!(places[..5], [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]);
    }
}
