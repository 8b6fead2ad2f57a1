//! Ranges of sequences, which are exported and imported without their adapters.

use std::ops::Range;

use loquat_spec::MediaAttention;

use super::{PlacedView, RowGrant, SequenceStorage, Sequences};
use crate::transfer::{read_views, write_view};
use crate::{SequenceId, SessionError};

impl<S: SequenceStorage> Sequences<S> {
    /// Whether a range can be exported: it exists, and what it has depends on nothing after it.
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
        self.check_ranges(id)
    }

    /// [`Session::export_range_media`](crate::Session::export_range_media).
    pub fn export_range_media(
        &self,
        id: SequenceId,
        range: &Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.check_exported_range(id, range)?;
        for view in &self.get(id)?.layout.views {
            if let Some(part) = view.part(range) {
                write_view(&part, out);
            }
        }
        Ok(())
    }

    /// Appends `tokens` positions, whose pages `write` fills, with their exported `media`. If sequences
    /// of up to `max_context` tokens have tails, the sequence then lacks its own.
    pub fn import_range(
        &mut self,
        id: SequenceId,
        (tokens, max_context): (usize, usize),
        media: &[u8],
        write: impl FnOnce(&mut Self, &RowGrant) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let sequence = self.get(id)?;
        let (len, is_partial) = (sequence.len, sequence.partial_tail.is_some());
        self.check_ranges(id)?;
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
        let damaged = || SessionError::BadImport("its media do not match its length".to_owned());
        let views = read_views(media, len..wanted).ok_or_else(damaged)?;
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
                self.append_views(id, views);
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

    /// Adds a range's views to the sequence; the first may continue its last one.
    fn append_views(&mut self, id: SequenceId, views: Vec<PlacedView>) {
        let Some(sequence) = self.alive.get_mut(&id) else {
            return;
        };
        let known = &mut sequence.layout.views;
        for view in views {
            match known.last_mut().filter(|last| view.continues(last)) {
                Some(last) => last.len += view.len,
                None => known.push(view),
            }
        }
    }

    /// Refuses sequences whose first positions attend to all of the prompt.
    pub(super) fn check_ranges(&self, id: SequenceId) -> Result<(), SessionError> {
        let sequence = self.get(id)?;
        if self.rules.attention == MediaAttention::FirstRow && !sequence.layout.views.is_empty() {
            return Err(SessionError::Unsupported(
                "ranges of prompts that are read as a whole",
            ));
        }
        Ok(())
    }
}
