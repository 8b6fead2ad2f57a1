//! Keys and values in pages, and recurrent states in buffers. The session's
//! [`Sequences`](loquat_session::sequences::Sequences) decide which sequence uses which.
//!
//! Pages are adjacent in a few large regions, for which the system allocates memory on first write.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::{KvElement, PAGE, PagePtr};
use loquat_session::sequences::{CopyOnWrite, SequenceStorage, Slot};
use loquat_session::{KvFormat, MediaId};
use loquat_spec::ModelSpec;

use crate::arena::{Arena, Region};
use crate::page::PageLayout;
use crate::recurrent_state::{StateBuffers, StateLayout};

pub struct KvStorage<T: KvElement> {
    layout: PageLayout,
    /// Allocated when first used, kept for reuse.
    pages: Vec<Page<T>>,
    arena: Arena,
    state_layout: StateLayout,
    states: StateBuffers,
    media: BTreeMap<MediaId, Arc<MediaFeatures>>,
}

/// Encoded media.
pub struct MediaFeatures {
    /// `[level][position][hidden]`
    pub values: Vec<f32>,
    pub positions: usize,
    pub hidden: usize,
}

impl MediaFeatures {
    /// `None` if there are fewer levels.
    pub fn row(&self, level: usize, position: usize) -> Option<&[f32]> {
        let at = (level * self.positions + position) * self.hidden;
        self.values.get(at..at + self.hidden)
    }
}

struct Page<T> {
    data: PagePtr<T>,
    /// Owns the memory.
    _region: Region,
}

impl<T: KvElement> SequenceStorage for KvStorage<T> {
    const COPY_ON_WRITE: CopyOnWrite = CopyOnWrite::Page;

    type Sequence = ();

    fn share(&mut self, _source: &(), _len: usize) {}

    fn release(&mut self, _sequence: ()) {}

    fn allocate_pages(&mut self, count: usize) -> usize {
        let len = self.layout.page_len();
        while self.pages.len() < count
            && let Ok(mut region) = self.arena.allocate(len * T::BYTES)
        {
            let start = region.bytes_mut().as_mut_ptr();
            self.pages.push(Page {
                data: PagePtr::new(start.cast(), len),
                _region: region,
            });
        }
        self.pages.len()
    }

    fn copy_page(&mut self, from: Slot, to: Slot) {
        let [from, to] = [from, to].map(|page| self.page(page));
        // SAFETY: both belong to this storage, which `&mut self` borrows exclusively.
        unsafe { to.copy_from(from) };
    }

    fn allocate_state(&mut self, state: Slot) {
        self.states.allocate(state);
    }

    fn free_media(&mut self, media: MediaId) {
        self.media.remove(&media);
    }
}

impl<T: KvElement> KvStorage<T> {
    /// Storage for about `capacity_tokens`.
    pub fn new(spec: &ModelSpec, format: &KvFormat, capacity_tokens: usize) -> Self {
        let state_layout = StateLayout::new(spec);
        let layout = PageLayout::new(spec, format);
        let page_bytes = layout.page_len() * T::BYTES;
        Self {
            arena: Arena::new((capacity_tokens / PAGE).saturating_mul(page_bytes)),
            layout,
            states: StateBuffers::new(state_layout.len()),
            state_layout,
            pages: Vec::new(),
            media: BTreeMap::new(),
        }
    }

    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    pub fn state_layout(&self) -> &StateLayout {
        &self.state_layout
    }

    pub fn insert_media(&mut self, id: MediaId, features: MediaFeatures) {
        self.media.insert(id, Arc::new(features));
    }

    pub fn media(&self, id: MediaId) -> Option<&Arc<MediaFeatures>> {
        self.media.get(&id)
    }

    pub fn page(&self, page: Slot) -> PagePtr<T> {
        self.pages[page.index()].data
    }

    pub fn state(&self, state: Slot) -> PagePtr<f32> {
        self.states.data(state)
    }

    /// Bytes of an exported sequence of `len` tokens.
    pub fn export_len(&self, len: usize) -> Option<usize> {
        let tokens = len.checked_mul(self.layout.export_len::<T>())?;
        let state = if len == 0 {
            0
        } else {
            self.state_layout.len() * 4
        };
        tokens.checked_add(state)
    }

    /// Bytes of an exported range of `tokens` positions.
    pub fn range_len(&self, tokens: usize) -> Option<usize> {
        tokens.checked_mul(self.layout.export_len::<T>())
    }

    /// Appends all tokens' keys and values, token after token, then the recurrent state.
    pub fn export(&self, len: usize, pages: &[Slot], state: Option<Slot>, out: &mut Vec<u8>) {
        self.export_range(0..len, pages, out);
        if let Some(state) = state {
            // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
            let state = unsafe { self.state(state).slice(0, self.state_layout.len()) };
            out.extend(state.iter().flat_map(|value| value.to_le_bytes()));
        }
    }

    /// Appends keys and values, token after token.
    pub fn export_range(&self, range: Range<usize>, pages: &[Slot], out: &mut Vec<u8>) {
        out.reserve(range.len() * self.layout.export_len::<T>());
        for position in range {
            let page = self.page(pages[position / PAGE]);
            for head in self.layout.heads() {
                // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
                unsafe { T::export_head(page, &head, position % PAGE, out) };
            }
        }
    }

    /// Fills a new sequence's pages and state from exported bytes of the right length.
    pub fn import(&mut self, len: usize, pages: &[Slot], state: Option<Slot>, bytes: &[u8]) {
        let (tokens, state_bytes) = bytes.split_at(len * self.layout.export_len::<T>());
        self.import_range(0..len, pages, tokens);
        if let Some(state) = state {
            // SAFETY: the state is this new sequence's own, reached through `&mut self`.
            let values = unsafe { self.state(state).slice_mut(0, self.state_layout.len()) };
            for (value, bytes) in values.iter_mut().zip(state_bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }

    /// Fills positions of a sequence's pages from exported bytes of the right length.
    pub fn import_range(&mut self, range: Range<usize>, pages: &[Slot], bytes: &[u8]) {
        let mut tokens = bytes;
        for position in range {
            let page = self.page(pages[position / PAGE]);
            for head in self.layout.heads() {
                let (of_head, rest) = tokens.split_at(T::export_len(&head));
                // SAFETY: the caller's sequence alone writes to the page, and `&mut self` excludes
                // readers.
                unsafe { T::import_head(page, &head, position % PAGE, of_head) };
                tokens = rest;
            }
        }
    }
}
