//! Rotations of a tower's queries and keys by the rows and columns of their patches.

use loquat_cpu_kernels::Kernels;
use loquat_session::media::patch_places;
use loquat_spec::{PatchOrder, PatchRope, PatchRopeLayout};

use super::Batch;

/// Cosines and sines of a batch's tokens.
pub struct Angles {
    layout: PatchRopeLayout,
    pairs: usize,
    /// `[token][pair]`
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    pub fn new(rope: PatchRope, head_dim: usize, order: PatchOrder, batch: &Batch) -> Self {
        let pairs = head_dim / 2;
        let mut angles = Self {
            layout: rope.layout,
            pairs,
            // Class tokens are not rotated.
            cos: vec![1.0; batch.tokens * pairs],
            sin: vec![0.0; batch.tokens * pairs],
        };
        let frequencies = frequencies(rope, pairs);
        for view in &batch.views {
            let frame = view.grid.rows * view.grid.cols;
            let places: Vec<(usize, usize)> = patch_places(order, view.grid).collect();
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

    /// Rotates a head of `token`.
    pub fn rotate(&self, kernels: &Kernels, token: usize, head: &mut [f32]) {
        let of_token = token * self.pairs..(token + 1) * self.pairs;
        let (cos, sin) = (&self.cos[of_token.clone()], &self.sin[of_token]);
        // SAFETY: the table was chosen for this machine.
        unsafe {
            match self.layout {
                PatchRopeLayout::Halves | PatchRopeLayout::HalvesAlternate => {
                    (kernels.rotate)(head, cos, sin);
                }
                PatchRopeLayout::Interleaved => (kernels.rotate_interleaved)(head, cos, sin),
                PatchRopeLayout::Parts => {
                    let (first, second) = head.split_at_mut(self.pairs);
                    let half = self.pairs / 2;
                    (kernels.rotate)(first, &cos[..half], &sin[..half]);
                    (kernels.rotate)(second, &cos[half..], &sin[half..]);
                }
            }
        }
    }
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
