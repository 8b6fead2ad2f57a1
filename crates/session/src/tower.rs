//! The geometry of a vision tower, for backends that run the spec themselves: which tokens some
//! views have, where they are, which of them attend to each other, and how they rotate. All of it
//! follows from the spec and the grids; a backend adds the arithmetic.

use std::ops::Range;

use loquat_spec::{
    ClassToken, Grid, PatchOrder, PatchPositions, PatchRope, PatchRopeLayout, PatchSpan, VisionSpec,
};

use crate::View;
use crate::media::{patch_places, position_weights};

/// Patches of views that are computed together, unless one view has more.
pub const BATCH_PATCHES: usize = 4096;

/// Runs of views that are computed together.
pub fn batches(views: &[View]) -> impl Iterator<Item = &[View]> {
    let mut rest = views;
    std::iter::from_fn(move || {
        let mut patches = 0;
        let mut count = 0;
        for view in rest {
            patches += view.grid.len().unwrap_or(0);
            if count > 0 && patches > BATCH_PATCHES {
                break;
            }
            count += 1;
        }
        let (batch, after) = rest.split_at(count);
        rest = after;
        (!batch.is_empty()).then_some(batch)
    })
}

/// The tokens of views that are computed together, one view after another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TowerBatch {
    /// In order.
    pub views: Vec<TowerView>,
    /// Class tokens included.
    pub tokens: usize,
    order: PatchOrder,
}

/// A view's tokens in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TowerView {
    /// Of its patches.
    pub grid: Grid,
    /// Its class token, next to its patches.
    pub class: Option<usize>,
    first: usize,
    patches: usize,
}

impl TowerView {
    /// Tokens of its patches.
    pub fn patches(&self) -> Range<usize> {
        self.first..self.first + self.patches
    }

    /// All of its tokens.
    pub fn tokens(&self) -> Range<usize> {
        let Range { start, end } = self.patches();
        let class = self.class.unwrap_or(start);
        start.min(class)..end.max(class + usize::from(self.class.is_some()))
    }
}

/// How a tower's tokens rotate.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchAngles {
    /// Pairs of a head.
    pub pairs: usize,
    /// `[token][pair]`
    pub cos: Vec<f32>,
    /// `[token][pair]`
    pub sin: Vec<f32>,
}

impl TowerBatch {
    /// For views that have been checked.
    pub fn new(spec: &VisionSpec, views: &[View]) -> Self {
        let mut tokens = 0;
        let mut placed = Vec::with_capacity(views.len());
        for view in views {
            let patches = view.grid.len().unwrap_or(0);
            let (first, class) = match spec.class_token {
                None => (tokens, None),
                Some(ClassToken::First) => (tokens + 1, Some(tokens)),
                Some(ClassToken::Last) => (tokens, Some(tokens + patches)),
            };
            tokens += patches + usize::from(class.is_some());
            placed.push(TowerView {
                grid: view.grid,
                class,
                first,
                patches,
            });
        }
        Self {
            views: placed,
            tokens,
            order: spec.patch.order,
        }
    }

    /// The rows of the table of positions that each token's position is the weighted sum of; those
    /// of the second axis follow those of the first. Empty for towers without a table.
    pub fn positions(&self, spec: &VisionSpec) -> Vec<Vec<(usize, f32)>> {
        let Some(table) = spec.positions else {
            return Vec::new();
        };
        let mut positions = vec![Vec::new(); self.tokens];
        for view in &self.views {
            let first_is_class = view.class.is_some_and(|class| class < view.first);
            if let (Some(class), PatchPositions::Fixed { rows }) = (view.class, table) {
                let row = if first_is_class { 0 } else { rows - 1 };
                positions[class] = vec![(row, 1.0)];
            }
            let frame = view.grid.rows * view.grid.cols;
            let sampled = position_weights(spec, view.grid);
            let places: Vec<(usize, usize)> = patch_places(self.order, view.grid).collect();
            for (patch, position) in positions[view.patches()].iter_mut().enumerate() {
                let (row, column) = places[patch % frame];
                *position = match table {
                    PatchPositions::Fixed { .. } => {
                        vec![(patch + usize::from(first_is_class), 1.0)]
                    }
                    PatchPositions::Sampled { .. } => {
                        sampled[row * view.grid.cols + column].clone()
                    }
                    PatchPositions::PerAxis { len } => vec![(column, 1.0), (len + row, 1.0)],
                };
            }
        }
        positions
    }

    /// The tokens that attend to each other, each once.
    pub fn groups(&self, span: PatchSpan) -> Vec<Vec<usize>> {
        let mut groups = Vec::new();
        for view in &self.views {
            let frame = view.grid.rows * view.grid.cols;
            for index in 0..view.grid.frames {
                let first = view.first + index * frame;
                match span {
                    // Views with a class token have one frame.
                    PatchSpan::Frame if view.class.is_some() => {
                        groups.push(view.tokens().collect());
                    }
                    PatchSpan::Frame => groups.push((first..first + frame).collect()),
                    PatchSpan::Window(side) => {
                        windows(&mut groups, (side, self.order), view, first);
                    }
                }
            }
        }
        groups
    }

    /// The rotations of heads of `head_dim` values. Class tokens are not rotated.
    pub fn angles(&self, rope: PatchRope, head_dim: usize) -> PatchAngles {
        let pairs = head_dim / 2;
        let mut angles = PatchAngles {
            pairs,
            cos: vec![1.0; self.tokens * pairs],
            sin: vec![0.0; self.tokens * pairs],
        };
        let frequencies = frequencies(rope, pairs);
        for view in &self.views {
            let frame = view.grid.rows * view.grid.cols;
            let places: Vec<(usize, usize)> = patch_places(self.order, view.grid).collect();
            for (patch, token) in view.patches().enumerate() {
                let (row, column) = places[patch % frame];
                let [first, second] = match rope.layout {
                    PatchRopeLayout::Halves | PatchRopeLayout::HalvesAlternate => [row, column],
                    PatchRopeLayout::Parts => [column, row],
                    PatchRopeLayout::Interleaved => [column + 1, row + 1],
                };
                for (pair, frequency) in frequencies.iter().enumerate() {
                    let position = if pair < pairs / 2 { first } else { second };
                    let (sin, cos) = (position as f32 * frequency).sin_cos();
                    angles.cos[token * pairs + pair] = cos;
                    angles.sin[token * pairs + pair] = sin;
                }
            }
        }
        angles
    }
}

fn windows(
    groups: &mut Vec<Vec<usize>>,
    (side, order): (usize, PatchOrder),
    view: &TowerView,
    first: usize,
) {
    let across = view.grid.cols.div_ceil(side);
    let down = view.grid.rows.div_ceil(side);
    let mut windows = vec![Vec::new(); across * down];
    for (patch, (row, column)) in patch_places(order, view.grid).enumerate() {
        windows[row / side * across + column / side].push(first + patch);
    }
    groups.extend(windows);
}

/// One for each pair of a head.
fn frequencies(rope: PatchRope, pairs: usize) -> Vec<f32> {
    let half = pairs / 2;
    let theta = f64::from(rope.theta);
    let frequency = |pair: usize| {
        let (axis, index) = (pair / half.max(1), pair % half.max(1));
        let exponent = match rope.layout {
            // Every second of the frequencies of a whole head.
            PatchRopeLayout::HalvesAlternate => (2 * index + axis) as f64 / pairs as f64,
            _ => index as f64 / half as f64,
        };
        theta.powf(-exponent) as f32
    };
    (0..pairs).map(frequency).collect()
}

/// Vectors of some views on their way through a projector: how many there are, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectedGrids {
    grids: Vec<Grid>,
    order: PatchOrder,
}

impl ProjectedGrids {
    /// The patches of a batch, without class tokens.
    pub fn new(batch: &TowerBatch) -> Self {
        Self {
            grids: batch.views.iter().map(|view| view.grid).collect(),
            order: batch.order,
        }
    }

    /// The vectors of each block of `side × side`, in row-major order, one block after another.
    /// `None` if they are in this order already. Afterwards there is one vector for each block, in
    /// row-major order.
    pub fn merge(&mut self, side: usize) -> Option<Vec<usize>> {
        let indices = match self.order {
            PatchOrder::Blocks(_) => None,
            PatchOrder::RowMajor if side == 1 => None,
            PatchOrder::RowMajor => Some(self.blocks(side)),
        };
        self.order = PatchOrder::RowMajor;
        for grid in &mut self.grids {
            grid.rows /= side;
            grid.cols /= side;
        }
        indices
    }

    fn blocks(&self, side: usize) -> Vec<usize> {
        let mut indices = Vec::new();
        let mut first = 0;
        for grid in &self.grids {
            for _ in 0..grid.frames {
                for row in (0..grid.rows).step_by(side) {
                    for col in (0..grid.cols).step_by(side) {
                        for y in row..row + side {
                            let at = first + y * grid.cols + col;
                            indices.extend(at..at + side);
                        }
                    }
                }
                first += grid.rows * grid.cols;
            }
        }
        indices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(order: PatchOrder, class: Option<ClassToken>, grids: &[[usize; 3]]) -> TowerBatch {
        let mut tokens = 0;
        let views = grids.iter().map(|[frames, rows, cols]| {
            let patches = frames * rows * cols;
            let start = tokens;
            tokens += patches + usize::from(class.is_some());
            TowerView {
                grid: Grid {
                    frames: *frames,
                    rows: *rows,
                    cols: *cols,
                },
                class: class.map(|class| match class {
                    ClassToken::First => start,
                    ClassToken::Last => start + patches,
                }),
                first: start + usize::from(class == Some(ClassToken::First)),
                patches,
            }
        });
        TowerBatch {
            views: views.collect(),
            tokens,
            order,
        }
    }

    #[test]
    fn frames_attend_with_their_class_token() {
        let row_major = PatchOrder::RowMajor;
        type Case<'a> = (Option<ClassToken>, &'a [[usize; 3]], Vec<Vec<usize>>);
        let table: [Case<'_>; 3] = [
            (
                None,
                &[[2, 1, 2], [1, 1, 3]],
                vec![vec![0, 1], vec![2, 3], vec![4, 5, 6]],
            ),
            (
                Some(ClassToken::First),
                &[[1, 1, 2], [1, 1, 2]],
                vec![vec![0, 1, 2], vec![3, 4, 5]],
            ),
            (Some(ClassToken::Last), &[[1, 2, 1]], vec![vec![0, 1, 2]]),
        ];
        for (class, grids, expected) in table {
            let batch = batch(row_major, class, grids);
            assert_eq!(batch.groups(PatchSpan::Frame), expected, "{grids:?}");
        }
    }

    #[test]
    fn windows_at_the_edge_are_smaller() {
        let batch = batch(PatchOrder::Blocks(2), None, &[[1, 2, 6]]);
        // Blocks of two by two; windows of four columns.
        let expected = vec![(0..8).collect(), (8..12).collect::<Vec<usize>>()];
        assert_eq!(batch.groups(PatchSpan::Window(4)), expected);
    }

    #[test]
    fn blocks_merge_until_one_vector_is_left() {
        let row_major = batch(PatchOrder::RowMajor, None, &[[1, 2, 4], [1, 2, 2]]);
        let mut grids = ProjectedGrids::new(&row_major);
        let expected = vec![0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11];
        assert_eq!(grids.merge(2), Some(expected));
        assert_eq!(grids.merge(1), None);
        let blocks = batch(PatchOrder::Blocks(2), None, &[[1, 4, 4]]);
        let mut grids = ProjectedGrids::new(&blocks);
        assert_eq!(grids.merge(2), None);
        assert_eq!(grids.merge(2), Some(vec![0, 1, 2, 3]));
    }
}
