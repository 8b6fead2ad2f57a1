//! Keys and values in pages, and recurrent states in buffers. The session's
//! [`Sequences`](loquat_session::sequences::Sequences) decide which sequence uses which.
//!
//! Pages of a group are adjacent in a few large regions, for which the system allocates memory on
//! first write. Pages that are not in use keep it for reuse, unless pages of another group need it:
//! then it is given back, so that all groups together stay within the budget.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use loquat_cpu_kernels::{KvElement, PAGE, PagePtr};
use loquat_session::recurrent_state::StateLayout;
use loquat_session::sequences::{CopyOnWrite, PageSpan, SequenceStorage, Slot, TransferStorage};
use loquat_session::{KvFormat, MediaId, SessionError};
use loquat_spec::ModelSpec;

use crate::arena::{Arena, Region};
use crate::page::PageLayout;
use crate::recurrent_state::StateBuffers;

pub struct KvStorage<T: KvElement> {
    layout: PageLayout,
    /// By group.
    groups: Vec<GroupPages<T>>,
    /// Bytes of the pages that have memory.
    backed_bytes: usize,
    /// What the pages in use may take.
    capacity_bytes: usize,
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

/// The pages of a group, allocated when first used.
struct GroupPages<T> {
    pages: Vec<Page<T>>,
    arena: Arena,
}

struct Page<T> {
    data: PagePtr<T>,
    /// Owns the memory.
    region: Region,
    /// No sequence refers to it.
    is_idle: bool,
    /// It was written since it was allocated or given back.
    is_backed: bool,
}

impl<T: KvElement> SequenceStorage for KvStorage<T> {
    const COPY_ON_WRITE: CopyOnWrite = CopyOnWrite::Page;

    type Sequence = ();

    fn share(&mut self, _source: &(), _len: usize) {}

    fn release(&mut self, _sequence: ()) {}

    fn allocate_pages(&mut self, group: usize, count: usize) -> usize {
        let len = self.layout.page_len(group);
        let GroupPages { pages, arena } = &mut self.groups[group];
        while pages.len() < count
            && let Ok(mut region) = arena.allocate(len * T::BYTES)
        {
            let start = region.bytes_mut().as_mut_ptr();
            pages.push(Page {
                data: PagePtr::new(start.cast(), len),
                region,
                is_idle: true,
                is_backed: false,
            });
        }
        pages.len()
    }

    fn acquire_page(&mut self, group: usize, page: Slot) {
        let page = &mut self.groups[group].pages[page.index()];
        page.is_idle = false;
        if std::mem::replace(&mut page.is_backed, true) {
            return;
        }
        self.backed_bytes += page.region.len();
        if self.backed_bytes > self.capacity_bytes {
            self.give_back_idle();
        }
    }

    fn free_page(&mut self, group: usize, page: Slot) {
        self.groups[group].pages[page.index()].is_idle = true;
    }

    fn copy_page(&mut self, group: usize, from: Slot, to: Slot) {
        let [from, to] = [from, to].map(|page| self.page(group, page));
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
    /// Storage for about `capacity_tokens` tokens' worth of sequences.
    pub fn new(spec: &ModelSpec, format: &KvFormat, capacity_tokens: usize) -> Self {
        let state_layout = StateLayout::new(spec);
        let layout = PageLayout::new(spec, format);
        let kv_groups = layout.kv_groups::<T>();
        let token_bytes = kv_groups.bytes_per_token();
        let capacity_bytes = capacity_tokens.saturating_mul(token_bytes as usize);
        let groups = (0..layout.groups()).map(|_| GroupPages {
            pages: Vec::new(),
            arena: Arena::new(capacity_bytes),
        });
        Self {
            groups: groups.collect(),
            backed_bytes: 0,
            capacity_bytes,
            layout,
            states: StateBuffers::new(state_layout.len()),
            state_layout,
            media: BTreeMap::new(),
        }
    }

    /// Gives the memory of all pages that no sequence refers to back to the system.
    fn give_back_idle(&mut self) {
        let pages = self.groups.iter_mut().flat_map(|group| &mut group.pages);
        for page in pages.filter(|page| page.is_idle && page.is_backed) {
            if page.region.give_back() {
                page.is_backed = false;
                self.backed_bytes -= page.region.len();
            }
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

    pub fn page(&self, group: usize, page: Slot) -> PagePtr<T> {
        self.groups[group].pages[page.index()].data
    }

    pub fn state(&self, state: Slot) -> PagePtr<f32> {
        self.states.data(state)
    }
}

impl<T: KvElement> TransferStorage for KvStorage<T> {
    fn position_bytes(&self, group: usize) -> usize {
        self.layout.export_len::<T>(group)
    }

    fn state_len(&self) -> usize {
        self.state_layout.len()
    }

    fn read_positions(
        &self,
        (group, span): (usize, PageSpan<'_>),
        positions: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        for position in positions {
            let page = self.page(group, span.slots[position / PAGE - span.first]);
            for head in self.layout.heads(group) {
                // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
                unsafe { T::export_head(page, &head, position % PAGE, out) };
            }
        }
        Ok(())
    }

    fn write_positions(
        &mut self,
        (group, span): (usize, PageSpan<'_>),
        positions: Range<usize>,
        mut bytes: &[u8],
    ) -> Result<(), SessionError> {
        for position in positions {
            let page = self.page(group, span.slots[position / PAGE - span.first]);
            for head in self.layout.heads(group) {
                let (of_head, rest) = bytes.split_at(T::export_len(&head));
                // SAFETY: the caller's sequence alone writes to the page, and `&mut self` excludes
                // readers.
                unsafe { T::import_head(page, &head, position % PAGE, of_head) };
                bytes = rest;
            }
        }
        Ok(())
    }

    fn read_state(
        &self,
        state: Slot,
        numbers: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
        let state = unsafe { self.state(state).slice(0, self.state_layout.len()) };
        let numbers = state[numbers].iter();
        out.extend(numbers.flat_map(|value| value.to_le_bytes()));
        Ok(())
    }

    fn write_state(
        &mut self,
        state: Slot,
        numbers: Range<usize>,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        // SAFETY: the state is this sequence's own, reached through `&mut self`.
        let values = unsafe { self.state(state).slice_mut(0, self.state_layout.len()) };
        for (value, bytes) in values[numbers].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use loquat_session::sequences::{MediaRules, SequenceLimits, Sequences};
    use loquat_session::{AdapterLimits, SequenceId};
    use loquat_testkit::goldens;

    use super::*;

    const CAPACITY: usize = 1000 * PAGE;

    /// Sequences of a model with windows of a few tokens.
    fn windowed() -> Sequences<KvStorage<f32>> {
        let source = goldens::source(&goldens::family("gemma3_text")).unwrap();
        let storage = KvStorage::new(&source.spec, &KvFormat::F32, CAPACITY);
        assert_eq!(storage.layout.groups(), 2);
        let limits = SequenceLimits {
            kv_tokens: CAPACITY,
            kv_groups: storage.layout.kv_groups::<f32>(),
            granularity: PAGE,
            states: 0,
            max_sequences: 2000,
            snapshots: None,
            media: MediaRules::default(),
            adapters: AdapterLimits::NONE,
        };
        Sequences::new(storage, limits)
    }

    fn import(sequences: &mut Sequences<KvStorage<f32>>, len: usize) -> SequenceId {
        let header = loquat_session::sequences::SequenceHeader {
            len,
            ..Default::default()
        };
        let imported = sequences.import(header, |sequences, grant| {
            for group in 0..2 {
                let len = sequences.storage().layout.page_len(group);
                let slots = sequences.pages(grant.sequence, group)?.slots.to_vec();
                for slot in slots {
                    let page = sequences.storage().page(group, slot);
                    // SAFETY: the page is this sequence's own.
                    unsafe { page.slice_mut(0, len) }.fill(1.0);
                }
            }
            Ok::<_, SessionError>(())
        });
        imported.unwrap()
    }

    /// Pages that sequences wrote and gave up do not keep the memory that other groups need.
    #[test]
    fn all_groups_stay_within_the_budget() {
        let mut sequences = windowed();
        // Short sequences use pages of both groups equally.
        let short: Vec<SequenceId> = (0..1000).map(|_| import(&mut sequences, PAGE)).collect();
        let storage = sequences.storage();
        assert_eq!(storage.backed_bytes, storage.capacity_bytes);
        assert_eq!(sequences.available_tokens(), 0);
        for id in short {
            sequences.release(id).unwrap();
        }
        let windows = sequences.storage().groups[1].pages.len();
        // A long one needs more pages for all tokens, and few for the windows.
        let len = 1500 * PAGE;
        import(&mut sequences, len);
        let storage = sequences.storage();
        assert_eq!(storage.groups[0].pages.len(), 1500);
        assert!(storage.backed_bytes <= storage.capacity_bytes);
        let backed = storage.groups[1].pages.iter().filter(|page| page.is_backed);
        assert!(backed.count() < windows);
        // The system reads memory that it got back as zeros.
        #[cfg(target_os = "linux")]
        for page in storage.groups[1]
            .pages
            .iter()
            .filter(|page| !page.is_backed)
        {
            let bytes = page.region.bytes();
            let size = bytes.len();
            assert!(
                bytes[size / 2..size / 2 + 4096.min(size / 4)]
                    .iter()
                    .all(|byte| *byte == 0)
            );
        }
    }
}
