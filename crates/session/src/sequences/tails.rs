//! Tails of sequences: what their next token needs besides ranges.
//!
//! Ranges are the keys and values of groups that keep all tokens. What windows free, and recurrent
//! states, exist only at a sequence's end. An imported sequence consists of ranges first, with pages
//! for its windows but nothing in them, and is complete when all bytes of its tail are imported.

use super::{HeldPages, SequenceStorage, Sequences, Slot, drop_page};
use crate::{SequenceId, SessionError};

impl<S: SequenceStorage> Sequences<S> {
    /// Refuses tails if sequences of up to `max_context` tokens have none.
    pub fn check_tails(&self, max_context: usize) -> Result<(), SessionError> {
        if self.has_tails(max_context) {
            return Ok(());
        }
        Err(SessionError::Unsupported("tails of sequences"))
    }

    pub(super) fn has_tails(&self, max_context: usize) -> bool {
        self.snapshots.is_some() || self.pages.groups().free_within(max_context)
    }

    /// Whether a sequence's tail at a length can be exported. Returns the recurrent state there.
    pub fn exported_tail(&self, id: SequenceId, len: usize) -> Result<Option<Slot>, SessionError> {
        let sequence = self.get_complete(id)?;
        self.check_reusable(id, len)?;
        self.check_ranges(id)?;
        Ok(sequence.state_at(len))
    }

    /// Adds `bytes` more bytes of a tail of `total`, which `write` stores from the given offset on.
    /// Returns whether the sequence is complete.
    pub fn import_tail(
        &mut self,
        id: SequenceId,
        (bytes, total): (usize, usize),
        write: impl FnOnce(&mut Self, usize) -> Result<(), SessionError>,
    ) -> Result<bool, SessionError> {
        let sequence = self.get(id)?;
        let refused = |why: String| Err(SessionError::BadImport(why));
        let Some(offset) = sequence.partial_tail else {
            return refused("the sequence has its tail".to_owned());
        };
        let end = offset.saturating_add(bytes);
        if end > total {
            return refused(format!("{end} bytes of a tail of {total}"));
        }
        if self.snapshots.is_some() && sequence.state.is_none() {
            let state = self.acquire_state()?;
            if let Some(sequence) = self.alive.get_mut(&id) {
                sequence.state = Some(state);
            }
        }
        write(self, offset)?;
        let is_complete = end == total;
        if is_complete {
            self.drop_unreached_pages(id);
        }
        if let Some(sequence) = self.alive.get_mut(&id) {
            sequence.partial_tail = (!is_complete).then_some(end);
        }
        Ok(is_complete)
    }

    /// Drops the pages that the next token does not reach: nothing was imported into them.
    fn drop_unreached_pages(&mut self, id: SequenceId) {
        let Some(sequence) = self.alive.get_mut(&id) else {
            return;
        };
        let granularity = self.pages.granularity();
        let groups = *self.pages.groups();
        for (index, (held, group)) in sequence.pages.iter_mut().zip(groups.iter()).enumerate() {
            let first = group.first_page(sequence.len, granularity);
            let unreached = first.saturating_sub(held.first).min(held.slots.len());
            let HeldPages { first, slots } = held;
            let pool = self.pages.pool_mut(index);
            for page in slots.drain(..unreached) {
                drop_page(&mut self.storage, pool, index, page);
            }
            *first += unreached;
        }
    }
}
