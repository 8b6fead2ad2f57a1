//! Puts the features of a tiled picture together, as LLaVA-OneVision does.

use loquat_session::Picture;
use loquat_session::media::TiledFeatures;
use loquat_spec::VisionSpec;

use super::add_scaled;

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
    let row_end = features.len() / width;
    let row = |index: usize| match index {
        index if index == row_end => end,
        index => &features[index * width..(index + 1) * width],
    };
    let sources = arrangement.sources(row_end);
    let mut out = vec![0.0; sources.len() * width];
    for (rows, out) in sources.iter().zip(out.chunks_exact_mut(width)) {
        for (index, weight) in rows {
            add_scaled(out, row(*index), *weight);
        }
    }
    out
}
