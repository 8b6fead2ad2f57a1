//! Ranges of sequences that are exported and imported without their adapters and media.

use std::ops::Range;

use super::{RowGrant, SequenceStorage, Sequences, Slot};
use crate::{SequenceId, SessionError};

impl<S: SequenceStorage> Sequences<S> {
    /// The pages that hold a range, if it can be exported.
    pub fn exported_range(
        &self,
        id: SequenceId,
        range: &Range<usize>,
    ) -> Result<&[Slot], SessionError> {
        let sequence = self.get(id)?;
        if range.start > range.end || range.end > sequence.len {
            return Err(SessionError::LengthOutOfRange {
                len: range.end,
                available: sequence.len,
            });
        }
        self.check_range(id, range.end)?;
        Ok(&sequence.pages)
    }

    /// Appends `tokens` positions, whose pages `write` fills.
    pub fn import_range(
        &mut self,
        id: SequenceId,
        (tokens, max_context): (usize, usize),
        write: impl FnOnce(&mut Self, &RowGrant) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let len = self.get(id)?.len;
        self.check_range(id, len)?;
        let wanted = len.saturating_add(tokens);
        if wanted > max_context {
            return Err(SessionError::ContextExceeded {
                wanted,
                max_context,
            });
        }
        if tokens == 0 {
            return Ok(());
        }
        let grant = self.grant(id, tokens, None)?;
        match write(self, &grant) {
            Ok(()) => {
                self.commit(grant);
                Ok(())
            }
            Err(error) => {
                self.roll_back(grant);
                Err(error)
            }
        }
    }

    fn check_range(&self, id: SequenceId, end: usize) -> Result<(), SessionError> {
        if self.snapshots.is_some() {
            return Err(SessionError::Unsupported("ranges of recurrent models"));
        }
        let mut views = self.get(id)?.layout.views.iter();
        if views.any(|view| view.start < end) {
            return Err(SessionError::Unsupported("ranges with media"));
        }
        Ok(())
    }
}
