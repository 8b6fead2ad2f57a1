//! All sequences of a session: their lengths, what they remember, and the room they hold.

use std::collections::HashMap;

use loquat_session::{Held, SequenceId, SessionError};

use crate::kv::{KvSlot, Recurrent};
use crate::ledger::{Entry, Ledger};

/// Room for keys and values is handed out in runs of this many tokens. Growing copies a
/// sequence's keys, so that shorter runs cost time and longer ones memory.
pub const RUN: usize = 64;
/// A recurrent model's sequence keeps a snapshot after so many tokens, and again…
pub const SNAPSHOT_INTERVAL: usize = 256;
/// …but no more than its latest so many.
const MAX_SNAPSHOTS: usize = 4;

pub struct Sequences {
    alive: HashMap<SequenceId, Sequence>,
    max_sequences: usize,
    next_id: u64,
    layers: usize,
    recurrent: bool,
    /// In tokens.
    room: Ledger,
    states: Ledger,
}

#[derive(Clone)]
struct Sequence {
    len: usize,
    kv: Vec<KvSlot>,
    /// What its keys and values may take; `None` before the first token.
    room: Option<Entry>,
    /// After the last token; `None` before the first, or where no layer is recurrent.
    state: Option<State>,
    /// States after earlier tokens, oldest first.
    snapshots: Vec<Snapshot>,
}

/// A recurrent state of all layers, shared by whoever holds its entry.
#[derive(Clone)]
pub struct State {
    entry: Entry,
    layers: Vec<Recurrent>,
}

#[derive(Clone)]
struct Snapshot {
    len: usize,
    state: State,
}

/// Room that a row was given: what it may write, and where its states go.
pub struct Granted {
    pub start: usize,
    pub capacity: usize,
    /// For the state after the row; `None` where no layer is recurrent.
    after: Option<Entry>,
    /// For states on the way, after so many tokens of the sequence.
    on_the_way: Vec<(usize, Entry)>,
}

impl Granted {
    /// Lengths of the sequence at which a state is kept, ascending.
    pub fn stops(&self) -> impl Iterator<Item = usize> {
        self.on_the_way.iter().map(|(len, _)| *len)
    }
}

impl Sequence {
    fn state_entries(&self) -> impl Iterator<Item = Entry> {
        let snapshots = self.snapshots.iter().map(|snapshot| snapshot.state.entry);
        self.state.iter().map(|state| state.entry).chain(snapshots)
    }
}

impl Sequences {
    pub fn new(
        layers: usize,
        recurrent: bool,
        kv_tokens: usize,
        states: usize,
        max_sequences: usize,
    ) -> Self {
        Self {
            alive: HashMap::new(),
            max_sequences,
            next_id: 0,
            layers,
            recurrent,
            room: Ledger::new(kv_tokens),
            states: Ledger::new(states),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.alive.is_empty()
    }

    pub fn room(&self) -> &Ledger {
        &self.room
    }

    pub fn states(&self) -> &Ledger {
        &self.states
    }

    pub fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.insert(Sequence {
            len: 0,
            kv: vec![KvSlot::default(); self.layers],
            room: None,
            state: None,
            snapshots: Vec::new(),
        })
    }

    fn insert(&mut self, sequence: Sequence) -> Result<SequenceId, SessionError> {
        if self.alive.len() >= self.max_sequences {
            return Err(SessionError::TooManySequences {
                max: self.max_sequences,
            });
        }
        self.hold(&sequence);
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.alive.insert(id, sequence);
        Ok(id)
    }

    fn get(&self, id: SequenceId) -> Result<&Sequence, SessionError> {
        let sequence = self.alive.get(&id);
        sequence.ok_or(SessionError::UnknownSequence(id))
    }

    fn get_mut(&mut self, id: SequenceId) -> Result<&mut Sequence, SessionError> {
        let sequence = self.alive.get_mut(&id);
        sequence.ok_or(SessionError::UnknownSequence(id))
    }

    pub fn len(&self, id: SequenceId) -> Result<usize, SessionError> {
        Ok(self.get(id)?.len)
    }

    pub fn held(&self, ids: &[SequenceId]) -> Result<Held, SessionError> {
        let sequences = ids.iter().map(|id| self.get(*id));
        let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        let rooms = sequences.iter().filter_map(|sequence| sequence.room);
        let states = sequences.iter().flat_map(|sequence| sequence.state_entries());
        Ok(Held {
            kv_tokens: self.room.sum(rooms),
            states: self.states.sum(states),
        })
    }

    /// The longest length up to `at_most` at which the sequence can be forked or cut.
    pub fn reusable(&self, id: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        let sequence = self.get(id)?;
        if at_most >= sequence.len || !self.recurrent {
            return Ok(at_most.min(sequence.len));
        }
        let lengths = sequence.snapshots.iter().map(|snapshot| snapshot.len);
        Ok(lengths.filter(|len| *len <= at_most).max().unwrap_or(0))
    }

    /// The sequence as it was after `len` tokens.
    fn cut(&self, id: SequenceId, len: usize) -> Result<Sequence, SessionError> {
        let sequence = self.get(id)?;
        if len > sequence.len {
            return Err(SessionError::LengthOutOfRange {
                len,
                available: sequence.len,
            });
        }
        let reusable = self.reusable(id, len)?;
        if reusable != len {
            return Err(SessionError::NoSnapshot { len, reusable });
        }
        let at_len = sequence.snapshots.iter().find(|taken| taken.len == len);
        let earlier = sequence.snapshots.iter().filter(|taken| taken.len < len);
        Ok(Sequence {
            len,
            kv: match len {
                0 => vec![KvSlot::default(); self.layers],
                _ => sequence.kv.clone(),
            },
            room: sequence.room.filter(|_| len > 0),
            state: match len {
                0 => None,
                _ if len == sequence.len => sequence.state.clone(),
                _ => at_len.map(|taken| taken.state.clone()),
            },
            snapshots: earlier.cloned().collect(),
        })
    }

    pub fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        let fork = self.cut(source, len)?;
        self.insert(fork)
    }

    pub fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), SessionError> {
        let cut = self.cut(id, len)?;
        self.hold(&cut);
        if let Some(before) = self.alive.insert(id, cut) {
            self.drop_holds(&before);
        }
        Ok(())
    }

    pub fn release(&mut self, id: SequenceId) -> Result<(), SessionError> {
        let sequence = self.alive.remove(&id);
        let sequence = sequence.ok_or(SessionError::UnknownSequence(id))?;
        self.drop_holds(&sequence);
        Ok(())
    }

    fn hold(&mut self, sequence: &Sequence) {
        if let Some(room) = sequence.room {
            self.room.hold(room);
        }
        for state in sequence.state_entries() {
            self.states.hold(state);
        }
    }

    fn drop_holds(&mut self, sequence: &Sequence) {
        if let Some(room) = sequence.room {
            self.room.drop_hold(room);
        }
        for state in sequence.state_entries() {
            self.states.drop_hold(state);
        }
    }

    /// Makes room for `tokens` more; on error nothing has changed. What is granted goes back by
    /// [`Sequences::commit`] or [`Sequences::give_back`].
    pub fn grant(&mut self, id: SequenceId, tokens: usize) -> Result<Granted, SessionError> {
        let start = self.len(id)?;
        let after = self.take_state()?;
        let capacity = match self.make_room(id, start + tokens) {
            Ok(capacity) => capacity,
            Err(error) => {
                after.into_iter().for_each(|entry| self.states.drop_hold(entry));
                return Err(error);
            }
        };
        Ok(Granted {
            start,
            capacity,
            after,
            on_the_way: self.take_snapshots(start, tokens),
        })
    }

    /// The same for tokens that come with their state: none is kept on the way.
    pub fn grant_whole(&mut self, id: SequenceId, tokens: usize) -> Result<Granted, SessionError> {
        let mut granted = self.grant(id, tokens)?;
        for (_, entry) in granted.on_the_way.drain(..) {
            self.states.drop_hold(entry);
        }
        Ok(granted)
    }

    /// Room for one more token that takes nothing from anybody: `None` where that would need
    /// more than the sequence holds already.
    pub fn grant_spare(&mut self, id: SequenceId) -> Option<Granted> {
        let sequence = self.alive.get(&id)?;
        let (start, room) = (sequence.len, sequence.room?);
        let capacity = self.room.amount(room);
        if start >= capacity || self.room.is_shared(room) {
            return None;
        }
        let boundary = self.recurrent && (start + 1).is_multiple_of(SNAPSHOT_INTERVAL);
        if boundary || (self.recurrent && self.states.available() == 0) {
            return None;
        }
        Some(Granted {
            start,
            capacity,
            after: self.take_state().ok()?,
            on_the_way: Vec::new(),
        })
    }

    /// Room for `wanted` tokens that no other sequence shares, and how many fit into it.
    fn make_room(&mut self, id: SequenceId, wanted: usize) -> Result<usize, SessionError> {
        let held = self.get(id)?.room;
        let own = held.filter(|room| !self.room.is_shared(*room));
        let has = own.map_or(0, |room| self.room.amount(room));
        if has >= wanted {
            return Ok(has);
        }
        let capacity = wanted.next_multiple_of(RUN);
        let available = self.room.available();
        if capacity - has > available {
            return Err(SessionError::KvExhausted {
                wanted: capacity - has,
                available,
            });
        }
        held.into_iter().for_each(|room| self.room.drop_hold(room));
        let room = self.room.take(capacity);
        self.get_mut(id)?.room = room;
        Ok(capacity)
    }

    fn take_state(&mut self) -> Result<Option<Entry>, SessionError> {
        if !self.recurrent {
            return Ok(None);
        }
        while self.states.available() == 0 && self.forget_a_snapshot() {}
        let max = self.states.limit();
        let entry = self.states.take(1);
        entry.map(Some).ok_or(SessionError::StatesExhausted { max })
    }

    /// Entries for the states at whole intervals between `start` and the row's end.
    fn take_snapshots(&mut self, start: usize, tokens: usize) -> Vec<(usize, Entry)> {
        let mut taken = Vec::new();
        if !self.recurrent {
            return taken;
        }
        // The latest ones are kept, so earlier ones are not taken.
        let end = start + tokens;
        let kept = end.saturating_sub(MAX_SNAPSHOTS * SNAPSHOT_INTERVAL);
        let first = (start.max(kept) / SNAPSHOT_INTERVAL + 1) * SNAPSHOT_INTERVAL;
        for len in (first..end).step_by(SNAPSHOT_INTERVAL) {
            // A snapshot is a convenience: none is taken where a sequence may want the room.
            if self.states.available() > self.alive.len()
                && let Some(entry) = self.states.take(1)
            {
                taken.push((len, entry));
            }
        }
        taken
    }

    /// Drops some sequence's oldest snapshot, which frees its state unless another holds it.
    fn forget_a_snapshot(&mut self) -> bool {
        let holders = self.alive.iter_mut();
        let holders = holders.filter(|(_, sequence)| !sequence.snapshots.is_empty());
        let Some((_, holder)) = holders.min_by_key(|(id, _)| **id) else {
            return false;
        };
        let oldest = holder.snapshots.remove(0);
        self.states.drop_hold(oldest.state.entry);
        true
    }

    /// What the sequence remembers, for a step: keys and values leave it, since MLX writes in
    /// place only what nobody else holds; the recurrent state stays beside its copy.
    pub fn take(&mut self, id: SequenceId) -> Result<(Vec<KvSlot>, Vec<Recurrent>), SessionError> {
        let layers = self.layers;
        let sequence = self.get_mut(id)?;
        let recurrent = match &sequence.state {
            Some(state) => state.layers.clone(),
            None => vec![Recurrent::default(); layers],
        };
        Ok((std::mem::take(&mut sequence.kv), recurrent))
    }

    /// Brings keys and values back, whatever was written after the sequence's last token.
    pub fn put_back(&mut self, id: SequenceId, kv: Vec<KvSlot>) {
        if let Some(sequence) = self.alive.get_mut(&id) {
            sequence.kv = kv;
        }
    }

    /// Counts a row's tokens and keeps its states: `on_the_way` at the stops that were granted,
    /// `after` at the end.
    pub fn commit(
        &mut self,
        id: SequenceId,
        granted: Granted,
        tokens: usize,
        on_the_way: Vec<Vec<Recurrent>>,
        after: Vec<Recurrent>,
    ) {
        let Some(sequence) = self.alive.get_mut(&id) else {
            return self.give_back(granted);
        };
        let Some(entry) = granted.after else {
            sequence.len += tokens;
            return;
        };
        // The state before the row stays as the nearest way back, until the next row.
        let is_regular = |taken: &Snapshot| taken.len.is_multiple_of(SNAPSHOT_INTERVAL);
        let after = State {
            entry,
            layers: after,
        };
        let before = sequence.state.replace(after).map(|state| Snapshot {
            len: sequence.len,
            state,
        });
        let taken = granted.on_the_way.into_iter().zip(on_the_way);
        let taken = taken.map(|((len, entry), layers)| Snapshot {
            len,
            state: State { entry, layers },
        });
        let (regular, passed) = sequence.snapshots.drain(..).partition(is_regular);
        let mut dropped: Vec<Snapshot> = passed;
        sequence.snapshots = regular;
        sequence.snapshots.extend(before);
        sequence.snapshots.extend(taken);
        let surplus = sequence.snapshots.len().saturating_sub(MAX_SNAPSHOTS);
        dropped.extend(sequence.snapshots.drain(..surplus));
        sequence.len += tokens;
        for snapshot in dropped {
            self.states.drop_hold(snapshot.state.entry);
        }
    }

    /// Drops what a row that came to nothing was granted; its room stays with the sequence.
    pub fn give_back(&mut self, granted: Granted) {
        let stops = granted.on_the_way.into_iter().map(|(_, entry)| entry);
        for entry in granted.after.into_iter().chain(stops) {
            self.states.drop_hold(entry);
        }
    }

    /// Length, keys and values, and the recurrent state of a sequence, to look at.
    pub fn contents(
        &self,
        id: SequenceId,
    ) -> Result<(usize, &[KvSlot], Option<&[Recurrent]>), SessionError> {
        let sequence = self.get(id)?;
        let state = sequence.state.as_ref();
        let state = state.map(|state| state.layers.as_slice());
        Ok((sequence.len, &sequence.kv, state))
    }
}
