//! Puts the features of a tiled picture together, as LLaVA-OneVision does.

use loquat_session::Picture;
use loquat_session::media::TiledFeatures;
use loquat_spec::VisionSpec;

/// Features of all views, one after another, as one row of positions; `end` ends rows.
pub fn tiled(
    vision: &VisionSpec,
    picture: &Picture,
    is_video: bool,
    features: &[f32],
    end: &[f32],
) -> Vec<f32> {
    let width = end.len();
    // The layout was computed the same way before anything was encoded.
    let Ok(arrangement) = TiledFeatures::new(vision, picture, is_video) else {
        return Vec::new();
    };
    match arrangement {
        TiledFeatures::Single { .. } => [features, end].concat(),
        TiledFeatures::Frames { frames, from, to } => {
            let mut out = Vec::new();
            for frame in features.chunks_exact(from * from * width).take(frames) {
                let frame = Plane {
                    rows: from,
                    cols: from,
                    values: frame.to_vec(),
                };
                out.extend(frame.resized(to, to, width).values);
            }
            out.extend_from_slice(end);
            out
        }
        TiledFeatures::Tiles {
            side,
            tiles,
            rows,
            cols,
            resized,
        } => {
            let (base, rest) = features.split_at(side * side * width);
            let mut plane = Plane {
                rows: rows.len(),
                cols: cols.len(),
                values: Vec::with_capacity(rows.len() * cols.len() * width),
            };
            for y in rows {
                for x in cols.clone() {
                    let tile = y / side * tiles[1] + x / side;
                    let index = tile * side * side + y % side * side + x % side;
                    let at = index * width;
                    plane.values.extend_from_slice(&rest[at..at + width]);
                }
            }
            if let Some([rows, cols]) = resized {
                plane = plane.resized(rows, cols, width);
            }
            let mut out = base.to_vec();
            let row_len = plane.cols * width;
            for row in 0..plane.rows {
                // A row may be all padding.
                out.extend_from_slice(&plane.values[row * row_len..(row + 1) * row_len]);
                out.extend_from_slice(end);
            }
            out
        }
    }
}

/// Rows of positions.
struct Plane {
    rows: usize,
    cols: usize,
    /// `[row][column][value]`
    values: Vec<f32>,
}

impl Plane {
    /// Bilinear between centers of cells, without a filter.
    fn resized(&self, rows: usize, cols: usize, width: usize) -> Self {
        let (down, across) = (taps(self.rows, rows), taps(self.cols, cols));
        let mut values = vec![0.0; rows * cols * width];
        let mut out = values.chunks_exact_mut(width);
        for y in &down {
            for x in &across {
                let Some(out) = out.next() else { break };
                for (row, down) in y {
                    for (col, across) in x {
                        let at = (row * self.cols + col) * width;
                        let from = &self.values[at..at + width];
                        super::add_scaled(out, from, down * across);
                    }
                }
            }
        }
        Self { rows, cols, values }
    }
}

/// The two cells around each new center, and their weights.
fn taps(from: usize, to: usize) -> Vec<[(usize, f32); 2]> {
    let scale = from as f32 / to as f32;
    let tap = |index: usize| {
        let center = (scale * (index as f32 + 0.5) - 0.5).max(0.0);
        let below = (center as usize).min(from - 1);
        let share = center - below as f32;
        [(below, 1.0 - share), ((below + 1).min(from - 1), share)]
    };
    (0..to).map(tap).collect()
}
