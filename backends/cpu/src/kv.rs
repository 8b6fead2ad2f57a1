//! Keys and values in pages that sequences share until one of them writes.
//!
//! Pages lie side by side in few large regions of memory, and take none of it until written.

use std::collections::HashMap;

use loquat_session::{Held, SequenceId, SessionError};
use loquat_spec::ModelSpec;

use crate::arena::{Arena, Region};
use crate::kernels::{KvElement, PAGE};
use crate::marks::Marks;
use crate::page::PageLayout;
use crate::shared::PagePtr;
use crate::state::{StateId, StateLayout, StatePool};

/// A recurrent model's sequence keeps a snapshot after so many tokens, and again…
const SNAPSHOT_INTERVAL: usize = 256;
/// …but no more than its latest so many.
const MAX_SNAPSHOTS: usize = 4;

/// All sequences of a session and the pages they hold.
pub struct Cache<T: KvElement> {
    layout: PageLayout,
    /// Made when first used, kept for reuse.
    pages: Vec<Page<T>>,
    arena: Arena,
    free: Vec<u32>,
    capacity: usize,
    state_layout: StateLayout,
    states: StatePool,
    sequences: HashMap<SequenceId, Sequence>,
    max_sequences: usize,
    next_id: u64,
}

struct Page<T> {
    data: PagePtr<T>,
    /// Keeps the memory.
    _region: Region,
    holders: u32,
}

#[derive(Clone, Default)]
struct Sequence {
    len: usize,
    pages: Vec<u32>,
    /// After the last token; `None` before the first, or where no layer is recurrent.
    state: Option<StateId>,
    /// States after earlier tokens, oldest first.
    snapshots: Vec<Snapshot>,
}

#[derive(Clone, Copy)]
struct Snapshot {
    len: usize,
    state: StateId,
}

impl Sequence {
    /// Every state it holds.
    fn states(&self) -> impl Iterator<Item = StateId> {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.state);
        self.state.into_iter().chain(snapshots)
    }
}

/// The states a row of a step works with.
pub struct RowStates {
    pub before: Option<StateId>,
    pub after: StateId,
    /// Taken on the way, at these lengths.
    snapshots: Vec<Snapshot>,
}

impl RowStates {
    /// Lengths and states of the copies that are wanted on the way.
    pub fn snapshots(&self) -> impl Iterator<Item = (usize, StateId)> {
        self.snapshots.iter().map(|taken| (taken.len, taken.state))
    }
}

impl<T: KvElement> Cache<T> {
    /// A cache of at most `capacity_tokens`, rounded down to whole pages, and `max_states`
    /// recurrent states.
    pub fn new(
        spec: &ModelSpec,
        capacity_tokens: usize,
        max_states: usize,
        max_sequences: usize,
    ) -> Self {
        let state_layout = StateLayout::new(spec);
        let layout = PageLayout::new::<T>(spec);
        let page_bytes = layout.page_len() * T::BYTES;
        Self {
            arena: Arena::new((capacity_tokens / PAGE).saturating_mul(page_bytes)),
            layout,
            states: StatePool::new(state_layout.len(), max_states),
            state_layout,
            pages: Vec::new(),
            free: Vec::new(),
            capacity: capacity_tokens / PAGE,
            sequences: HashMap::new(),
            max_sequences,
            next_id: 0,
        }
    }

    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    pub fn state_layout(&self) -> &StateLayout {
        &self.state_layout
    }

    pub fn states(&self) -> &StatePool {
        &self.states
    }

    fn is_recurrent(&self) -> bool {
        self.state_layout.len() > 0
    }

    pub fn capacity_tokens(&self) -> usize {
        self.capacity * PAGE
    }

    pub fn tokens_in_use(&self) -> usize {
        (self.pages.len() - self.free.len()) * PAGE
    }

    pub fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.insert(Sequence::default())
    }

    fn insert(&mut self, sequence: Sequence) -> Result<SequenceId, SessionError> {
        if self.sequences.len() >= self.max_sequences {
            return Err(SessionError::TooManySequences {
                max: self.max_sequences,
            });
        }
        self.hold(&sequence);
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        Ok(self.get(id)?.len)
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, SessionError> {
        self.sequences
            .get(&id)
            .ok_or(SessionError::UnknownSequence(id))
    }

    /// What the sequences hold together, each page and each state once.
    pub fn held(&self, ids: &[SequenceId]) -> Result<Held, SessionError> {
        let mut pages = Marks::new(self.pages.len());
        let mut states = Marks::new(self.states.allocated());
        for id in ids {
            let sequence = self.get(*id)?;
            for page in &sequence.pages {
                pages.mark(*page as usize);
            }
            for state in sequence.states() {
                states.mark(state.index());
            }
        }
        Ok(Held {
            kv_tokens: pages.count() * PAGE,
            states: states.count(),
        })
    }

    /// The longest length up to `at_most` at which the sequence can be forked or cut.
    pub fn reusable(&self, id: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        let sequence = self.get(id)?;
        if at_most >= sequence.len || !self.is_recurrent() {
            return Ok(at_most.min(sequence.len));
        }
        let lengths = sequence.snapshots.iter().map(|snapshot| snapshot.len);
        Ok(lengths.filter(|len| *len <= at_most).max().unwrap_or(0))
    }

    /// The sequence as it was after `len` tokens.
    fn cut(&self, id: SequenceId, len: usize) -> Result<Sequence, SessionError> {
        let sequence = self.get(id)?;
        check_len(len, sequence.len)?;
        let reusable = self.reusable(id, len)?;
        if reusable != len {
            return Err(SessionError::NoSnapshot { len, reusable });
        }
        let mut snapshots = sequence.snapshots.iter();
        let at_len = snapshots.find(|snapshot| snapshot.len == len);
        let earlier = |snapshot: &&Snapshot| snapshot.len < len;
        Ok(Sequence {
            len,
            pages: sequence.pages[..len.div_ceil(PAGE)].to_vec(),
            state: match len {
                0 => None,
                _ if len == sequence.len => sequence.state,
                _ => at_len.map(|snapshot| snapshot.state),
            },
            snapshots: sequence.snapshots.iter().filter(earlier).copied().collect(),
        })
    }

    pub fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let fork = self.cut(source, len)?;
        self.insert(fork)
    }

    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), SessionError> {
        let cut = self.cut(id, len)?;
        self.hold(&cut);
        if let Some(before) = self.sequences.insert(id, cut) {
            self.drop_sequence(&before);
        }
        Ok(())
    }

    pub fn release(&mut self, id: SequenceId) -> Result<(), SessionError> {
        let sequence = self.sequences.remove(&id);
        let sequence = sequence.ok_or(SessionError::UnknownSequence(id))?;
        self.drop_sequence(&sequence);
        Ok(())
    }

    /// Counts a sequence among the holders of its pages and states.
    fn hold(&mut self, sequence: &Sequence) {
        for page in &sequence.pages {
            self.pages[*page as usize].holders += 1;
        }
        for state in sequence.states() {
            self.states.hold(state);
        }
    }

    fn drop_sequence(&mut self, sequence: &Sequence) {
        self.drop_pages(&sequence.pages);
        for state in sequence.states() {
            self.states.drop_hold(state);
        }
    }

    /// States for a row of `tokens`; `None` where the model has none. They are the caller's
    /// until [`Cache::commit`] or [`Cache::give_back`].
    pub fn take_states(
        &mut self,
        id: SequenceId,
        tokens: usize,
    ) -> Result<Option<RowStates>, SessionError> {
        if !self.is_recurrent() {
            return Ok(None);
        }
        let (before, len) = (self.get(id)?.state, self.get(id)?.len);
        while self.states.available() == 0 && self.forget_a_snapshot() {}
        let after = self.states.take()?;
        let mut snapshots = Vec::new();
        let interval = SNAPSHOT_INTERVAL;
        // The latest ones are kept, so earlier ones are not taken.
        let kept = (len + tokens).saturating_sub(MAX_SNAPSHOTS * interval);
        let first = (len.max(kept) / interval + 1) * interval;
        for len in (first..len + tokens).step_by(interval) {
            // A snapshot is a convenience: none is taken where a sequence may want the room.
            if self.states.available() > self.sequences.len() {
                let state = self.states.take()?;
                snapshots.push(Snapshot { len, state });
            }
        }
        Ok(Some(RowStates {
            before,
            after,
            snapshots,
        }))
    }

    /// Drops some sequence's oldest snapshot, which frees its state unless another holds it.
    fn forget_a_snapshot(&mut self) -> bool {
        let holders = self.sequences.iter_mut();
        let holders = holders.filter(|(_, sequence)| !sequence.snapshots.is_empty());
        let Some((_, holder)) = holders.min_by_key(|(id, _)| **id) else {
            return false;
        };
        let oldest = holder.snapshots.remove(0);
        self.states.drop_hold(oldest.state);
        true
    }

    /// Drops the states of a row that came to nothing.
    pub fn give_back(&mut self, row: RowStates) {
        self.states.drop_hold(row.after);
        for (_, state) in row.snapshots() {
            self.states.drop_hold(state);
        }
    }

    fn drop_pages(&mut self, pages: &[u32]) {
        for page in pages {
            let holders = &mut self.pages[*page as usize].holders;
            *holders -= 1;
            if *holders == 0 {
                self.free.push(*page);
            }
        }
    }

    /// Makes room for `tokens` more, so that writing them touches no shared page. The length
    /// stays as it was until [`Cache::commit`].
    pub fn reserve(&mut self, id: SequenceId, tokens: usize) -> Result<(), SessionError> {
        self.trim(id)?;
        let sequence = self.get(id)?;
        let (len, held) = (sequence.len, sequence.pages.len());
        let partial = (len % PAGE != 0).then(|| sequence.pages[held - 1]);
        let shared = partial.filter(|page| self.pages[*page as usize].holders > 1);
        let wanted = (len + tokens).div_ceil(PAGE) - held + usize::from(shared.is_some());
        let available = self.capacity - (self.pages.len() - self.free.len());
        if wanted > available {
            return Err(SessionError::KvExhausted {
                wanted: wanted * PAGE,
                available: available * PAGE,
            });
        }
        self.make_room(wanted)?;
        let mut fresh: Vec<u32> = (0..wanted).map_while(|_| self.take_page()).collect();
        if let Some(shared) = shared {
            let copy = fresh.swap_remove(0);
            self.copy_page(shared, copy);
            self.pages[shared as usize].holders -= 1;
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.pages[held - 1] = copy;
            }
        }
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.pages.append(&mut fresh);
        }
        Ok(())
    }

    /// Gives back room that was made for tokens which never came.
    pub fn trim(&mut self, id: SequenceId) -> Result<(), SessionError> {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return Err(SessionError::UnknownSequence(id));
        };
        let surplus = sequence.pages.split_off(sequence.len.div_ceil(PAGE));
        self.drop_pages(&surplus);
        Ok(())
    }

    /// Counts tokens that have been written into reserved room, and keeps their states.
    pub fn commit(&mut self, id: SequenceId, tokens: usize, states: Option<RowStates>) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Some(row) = states else {
            sequence.len += tokens;
            return;
        };
        // The state before the row stays as the nearest way back, until the next row.
        let is_regular = |snapshot: &Snapshot| snapshot.len.is_multiple_of(SNAPSHOT_INTERVAL);
        let before = sequence.state.replace(row.after).map(|state| Snapshot {
            len: sequence.len,
            state,
        });
        let (regular, passed) = sequence.snapshots.drain(..).partition(is_regular);
        let mut dropped: Vec<Snapshot> = passed;
        sequence.snapshots = regular;
        sequence.snapshots.extend(before);
        sequence.snapshots.extend(row.snapshots);
        let surplus = sequence.snapshots.len().saturating_sub(MAX_SNAPSHOTS);
        dropped.extend(sequence.snapshots.drain(..surplus));
        sequence.len += tokens;
        for snapshot in dropped {
            self.states.drop_hold(snapshot.state);
        }
    }

    /// Makes pages until so many are free.
    fn make_room(&mut self, wanted: usize) -> Result<(), SessionError> {
        let len = self.layout.page_len();
        while self.free.len() < wanted {
            // The system may give less than was planned with.
            let Ok(mut region) = self.arena.allocate(len * T::BYTES) else {
                return Err(SessionError::KvExhausted {
                    wanted: wanted * PAGE,
                    available: self.free.len() * PAGE,
                });
            };
            let start = region.bytes_mut().as_mut_ptr();
            self.free.push(self.pages.len() as u32);
            self.pages.push(Page {
                data: PagePtr::new(start.cast(), len),
                _region: region,
                holders: 0,
            });
        }
        Ok(())
    }

    /// A page of the caller's own, of those that [`Cache::make_room`] made.
    fn take_page(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.pages[page as usize].holders = 1;
        Some(page)
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        let [from, to] = [from, to].map(|page| self.pages[page as usize].data);
        // SAFETY: both belong to this cache, which nobody else touches through `&mut self`.
        unsafe { to.copy_from(from) };
    }

    /// The page a position of the sequence lies in.
    pub fn page_of(&self, id: SequenceId, position: usize) -> Option<PagePtr<T>> {
        let page = *self.sequences.get(&id)?.pages.get(position / PAGE)?;
        Some(self.pages[page as usize].data)
    }

    /// The sequence's pages, oldest first.
    pub fn pages(&self, id: SequenceId) -> impl Iterator<Item = PagePtr<T>> {
        let sequence = self.sequences.get(&id);
        let pages = sequence.map_or(&[][..], |sequence| &sequence.pages);
        pages.iter().map(|page| self.pages[*page as usize].data)
    }

    /// Bytes of an exported sequence of `len` tokens.
    pub fn export_len(&self, len: usize) -> Option<usize> {
        let tokens = len.checked_mul(self.layout.token_len() * T::BYTES)?;
        let state = if len == 0 {
            0
        } else {
            self.state_layout.len() * 4
        };
        tokens.checked_add(state)
    }

    /// All tokens' elements, token after token, then the recurrent state.
    pub fn export_tokens(&self, id: SequenceId, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let sequence = self.get(id)?;
        for position in 0..sequence.len {
            let page = self.pages[sequence.pages[position / PAGE] as usize].data;
            // SAFETY: steps need `&mut self`, so nobody writes while this borrow lives.
            let page = unsafe { page.slice(0, self.layout.page_len()) };
            for layer in self.layout.layers() {
                for place in layer.token_indices(position % PAGE) {
                    page[place].to_bytes(out);
                }
            }
        }
        if let Some(state) = sequence.state {
            // SAFETY: as above.
            let state = unsafe { self.states.data(state).slice(0, self.state_layout.len()) };
            out.extend(state.iter().flat_map(|value| value.to_le_bytes()));
        }
        Ok(())
    }

    /// Makes a sequence of `len` tokens from exported bytes, which the caller has measured.
    pub fn import_tokens(&mut self, len: usize, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let id = self.create()?;
        let room = match self.reserve(id, len) {
            Ok(()) if len > 0 => self.take_states(id, 0),
            other => other.map(|()| None),
        };
        let states = match room {
            Ok(states) => states,
            Err(error) => {
                self.release(id)?;
                return Err(error);
            }
        };
        let (tokens, state) = bytes.split_at(len * self.layout.token_len() * T::BYTES);
        let mut elements = tokens.chunks_exact(T::BYTES).map(T::from_bytes);
        for position in 0..len {
            let Some(page) = self.page_of(id, position) else {
                break;
            };
            for layer in self.layout.layers() {
                for place in layer.token_indices(position % PAGE) {
                    // SAFETY: the page is this new sequence's own, reached through `&mut self`.
                    unsafe { page.write(place, elements.next().unwrap_or_default()) };
                }
            }
        }
        if let Some(states) = &states {
            let data = self.states.data(states.after);
            // SAFETY: the state is this new sequence's own, reached through `&mut self`.
            let values = unsafe { data.slice_mut(0, self.state_layout.len()) };
            for (value, bytes) in values.iter_mut().zip(state.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
        self.commit(id, len, states);
        Ok(id)
    }
}

fn check_len(len: usize, available: usize) -> Result<(), SessionError> {
    if len <= available {
        Ok(())
    } else {
        Err(SessionError::LengthOutOfRange { len, available })
    }
}

#[cfg(test)]
mod tests {
    use loquat_testkit::goldens;

    use super::*;

    fn cache(family: &str) -> Cache<f32> {
        let source = goldens::source(&goldens::family(family)).unwrap();
        Cache::new(&source.spec, 64 * PAGE, 64, 16)
    }

    fn append(cache: &mut Cache<f32>, id: SequenceId, tokens: usize) {
        cache.reserve(id, tokens).unwrap();
        let states = cache.take_states(id, tokens).unwrap();
        cache.commit(id, tokens, states);
    }

    fn sequence(cache: &mut Cache<f32>, tokens: usize) -> SequenceId {
        let id = cache.create().unwrap();
        append(cache, id, tokens);
        id
    }

    /// Pages, not tokens.
    fn pages(cache: &Cache<f32>, ids: &[SequenceId]) -> usize {
        let held = cache.held(ids).unwrap();
        assert_eq!(held.kv_tokens % PAGE, 0);
        held.kv_tokens / PAGE
    }

    #[test]
    fn a_sequence_holds_whole_pages() {
        let mut cache = cache("llama");
        assert_eq!(cache.held(&[]), Ok(Held::default()));
        for (tokens, expected) in [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (3 * PAGE, 3)] {
            let id = sequence(&mut cache, tokens);
            assert_eq!(pages(&cache, &[id]), expected, "{tokens} tokens");
            assert_eq!(pages(&cache, &[id, id]), expected, "named twice");
            cache.release(id).unwrap();
            assert_eq!(cache.held(&[id]), Err(SessionError::UnknownSequence(id)));
        }
    }

    #[test]
    fn what_forks_share_counts_once() {
        let mut cache = cache("llama");
        let source = sequence(&mut cache, 2 * PAGE + 5);
        let whole_pages = cache.fork(source, 2 * PAGE).unwrap();
        let tail_too = cache.fork(source, 2 * PAGE + 3).unwrap();
        let all = [source, whole_pages, tail_too];
        assert_eq!(pages(&cache, &all), 3);
        assert_eq!(pages(&cache, &[whole_pages]), 2);
        assert_eq!(pages(&cache, &[tail_too]), 3);
        // Each writes on: one into a page of its own, the other into a copy of the shared tail.
        append(&mut cache, whole_pages, 1);
        append(&mut cache, tail_too, 1);
        assert_eq!(pages(&cache, &all), 5);
        assert_eq!(pages(&cache, &[source, tail_too]), 4);
        assert_eq!(cache.tokens_in_use(), 5 * PAGE);
        // What the source alone held goes with it: its tail.
        cache.release(source).unwrap();
        assert_eq!(pages(&cache, &[whole_pages, tail_too]), 4);
        assert_eq!(cache.tokens_in_use(), 4 * PAGE);
        cache.truncate(tail_too, PAGE).unwrap();
        assert_eq!(pages(&cache, &[whole_pages, tail_too]), 3);
    }

    #[test]
    fn states_and_snapshots_count_once() {
        let mut cache = cache("qwen3_next");
        let states = |cache: &Cache<f32>, ids: &[SequenceId]| cache.held(ids).unwrap().states;
        let source = cache.create().unwrap();
        assert_eq!(states(&cache, &[source]), 0);
        append(&mut cache, source, 2 * SNAPSHOT_INTERVAL + 1);
        assert_eq!(states(&cache, &[source]), 3, "its own and two snapshots");
        let fork = cache.fork(source, SNAPSHOT_INTERVAL).unwrap();
        assert_eq!(states(&cache, &[fork]), 1);
        assert_eq!(states(&cache, &[source, fork]), 3);
        // The fork's new state; the one it came from is a snapshot of both.
        append(&mut cache, fork, 1);
        assert_eq!(states(&cache, &[fork]), 2);
        assert_eq!(states(&cache, &[source, fork]), 4);
        assert_eq!(cache.states().in_use(), 4);
        cache.release(source).unwrap();
        assert_eq!(states(&cache, &[fork]), 2);
        assert_eq!(cache.states().in_use(), 2);
    }
}
