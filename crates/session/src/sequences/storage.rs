use super::Slot;
use crate::MediaId;

/// What a backend stores for the [`Sequences`](super::Sequences) of a session.
///
/// The bookkeeping decides which page and which state a sequence refers to; the storage keeps
/// their contents. An index below a limit names each page and each state, so that a storage can
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

    /// Allocates the pages below `count`. Returns how many are allocated: fewer only when the
    /// device has no more memory.
    fn allocate_pages(&mut self, count: usize) -> usize {
        count
    }

    /// Copies a page for a sequence that is about to write to it.
    fn copy_page(&mut self, from: Slot, to: Slot);

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
