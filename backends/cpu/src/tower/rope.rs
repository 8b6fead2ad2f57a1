//! Rotations of a tower's queries and keys by the rows and columns of their patches.

use loquat_cpu_kernels::Kernels;
use loquat_session::tower::{PatchAngles, TowerBatch};
use loquat_spec::{PatchRope, PatchRopeLayout};

/// Cosines and sines of a batch's tokens.
pub struct Angles {
    layout: PatchRopeLayout,
    angles: PatchAngles,
}

impl Angles {
    pub fn new(rope: PatchRope, head_dim: usize, batch: &TowerBatch) -> Self {
        Self {
            layout: rope.layout,
            angles: batch.angles(rope, head_dim),
        }
    }

    /// Rotates a head of `token`.
    pub fn rotate(&self, kernels: &Kernels, token: usize, head: &mut [f32]) {
        let PatchAngles { pairs, cos, sin } = &self.angles;
        let of_token = token * pairs..(token + 1) * pairs;
        let (cos, sin) = (&cos[of_token.clone()], &sin[of_token]);
        // SAFETY: the table was chosen for this machine.
        unsafe {
            match self.layout {
                PatchRopeLayout::Halves | PatchRopeLayout::HalvesAlternate => {
                    (kernels.rotate)(head, cos, sin);
                }
                PatchRopeLayout::Interleaved => (kernels.rotate_interleaved)(head, cos, sin),
                PatchRopeLayout::Parts => {
                    let (first, second) = head.split_at_mut(*pairs);
                    let half = pairs / 2;
                    (kernels.rotate)(first, &cos[..half], &sin[..half]);
                    (kernels.rotate)(second, &cos[half..], &sin[half..]);
                }
            }
        }
    }
}
