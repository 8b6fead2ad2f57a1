use super::Slot;
use crate::MediaId;

/// What a backend stores for the [`Sequences`](super::Sequences) of a session.
///
/// The bookkeeping decides which page and which state a sequence refers to; the storage keeps
/// their contents. Each [group](crate::KvGroup) of layers has pages of its own, which hold as many
/// tokens as those of other groups. An index below a limit names each page of a group and each state, so that a storage can
/// be an array of buffers, a table of device pages, or nothing at all.
pub trait SequenceStorage {
    /// When a sequence may write to pages that it shares.
    const COPY_ON_WRITE: CopyOnWrite;

    /// What the backend keeps for one sequence besides its pages and states.
    type Sequence: Default;

    /// What a new sequence keeps that shares the first `len` tokens of `source`. `source` is
    /// unchanged.
    fn share(&mut self, source: &Self::Sequence, len: usize) -> Self::Sequence;

    /// Frees what only this sequence held.
    fn release(&mut self, sequence: Self::Sequence);

    /// Allocates a group's pages below `count`. Returns how many are allocated: fewer only when the
    /// device has no more memory.
    fn allocate_pages(&mut self, _group: usize, count: usize) -> usize {
        count
    }

    /// A page gets its first reference, and is about to be written. All pages that have one fit
    /// [`SequenceLimits::kv_tokens`](super::SequenceLimits::kv_tokens).
    fn acquire_page(&mut self, _group: usize, _page: Slot) {}

    /// Nothing refers to the page any more. It may be acquired again.
    fn free_page(&mut self, _group: usize, _page: Slot) {}

    /// Copies a page for a sequence that is about to write to it.
    fn copy_page(&mut self, group: usize, from: Slot, to: Slot);

    /// Allocates a state that is about to be written, unless it is allocated already.
    fn allocate_state(&mut self, _state: Slot) {}

    /// Drops the contents of a state that nothing refers to.
    fn free_state(&mut self, _state: Slot) {}

    /// Drops the features of media that nothing refers to.
    fn free_media(&mut self, _media: MediaId) {}
}

/// How a sequence gets pages of its own before it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOnWrite {
    /// Page by page: only a shared last page is copied, and unused pages are freed.
    Page,
    /// All pages of a sequence form one array: a shared array is replaced as a whole, and keeps
    /// its pages until the sequence is empty.
    Sequence,
}
