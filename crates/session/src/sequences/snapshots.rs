//! Which states of a recurrent model are kept.

use super::Slot;

/// Which states a recurrent model's sequence keeps besides the one before its last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Tokens between snapshots; at least 1.
    pub interval: usize,
    /// How many of them are kept.
    pub max: usize,
}

impl SnapshotPolicy {
    /// The policy of [`SequenceLimits::from`](super::SequenceLimits): 3 snapshots, 256 tokens apart.
    pub const DEFAULT: Self = Self {
        interval: 256,
        max: 3,
    };

    pub(super) fn is_regular(self, snapshot: Snapshot) -> bool {
        snapshot.len.is_multiple_of(self.interval)
    }

    /// Lengths to save inside a row that extends a sequence from `start` to `end` tokens.
    pub(super) fn lengths(self, start: usize, end: usize) -> impl Iterator<Item = usize> {
        let kept = end.saturating_sub(self.max.saturating_mul(self.interval));
        let first = (start.max(kept) / self.interval + 1) * self.interval;
        (first..end).step_by(self.interval)
    }
}

/// A recurrent state at a length of its sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Snapshot {
    pub len: usize,
    pub state: Slot,
}
