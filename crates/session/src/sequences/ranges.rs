//! Ranges of sequences that are exported and imported without their adapters and media.

use std::ops::Range;

use super::{RowGrant, SequenceStorage, Sequences};
use crate::{SequenceId, SessionError};

impl<S: SequenceStorage> Sequences<S> {
    /// Whether a range can be exported: it exists, and has no media up to its end.
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
        self.check_no_media(id, range.end)
    }

    /// Appends `tokens` positions, whose pages `write` fills. If sequences of up to `max_context`
    /// tokens have tails, the sequence then lacks its own.
    pub fn import_range(
        &mut self,
        id: SequenceId,
        (tokens, max_context): (usize, usize),
        write: impl FnOnce(&mut Self, &RowGrant) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let sequence = self.get(id)?;
        let (len, is_partial) = (sequence.len, sequence.partial_tail.is_some());
        self.check_no_media(id, len)?;
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
        let has_tail = self.has_tails(max_context);
        if has_tail && len > 0 && !is_partial {
            return Err(SessionError::Unsupported(
                "importing ranges after computed tokens",
            ));
        }
        let grant = if has_tail {
            self.grant_pages(id, tokens)?
        } else {
            self.grant(id, tokens, None)?
        };
        match write(self, &grant) {
            Ok(()) => {
                self.commit(grant);
                if has_tail && let Some(sequence) = self.alive.get_mut(&id) {
                    sequence.partial_tail = Some(0);
                }
                Ok(())
            }
            Err(error) => {
                self.roll_back(grant);
                Err(error)
            }
        }
    }

    pub(super) fn check_no_media(&self, id: SequenceId, end: usize) -> Result<(), SessionError> {
        let mut views = self.get(id)?.layout.views.iter();
        if views.any(|view| view.start < end) {
            return Err(SessionError::Unsupported("ranges with media"));
        }
        Ok(())
    }
}
