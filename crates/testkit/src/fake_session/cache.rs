//! Who holds what: sequences, the pages of their KV, and a recurrent model's states. Nothing
//! is stored in pages and states; they are counted as a device counts them.

use std::collections::BTreeMap;

use loquat_session::{Held, SequenceId, SessionError};

use super::model::History;
use super::options::{FakeOptions, Snapshots};
use super::pool::{Place, Pool};

pub struct Cache {
    granularity: usize,
    max_sequences: usize,
    /// `None`: the model is not recurrent.
    keeping: Option<Snapshots>,
    pages: Pool,
    states: Pool,
    sequences: BTreeMap<SequenceId, Sequence>,
    next_id: u64,
}

#[derive(Default)]
struct Sequence {
    history: History,
    pages: Vec<Place>,
    /// After the last token; `None` before the first, or where the model is not recurrent.
    state: Option<Place>,
    /// States after earlier tokens, oldest first.
    snapshots: Vec<Snapshot>,
}

#[derive(Clone, Copy)]
struct Snapshot {
    len: usize,
    state: Place,
}

impl Sequence {
    /// Every state it holds.
    fn states(&self) -> impl Iterator<Item = Place> {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.state);
        self.state.into_iter().chain(snapshots)
    }
}

/// The states that a row of a step writes: the last one, and those on the way.
pub struct RowStates {
    after: Place,
    snapshots: Vec<Snapshot>,
}

impl Cache {
    pub fn new(options: &FakeOptions) -> Self {
        Self {
            granularity: options.kv_granularity,
            max_sequences: options.max_sequences,
            keeping: options.snapshots,
            pages: Pool::new(options.kv_capacity / options.kv_granularity),
            states: Pool::new(options.max_states),
            sequences: BTreeMap::new(),
            next_id: 0,
        }
    }

    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    pub fn capacity_tokens(&self) -> usize {
        self.pages.capacity() * self.granularity
    }

    pub fn tokens_in_use(&self) -> usize {
        self.pages.in_use() * self.granularity
    }

    pub fn states_in_use(&self) -> usize {
        self.states.in_use()
    }

    pub fn history(&self, id: SequenceId) -> Result<&History, SessionError> {
        Ok(&self.get(id)?.history)
    }

    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        Ok(self.history(id)?.len())
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, SessionError> {
        self.sequences
            .get(&id)
            .ok_or(SessionError::UnknownSequence(id))
    }

    fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, SessionError> {
        self.sequences
            .get_mut(&id)
            .ok_or(SessionError::UnknownSequence(id))
    }

    pub fn held(&self, ids: &[SequenceId]) -> Result<Held, SessionError> {
        let sequences: Vec<&Sequence> = ids
            .iter()
            .map(|id| self.get(*id))
            .collect::<Result<_, _>>()?;
        let pages = sequences.iter().flat_map(|held| held.pages.iter().copied());
        let states = sequences.iter().flat_map(|held| held.states());
        Ok(Held {
            kv_tokens: self.pages.distinct(pages) * self.granularity,
            states: self.states.distinct(states),
        })
    }

    /// The longest length up to `at_most` at which the sequence can be forked or cut.
    pub fn reusable(&self, id: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        let sequence = self.get(id)?;
        let len = sequence.history.len();
        if at_most >= len || self.keeping.is_none() {
            return Ok(at_most.min(len));
        }
        let lengths = sequence.snapshots.iter().map(|snapshot| snapshot.len);
        Ok(lengths.filter(|len| *len <= at_most).max().unwrap_or(0))
    }

    pub fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.check_slot()?;
        Ok(self.insert(Sequence::default()))
    }

    pub fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let fork = self.cut(source, len)?;
        self.check_slot()?;
        self.hold(&fork);
        Ok(self.insert(fork))
    }

    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), SessionError> {
        let cut = self.cut(id, len)?;
        self.hold(&cut);
        if let Some(before) = self.sequences.insert(id, cut) {
            self.drop_holds(&before);
        }
        Ok(())
    }

    pub fn release(&mut self, id: SequenceId) -> Result<(), SessionError> {
        let sequence = self.sequences.remove(&id);
        let sequence = sequence.ok_or(SessionError::UnknownSequence(id))?;
        self.drop_holds(&sequence);
        Ok(())
    }

    /// Makes a sequence of these tokens, without snapshots on the way.
    pub fn import(&mut self, tokens: &[u32]) -> Result<SequenceId, SessionError> {
        let pages = tokens.len().div_ceil(self.granularity);
        self.check_slot()?;
        self.check_room(pages)?;
        let state = match self.keeping {
            Some(_) if !tokens.is_empty() => Some(self.take_state()?),
            _ => None,
        };
        let mut sequence = Sequence {
            pages: self.take_pages(pages),
            state,
            ..Sequence::default()
        };
        sequence.history.append(tokens);
        Ok(self.insert(sequence))
    }

    /// Makes room for `tokens` more and takes the states they will leave, `None` where the model
    /// has none. The tokens come with [`Cache::commit`].
    ///
    /// As on a device, all rows of a step hold what they take before any of them is done: a
    /// state that one row will leave behind cannot be had by the next.
    pub fn reserve(
        &mut self,
        id: SequenceId,
        tokens: usize,
    ) -> Result<Option<RowStates>, SessionError> {
        let sequence = self.get(id)?;
        let len = sequence.history.len();
        let tail = sequence.pages.last().copied();
        let tail = tail.filter(|_| !len.is_multiple_of(self.granularity));
        let shared_tail = tail.filter(|page| self.pages.is_shared(*page));
        let kept = sequence.pages.len() - usize::from(shared_tail.is_some());
        let wanted = (len + tokens).div_ceil(self.granularity) - kept;
        self.check_room(wanted)?;
        let states = self.take_states(len, tokens)?;
        let mut fresh = self.take_pages(wanted);
        if let Some(page) = shared_tail {
            self.pages.drop_hold(page);
        }
        let pages = &mut self.get_mut(id)?.pages;
        pages.truncate(kept);
        pages.append(&mut fresh);
        Ok(states)
    }

    /// Appends tokens for which there is room, and keeps their states.
    pub fn commit(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        states: Option<RowStates>,
    ) -> Result<(), SessionError> {
        let keeping = self.keeping;
        let sequence = self.get_mut(id)?;
        let len = sequence.history.len();
        sequence.history.append(tokens);
        let (Some(row), Some(keeping)) = (states, keeping) else {
            return Ok(());
        };
        // The way back that the last row left is passed, unless it stands at the interval.
        let passed = |snapshot: &mut Snapshot| !snapshot.len.is_multiple_of(keeping.interval);
        let snapshots = &mut sequence.snapshots;
        let mut dropped: Vec<Snapshot> = snapshots.extract_if(.., passed).collect();
        snapshots.extend(row.snapshots);
        let surplus = snapshots.len().saturating_sub(keeping.most);
        dropped.extend(snapshots.drain(..surplus));
        if let Some(state) = sequence.state.replace(row.after) {
            let place = snapshots.partition_point(|snapshot| snapshot.len < len);
            snapshots.insert(place, Snapshot { len, state });
        }
        for snapshot in dropped {
            self.states.drop_hold(snapshot.state);
        }
        Ok(())
    }

    /// The sequence as it was after `len` tokens, holding nothing yet.
    fn cut(&self, id: SequenceId, len: usize) -> Result<Sequence, SessionError> {
        let sequence = self.get(id)?;
        let available = sequence.history.len();
        if len > available {
            return Err(SessionError::LengthOutOfRange { len, available });
        }
        let reusable = self.reusable(id, len)?;
        if reusable != len {
            return Err(SessionError::NoSnapshot { len, reusable });
        }
        let snapshots = &sequence.snapshots;
        let earlier = snapshots.partition_point(|snapshot| snapshot.len < len);
        let (earlier, later) = snapshots.split_at(earlier);
        Ok(Sequence {
            history: sequence.history.prefix(len),
            pages: sequence.pages[..len.div_ceil(self.granularity)].to_vec(),
            state: match len {
                0 => None,
                _ if len == available => sequence.state,
                _ => later.first().map(|snapshot| snapshot.state),
            },
            snapshots: earlier.to_vec(),
        })
    }

    fn insert(&mut self, sequence: Sequence) -> SequenceId {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, sequence);
        id
    }

    fn hold(&mut self, sequence: &Sequence) {
        for page in &sequence.pages {
            self.pages.hold(*page);
        }
        for state in sequence.states() {
            self.states.hold(state);
        }
    }

    fn drop_holds(&mut self, sequence: &Sequence) {
        for page in &sequence.pages {
            self.pages.drop_hold(*page);
        }
        for state in sequence.states() {
            self.states.drop_hold(state);
        }
    }

    fn check_slot(&self) -> Result<(), SessionError> {
        let max = self.max_sequences;
        if self.sequences.len() >= max {
            return Err(SessionError::TooManySequences { max });
        }
        Ok(())
    }

    fn check_room(&self, pages: usize) -> Result<(), SessionError> {
        if pages > self.pages.available() {
            return Err(SessionError::KvExhausted {
                wanted: pages * self.granularity,
                available: self.pages.available() * self.granularity,
            });
        }
        Ok(())
    }

    /// Pages for which there is room.
    fn take_pages(&mut self, count: usize) -> Vec<Place> {
        (0..count).map_while(|_| self.pages.take()).collect()
    }

    fn take_states(
        &mut self,
        len: usize,
        tokens: usize,
    ) -> Result<Option<RowStates>, SessionError> {
        let Some(Snapshots { interval, most }) = self.keeping else {
            return Ok(None);
        };
        let after = self.take_state()?;
        let end = len + tokens;
        let passed = len.max(end.saturating_sub(most * interval));
        let mut snapshots = Vec::new();
        for len in ((passed / interval + 1) * interval..end).step_by(interval) {
            // A snapshot is a convenience: none is taken where a sequence may want the room.
            if self.states.available() > self.sequences.len() {
                let state = self.take_state()?;
                snapshots.push(Snapshot { len, state });
            }
        }
        Ok(Some(RowStates { after, snapshots }))
    }

    /// A state for its taker alone, for which snapshots make way.
    fn take_state(&mut self) -> Result<Place, SessionError> {
        while self.states.available() == 0 && self.forget_a_snapshot() {}
        let max = self.states.capacity();
        self.states
            .take()
            .ok_or(SessionError::StatesExhausted { max })
    }

    /// Drops some sequence's oldest snapshot, which frees its state unless another holds it.
    fn forget_a_snapshot(&mut self) -> bool {
        let mut holders = self.sequences.values_mut();
        let Some(holder) = holders.find(|sequence| !sequence.snapshots.is_empty()) else {
            return false;
        };
        let oldest = holder.snapshots.remove(0);
        self.states.drop_hold(oldest.state);
        true
    }
}
