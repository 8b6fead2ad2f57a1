//! What an accepted row may write to.

use super::snapshots::Snapshot;
use super::{PlacedView, Slot};
use crate::SequenceId;

/// Pages and states reserved for a row. Ends with [`commit`](super::Sequences::commit) or
/// [`roll_back`](super::Sequences::roll_back); dropping it leaks them.
#[must_use]
#[derive(Debug)]
pub struct RowGrant {
    /// The sequence that the row extends.
    pub sequence: SequenceId,
    /// Length of the sequence before the row.
    pub start: usize,
    /// Tokens of the row.
    pub tokens: usize,
    /// Tokens that fit into the sequence's pages, freed ones included.
    pub capacity: usize,
    /// `None` without recurrent layers.
    pub states: Option<RowStates>,
    /// Views that the row adds to the sequence's layout.
    pub(super) views: Vec<PlacedView>,
}

/// The recurrent states that a row reads and writes.
#[derive(Debug)]
pub struct RowStates {
    /// `None`: the sequence is empty, and its state zero.
    pub before: Option<Slot>,
    /// Receives the state after the row's last token.
    pub after: Slot,
    pub(super) snapshots: Vec<Snapshot>,
}

impl RowStates {
    /// Lengths of the sequence at which the row saves its state, ascending, and the states.
    pub fn snapshots(&self) -> impl Iterator<Item = (usize, Slot)> {
        let snapshots = self.snapshots.iter();
        snapshots.map(|snapshot| (snapshot.len, snapshot.state))
    }

    pub(super) fn written(&self) -> impl Iterator<Item = Slot> {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.state);
        std::iter::once(self.after).chain(snapshots)
    }
}
