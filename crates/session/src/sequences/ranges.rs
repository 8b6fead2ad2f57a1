//! Ranges of sequences that are exported and imported without their adapters and media.

use std::ops::Range;

use super::{RowGrant, SequenceStorage, Sequences};
use crate::{SequenceId, SessionError};

impl<S: SequenceStorage> Sequences<S> {
    /// Whether a range can be exported: it exists, and no group of layers has freed a part of it.
    pub fn check_exported_range(
        &self,
        id: SequenceId,
        range: &Range<usize>,
    ) -> Result<(), SessionError> {
        let sequence = self.get(id)?;
        if range.start > range.end || range.end > sequence.len {
            return Err(SessionError::LengthOutOfRange {
                len: range.end,
                available: sequence.len,
            });
        }
        let first_page = range.start / self.pages.granularity();
        if sequence.pages.iter().any(|held| held.first > first_page) {
            return Err(SessionError::Unsupported("ranges behind windows"));
        }
        self.check_range(id, range.end)
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
