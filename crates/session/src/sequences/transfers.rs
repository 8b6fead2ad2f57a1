//! Exports and imports of sequences, for storages that can copy positions and parts of states.

use std::ops::Range;

use super::{PageSpan, RowGrant, SequenceStorage, Sequences, Slot};
use crate::limits::Limits;
use crate::transfer::{
    Envelope, TailContent, TailLayout, TailSection, Unsealed, fingerprint, range_fingerprint,
    unseal,
};
use crate::{ModelSource, Precision, SequenceId, SessionError};

/// A storage whose keys and values are copied position by position, and states number by number.
/// [`delegate_transfers`](crate::delegate_transfers) implements a session's transfers over it.
pub trait TransferStorage: SequenceStorage {
    /// Bytes of one position in a group.
    fn position_bytes(&self, group: usize) -> usize;

    /// Numbers of a recurrent state, of four bytes each.
    fn state_len(&self) -> usize;

    /// Appends the keys and values of some positions in a group, which are on these pages.
    fn read_positions(
        &self,
        pages: (usize, PageSpan<'_>),
        positions: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError>;

    /// Stores the keys and values of some positions in a group, which are on these pages. There are
    /// as many bytes as they have.
    fn write_positions(
        &mut self,
        pages: (usize, PageSpan<'_>),
        positions: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), SessionError>;

    /// Appends some numbers of a state.
    fn read_state(
        &self,
        state: Slot,
        numbers: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError>;

    /// Stores some numbers of a state. There are as many bytes as they have.
    fn write_state(
        &mut self,
        state: Slot,
        numbers: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), SessionError>;
}

/// What the exports of a session are for.
#[derive(Debug, Clone, Copy)]
pub struct TransferScope {
    /// Of the model and its KV format.
    fingerprint: u64,
    /// Of ranges and tails.
    range_fingerprint: u64,
    max_context: usize,
}

impl TransferScope {
    /// For sessions of a backend that store KV as `kv_format`.
    pub fn new(
        source: &ModelSource,
        backend: &str,
        kv_format: &str,
        (precision, limits): (Precision, &Limits),
    ) -> Self {
        let fingerprint = fingerprint(source, kv_format);
        let spec = &source.spec;
        Self {
            fingerprint,
            range_fingerprint: range_fingerprint(fingerprint, backend, spec, precision, limits),
            max_context: limits.context,
        }
    }

    /// [`Session::range_fingerprint`](crate::Session::range_fingerprint)
    pub fn range_fingerprint(&self) -> u64 {
        self.range_fingerprint
    }
}

/// A range in the order of its bytes, of so many groups, in as few parts as possible.
fn range_parts(range: Range<usize>, groups: usize) -> impl Iterator<Item = Range<usize>> {
    let step = if groups > 1 { 1 } else { range.len().max(1) };
    let end = range.end;
    let starts = range.step_by(step);
    starts.map(move |start| start..end.min(start + step))
}

/// The pages of a sequence in a group.
struct OwnedPages {
    first: usize,
    slots: Vec<Slot>,
}

impl OwnedPages {
    fn span(&self) -> PageSpan<'_> {
        PageSpan {
            first: self.first,
            slots: &self.slots,
        }
    }
}

impl<S: TransferStorage> Sequences<S> {
    /// [`Session::export`](crate::Session::export): each group's keys and values, token after token,
    /// then the recurrent state.
    pub fn export(&self, id: SequenceId, scope: &TransferScope) -> Result<Vec<u8>, SessionError> {
        let len = self.len(id)?;
        let size = self.export_len(len).unwrap_or(0);
        let mut envelope = Envelope::new(scope.fingerprint, &self.header(id)?, size);
        let out = envelope.contents();
        for group in 0..self.group_count() {
            let pages = (group, self.pages(id, group)?);
            let positions = self.exported(group, len);
            self.storage().read_positions(pages, positions, out)?;
        }
        if let Some(state) = self.state(id)? {
            let numbers = 0..self.storage().state_len();
            self.storage().read_state(state, numbers, out)?;
        }
        Ok(envelope.seal())
    }

    /// [`Session::import`](crate::Session::import)
    pub fn import_exported(
        &mut self,
        bytes: &[u8],
        scope: &TransferScope,
    ) -> Result<SequenceId, SessionError> {
        let size = |len| self.export_len(len);
        let unsealed = unseal(bytes, scope.fingerprint, scope.max_context, size)?;
        let Unsealed {
            header,
            mut contents,
        } = unsealed;
        let len = header.len;
        self.import(header, |sequences, grant| {
            for group in 0..sequences.group_count() {
                let positions = sequences.exported(group, len);
                contents =
                    sequences.write_positions((grant.sequence, group), positions, contents)?;
            }
            if let Some(states) = &grant.states {
                let storage = sequences.storage_mut();
                let numbers = 0..storage.state_len();
                storage.write_state(states.after, numbers, contents)?;
            }
            Ok(())
        })
    }

    /// [`Session::export_range`](crate::Session::export_range): position by position, so that adjacent
    /// ranges make one.
    pub fn export_range(
        &self,
        id: SequenceId,
        range: Range<usize>,
        scope: &TransferScope,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        self.check_exported_range(id, &range)?;
        out.reserve(self.range_len(range.len(), scope).unwrap_or(0));
        let groups = self.groups_in_ranges(scope);
        for part in range_parts(range, groups.len()) {
            for group in &groups {
                let pages = (*group, self.pages(id, *group)?);
                self.storage().read_positions(pages, part.clone(), out)?;
            }
        }
        Ok(())
    }

    /// [`Session::import_range`](crate::Session::import_range)
    pub fn import_exported_range(
        &mut self,
        id: SequenceId,
        tokens: usize,
        bytes: &[u8],
        scope: &TransferScope,
    ) -> Result<(), SessionError> {
        let own = self.range_len(tokens, scope);
        let Some((bytes, media)) = own.and_then(|own| bytes.split_at_checked(own)) else {
            let why = format!("{} bytes for {tokens} tokens", bytes.len());
            return Err(SessionError::BadImport(why));
        };
        let write = |sequences: &mut Self, grant: &RowGrant| {
            let range = grant.start..grant.start + tokens;
            let (mut bytes, groups) = (bytes, sequences.groups_in_ranges(scope));
            for part in range_parts(range, groups.len()) {
                for group in &groups {
                    bytes = sequences.write_positions((id, *group), part.clone(), bytes)?;
                }
            }
            Ok(())
        };
        self.import_range(id, (tokens, scope.max_context), media, write)
    }

    /// [`Session::export_tail`](crate::Session::export_tail)
    pub fn export_tail(
        &self,
        id: SequenceId,
        len: usize,
        part: &Range<usize>,
        (scope, out): (&TransferScope, &mut Vec<u8>),
    ) -> Result<bool, SessionError> {
        self.check_tails(scope.max_context)?;
        let state = self.exported_tail(id, len)?;
        let (section, is_last) = self.tail(len, scope).exported(part)?;
        let Some(TailSection { content, units, .. }) = section else {
            return Ok(is_last);
        };
        let storage = self.storage();
        match (content, state) {
            (TailContent::Window(group), _) => {
                storage.read_positions((group, self.pages(id, group)?), units, out)?;
            }
            (TailContent::State, Some(state)) => storage.read_state(state, units, out)?,
            (TailContent::State, None) => {}
        }
        Ok(is_last)
    }

    /// [`Session::import_tail`](crate::Session::import_tail)
    pub fn import_exported_tail(
        &mut self,
        id: SequenceId,
        bytes: &[u8],
        scope: &TransferScope,
    ) -> Result<bool, SessionError> {
        self.check_tails(scope.max_context)?;
        let tail = self.tail(self.len(id)?, scope);
        let write = |sequences: &mut Self, offset: usize| {
            let state = sequences.state(id)?;
            for (section, bytes) in tail.imported(offset, bytes)? {
                let TailSection { content, units, .. } = section;
                match (content, state) {
                    (TailContent::Window(group), _) => {
                        sequences.write_positions((id, group), units, bytes)?;
                    }
                    (TailContent::State, Some(state)) => {
                        sequences.storage_mut().write_state(state, units, bytes)?;
                    }
                    (TailContent::State, None) => {}
                }
            }
            Ok(())
        };
        self.import_tail(id, (bytes.len(), tail.bytes()), write)
    }

    fn group_count(&self) -> usize {
        self.pages.groups().iter().count()
    }

    /// The groups of which sequences keep all positions. The others belong to tails.
    fn groups_in_ranges(&self, scope: &TransferScope) -> Vec<usize> {
        let groups = self.pages.groups().iter().enumerate();
        let kept = groups.filter(|(_, group)| group.keeps_all_within(scope.max_context));
        kept.map(|(index, _)| index).collect()
    }

    /// The positions of a group that a sequence of `len` tokens exports: the pages in reach of the
    /// next token. Whole pages, because the sequence can be cut wherever pages reach back far enough.
    fn exported(&self, group: usize, len: usize) -> Range<usize> {
        let granularity = self.pages.granularity();
        let group = self.pages.groups().iter().nth(group);
        let first = group.map_or(0, |group| group.first_page(len, granularity));
        first * granularity..len
    }

    /// Bytes of an exported sequence of `len` tokens.
    fn export_len(&self, len: usize) -> Option<usize> {
        // Lengths of damaged exports may have no next position.
        len.checked_add(1)?;
        let storage = self.storage();
        let mut total = if len == 0 { 0 } else { 4 * storage.state_len() };
        for group in 0..self.group_count() {
            let positions = self.exported(group, len).len();
            let bytes = positions.checked_mul(storage.position_bytes(group))?;
            total = bytes.checked_add(total)?;
        }
        Some(total)
    }

    /// Bytes of an exported range of `tokens` positions.
    fn range_len(&self, tokens: usize, scope: &TransferScope) -> Option<usize> {
        let groups = self.groups_in_ranges(scope).into_iter();
        let bytes: usize = groups
            .map(|group| self.storage().position_bytes(group))
            .sum();
        tokens.checked_mul(bytes)
    }

    /// The tail of a sequence of `len` tokens.
    fn tail(&self, len: usize, scope: &TransferScope) -> TailLayout {
        let in_ranges = self.groups_in_ranges(scope);
        let groups = (0..self.group_count()).filter(|group| !in_ranges.contains(group));
        let windows = groups.map(|group| TailSection {
            content: TailContent::Window(group),
            units: self.exported(group, len),
            unit_bytes: self.storage().position_bytes(group),
        });
        let numbers = if len == 0 {
            0
        } else {
            self.storage().state_len()
        };
        let state = TailSection {
            content: TailContent::State,
            units: 0..numbers,
            unit_bytes: size_of::<f32>(),
        };
        TailLayout::new(windows.chain([state]))
    }

    /// Stores positions of a sequence in a group, and returns the bytes after theirs.
    fn write_positions<'b>(
        &mut self,
        (id, group): (SequenceId, usize),
        positions: Range<usize>,
        bytes: &'b [u8],
    ) -> Result<&'b [u8], SessionError> {
        let own = positions.len() * self.storage().position_bytes(group);
        let (own, rest) = bytes.split_at(own);
        let span = self.pages(id, group)?;
        let pages = OwnedPages {
            first: span.first,
            slots: span.slots.to_vec(),
        };
        let storage = self.storage_mut();
        storage.write_positions((group, pages.span()), positions, own)?;
        Ok(rest)
    }
}
