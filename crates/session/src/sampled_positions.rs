//! How a tower's square table of learned positions is sampled at another grid: as torch and
//! transformers do it, so that every backend adds the same numbers.

use loquat_spec::{Grid, Sampling};

/// Rows of the table and their weights.
type Weights = Vec<(usize, f32)>;

/// For each cell of a frame in row-major order, the table's rows that make up its position.
pub fn weights(side: usize, sampling: Sampling, grid: Grid) -> Vec<Weights> {
    let axis = |len: usize| -> Vec<Weights> {
        let cells = 0..len;
        cells
            .map(|cell| along_axis(side, sampling, cell, len))
            .collect()
    };
    let (rows, cols) = (axis(grid.rows), axis(grid.cols));
    let mut all = Vec::with_capacity(grid.rows * grid.cols);
    for row in &rows {
        for col in &cols {
            let cell = row.iter().flat_map(|(y, down)| {
                let along = col.iter();
                along.map(move |(x, across)| (y * side + x, down * across))
            });
            all.push(cell.collect());
        }
    }
    all
}

/// The table's indices along one axis, and their weights, for cell `at` of `len`.
fn along_axis(side: usize, sampling: Sampling, at: usize, len: usize) -> Weights {
    match sampling {
        Sampling::BilinearCorners => corners(side, at, len),
        Sampling::BilinearAntialias => antialias(side, at, len),
        Sampling::BicubicCenters => bicubic(side, at, len),
        Sampling::Buckets => vec![(bucket(side, at, len), 1.0)],
    }
}

/// `linspace(0, side - 1, len)`, as torch computes it: from both ends.
fn corners(side: usize, at: usize, len: usize) -> Weights {
    let last = (side - 1) as f32;
    let place = if len == 1 {
        0.0
    } else {
        let step = last / (len - 1) as f32;
        if at < len / 2 {
            step * at as f32
        } else {
            last - step * (len - 1 - at) as f32
        }
    };
    let below = place as usize;
    let above = (below + 1).min(side - 1);
    let share = place - below as f32;
    vec![(below, 1.0 - share), (above, share)]
}

/// A triangle around the cell's center, as wide as a cell of the coarser grid.
fn antialias(side: usize, at: usize, len: usize) -> Weights {
    let scale = side as f32 / len as f32;
    let support = scale.max(1.0);
    let center = scale * (at as f32 + 0.5);
    let first = (center - support + 0.5).max(0.0) as usize;
    let end = ((center + support + 0.5) as usize).min(side);
    let weight = |index: usize| {
        let distance = (index as f32 - center + 0.5) / support;
        (1.0 - distance.abs()).max(0.0)
    };
    let total: f32 = (first..end).map(weight).sum();
    (first..end).map(|i| (i, weight(i) / total)).collect()
}

/// `grid_sample` with `align_corners=False` and `padding_mode="border"`.
fn bicubic(side: usize, at: usize, len: usize) -> Weights {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let normed = (at as f32 + 0.5) / len as f32 * 2.0 - 1.0;
    let place = ((normed + 1.0) * side as f32 - 1.0) / 2.0;
    let below = place.floor();
    let t = place - below;
    let taps = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
    let index = |tap: usize| {
        let index = below as isize - 1 + tap as isize;
        index.clamp(0, side as isize - 1) as usize
    };
    (0..4).map(|tap| (index(tap), taps[tap])).collect()
}

/// How many of the fractions `1/side, 2/side, …` the cell's fraction `at/len` reaches.
fn bucket(side: usize, at: usize, len: usize) -> usize {
    at * side / len
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Sampling; 4] = [
        Sampling::BilinearCorners,
        Sampling::BilinearAntialias,
        Sampling::BicubicCenters,
        Sampling::Buckets,
    ];

    #[test]
    fn weights_add_up_to_one() {
        for sampling in ALL {
            for side in [1, 2, 4, 9] {
                for len in 1..20 {
                    for at in 0..len {
                        let weights = along_axis(side, sampling, at, len);
                        let sum: f32 = weights.iter().map(|(_, weight)| weight).sum();
                        assert!(
                            (sum - 1.0).abs() < 1e-5,
                            "{sampling:?} {side} {at} of {len}"
                        );
                        assert!(weights.iter().all(|(index, _)| *index < side));
                    }
                }
            }
        }
    }

    #[test]
    fn same_grid_reads_the_table() {
        for sampling in ALL {
            for at in 0..7 {
                let weights = along_axis(7, sampling, at, 7);
                let own: f32 = weights
                    .iter()
                    .filter(|(index, _)| *index == at)
                    .map(|(_, weight)| weight)
                    .sum();
                assert!((own - 1.0).abs() < 1e-5, "{sampling:?} {at}: {weights:?}");
            }
        }
    }
}
