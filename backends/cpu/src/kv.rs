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
use loquat_session::sequences::{CopyOnWrite, PageSpan, SequenceStorage, Slot};
use loquat_session::transfer::{TailContent, TailLayout, TailSection};
use loquat_session::{KvFormat, MediaId};
use loquat_spec::ModelSpec;

use crate::arena::{Arena, Region};
use crate::page::PageLayout;
use crate::recurrent_state::StateBuffers;

pub struct KvStorage<T: KvElement> {
    layout: PageLayout,
    /// Whether ranges contain a group: sequences keep all of it. The others belong to tails.
    in_ranges: Vec<bool>,
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
    /// Storage for about `capacity_tokens` tokens' worth of sequences of up to `context` tokens.
    pub fn new(
        spec: &ModelSpec,
        format: &KvFormat,
        (capacity_tokens, context): (usize, usize),
    ) -> Self {
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
            in_ranges: kv_groups
                .iter()
                .map(|group| group.keeps_all_within(context))
                .collect(),
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

    /// The positions of a group that a sequence of `len` tokens exports: the pages in reach of the
    /// next token. Whole pages, because the sequence can be cut wherever pages reach back far enough.
    fn exported(&self, group: usize, len: usize) -> Range<usize> {
        self.layout.reach(group).first_seen(len) / PAGE * PAGE..len
    }

    /// Bytes of an exported sequence of `len` tokens.
    pub fn export_len(&self, len: usize) -> Option<usize> {
        // Lengths of damaged exports may have no next position.
        len.checked_add(1)?;
        let mut total = if len == 0 {
            0
        } else {
            self.state_layout.len() * 4
        };
        for group in 0..self.layout.groups() {
            let tokens = self.exported(group, len).len();
            let bytes = tokens.checked_mul(self.layout.export_len::<T>(group))?;
            total = bytes.checked_add(total)?;
        }
        Some(total)
    }

    /// Appends each group's keys and values, token after token, then the recurrent state.
    pub fn export(
        &self,
        len: usize,
        pages: &[PageSpan<'_>],
        state: Option<Slot>,
        out: &mut Vec<u8>,
    ) {
        for (group, span) in pages.iter().enumerate() {
            self.export_positions((group, *span), self.exported(group, len), out);
        }
        if let Some(state) = state {
            // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
            let state = unsafe { self.state(state).slice(0, self.state_layout.len()) };
            out.extend(state.iter().flat_map(|value| value.to_le_bytes()));
        }
    }

    /// Bytes of an exported range of `tokens` positions.
    pub fn range_len(&self, tokens: usize) -> Option<usize> {
        let groups = (0..self.layout.groups()).filter(|group| self.in_ranges[*group]);
        let of_token: usize = groups.map(|group| self.layout.export_len::<T>(group)).sum();
        tokens.checked_mul(of_token)
    }

    /// Appends the keys and values of a range, position by position, so that adjacent ranges make
    /// one.
    pub fn export_range(&self, range: Range<usize>, pages: &[PageSpan<'_>], out: &mut Vec<u8>) {
        out.reserve(self.range_len(range.len()).unwrap_or(0));
        for position in range {
            for (group, span) in pages.iter().enumerate() {
                if self.in_ranges[group] {
                    self.export_positions((group, *span), position..position + 1, out);
                }
            }
        }
    }

    /// The tail of a sequence of `len` tokens.
    pub fn tail(&self, len: usize) -> TailLayout {
        let groups = (0..self.layout.groups()).filter(|group| !self.in_ranges[*group]);
        let windows = groups.map(|group| TailSection {
            content: TailContent::Window(group),
            units: self.exported(group, len),
            unit_bytes: self.layout.export_len::<T>(group),
        });
        let state = TailSection {
            content: TailContent::State,
            units: 0..if len == 0 { 0 } else { self.state_layout.len() },
            unit_bytes: size_of::<f32>(),
        };
        TailLayout::new(windows.chain([state]))
    }

    /// Appends a part of a tail.
    pub fn export_tail(
        &self,
        section: TailSection,
        (pages, state): (&[PageSpan<'_>], Option<Slot>),
        out: &mut Vec<u8>,
    ) {
        match (section.content, state) {
            (TailContent::Window(group), _) => {
                self.export_positions((group, pages[group]), section.units, out);
            }
            (TailContent::State, Some(state)) => {
                // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
                let state = unsafe { self.state(state).slice(0, self.state_layout.len()) };
                let numbers = state[section.units].iter();
                out.extend(numbers.flat_map(|value| value.to_le_bytes()));
            }
            (TailContent::State, None) => {}
        }
    }

    /// Stores a part of a tail.
    pub fn import_tail(
        &mut self,
        section: TailSection,
        (pages, state): (&[(usize, Vec<Slot>)], Option<Slot>),
        bytes: &[u8],
    ) {
        match (section.content, state) {
            (TailContent::Window(group), _) => {
                let (first, slots) = &pages[group];
                self.import_positions((group, *first, slots), section.units, bytes);
            }
            (TailContent::State, Some(state)) => {
                // SAFETY: the state is this new sequence's own, reached through `&mut self`.
                let values = unsafe { self.state(state).slice_mut(0, self.state_layout.len()) };
                let values = values[section.units].iter_mut();
                for (value, bytes) in values.zip(bytes.as_chunks::<4>().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            (TailContent::State, None) => {}
        }
    }

    fn export_positions(
        &self,
        (group, span): (usize, PageSpan<'_>),
        positions: Range<usize>,
        out: &mut Vec<u8>,
    ) {
        for position in positions {
            let page = self.page(group, span.slots[position / PAGE - span.first]);
            for head in self.layout.heads(group) {
                // SAFETY: steps need `&mut self`, so nothing writes during this borrow.
                unsafe { T::export_head(page, &head, position % PAGE, out) };
            }
        }
    }

    /// Fills a new sequence's pages, by group, and its state from exported bytes of the right
    /// length.
    pub fn import(
        &mut self,
        len: usize,
        pages: &[(usize, Vec<Slot>)],
        state: Option<Slot>,
        bytes: &[u8],
    ) {
        let mut bytes = bytes;
        for (group, (first, slots)) in pages.iter().enumerate() {
            let positions = self.exported(group, len);
            bytes = self.import_positions((group, *first, slots), positions, bytes);
        }
        if let Some(state) = state {
            // SAFETY: the state is this new sequence's own, reached through `&mut self`.
            let values = unsafe { self.state(state).slice_mut(0, self.state_layout.len()) };
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }

    /// Fills positions of a sequence's pages from an exported range of the right length.
    pub fn import_range(
        &mut self,
        range: Range<usize>,
        pages: &[(usize, Vec<Slot>)],
        bytes: &[u8],
    ) {
        let mut bytes = bytes;
        for position in range {
            for (group, (first, slots)) in pages.iter().enumerate() {
                if self.in_ranges[group] {
                    let position = position..position + 1;
                    bytes = self.import_positions((group, *first, slots), position, bytes);
                }
            }
        }
    }

    /// Returns the bytes after those of the positions.
    fn import_positions<'b>(
        &mut self,
        (group, first, slots): (usize, usize, &[Slot]),
        positions: Range<usize>,
        mut bytes: &'b [u8],
    ) -> &'b [u8] {
        for position in positions {
            let page = self.page(group, slots[position / PAGE - first]);
            for head in self.layout.heads(group) {
                let (of_head, rest) = bytes.split_at(T::export_len(&head));
                // SAFETY: the caller's sequence alone writes to the page, and `&mut self` excludes
                // readers.
                unsafe { T::import_head(page, &head, position % PAGE, of_head) };
                bytes = rest;
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use loquat_session::sequences::{MediaRules, SequenceLimits, Sequences};
    use loquat_session::{AdapterLimits, SequenceId, SessionError};
    use loquat_testkit::goldens;

    use super::*;

    const CAPACITY: usize = 1000 * PAGE;

    /// Sequences of a model with windows of a few tokens.
    fn windowed() -> Sequences<KvStorage<f32>> {
        let source = goldens::source(&goldens::family("gemma3_text")).unwrap();
        let storage = KvStorage::new(&source.spec, &KvFormat::F32, (CAPACITY, CAPACITY));
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
