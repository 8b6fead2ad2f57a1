//! All sequences of a session: their lengths, what they remember, and the room they hold.

use std::collections::HashMap;

use loquat_session::{Held, SequenceId, SessionError};

use crate::array::{Array, Ops};
use crate::error::MlxError;
use crate::herds::{HerdId, Herds};
use crate::kv::{Herd, Recurrent};
use crate::ledger::{Entry, Ledger};

/// Room for keys and values is handed out in runs of this many tokens. Growing copies a sequence's
/// keys, and MLX's quickest attention on CUDA wants arrays of so many.
pub const RUN: usize = 256;
/// A recurrent model's sequence keeps a snapshot after so many tokens, and again…
pub const SNAPSHOT_INTERVAL: usize = 256;
/// …but no more than its latest so many.
const MAX_SNAPSHOTS: usize = 4;

pub struct Sequences {
    alive: HashMap<SequenceId, Sequence>,
    herds: Herds,
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
    /// Its keys and values are this row of a herd; `None` before the first token.
    kv: Option<(HerdId, usize)>,
    /// Whether its state is a part of arrays that hold others' states too.
    state_in_herd: bool,
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

/// A sequence that is to stand in a herd: where its keys are, and how many.
struct Member {
    kv: Option<(HerdId, usize)>,
    len: usize,
}

/// The recurrent states that a row leaves.
#[derive(Default)]
pub struct States {
    /// At the stops that were granted.
    pub on_the_way: Vec<Vec<Recurrent>>,
    pub after: Vec<Recurrent>,
    /// They are parts of arrays that hold other rows' too.
    pub in_herd: bool,
}

/// A sequence's length, its row of a herd, and its recurrent state.
pub struct Contents<'a> {
    pub len: usize,
    pub kv: Option<(&'a Herd, usize)>,
    pub state: Option<&'a [Recurrent]>,
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
            herds: Herds::default(),
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
            kv: None,
            state_in_herd: false,
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
        let states = sequences
            .iter()
            .flat_map(|sequence| sequence.state_entries());
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
            kv: sequence.kv.filter(|_| len > 0),
            state_in_herd: sequence.state_in_herd,
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
        if let Some((herd, _)) = sequence.kv {
            self.herds.hold(herd);
        }
        if let Some(room) = sequence.room {
            self.room.hold(room);
        }
        for state in sequence.state_entries() {
            self.states.hold(state);
        }
    }

    fn drop_holds(&mut self, sequence: &Sequence) {
        if let Some((herd, _)) = sequence.kv {
            self.herds.leave(herd, 1);
        }
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
                after
                    .into_iter()
                    .for_each(|entry| self.states.drop_hold(entry));
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
        // The latest ones are kept, so earlier ones are not taken; one more is the state before
        // the row, to which a row that fails goes back.
        let end = start + tokens;
        let kept = end.saturating_sub((MAX_SNAPSHOTS - 1) * SNAPSHOT_INTERVAL);
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

    /// The sequence's recurrent state, for a step; it stays with the sequence too.
    pub fn recurrent(&self, id: SequenceId) -> Result<Vec<Recurrent>, SessionError> {
        Ok(match &self.get(id)?.state {
            Some(state) => state.layers.clone(),
            None => vec![Recurrent::default(); self.layers],
        })
    }

    /// Whether sequences may stand in one herd with room for `capacity` tokens each: they do
    /// already, or their copies fit into room that nobody uses.
    pub fn may_join(&self, ids: &[SequenceId], capacity: usize) -> bool {
        let members: Vec<Member> = ids
            .iter()
            .filter_map(|id| self.alive.get(id))
            .map(|own| Member {
                kv: own.kv,
                len: own.len,
            })
            .collect();
        self.whole_herd(&members).is_some() || ids.len() * capacity <= self.room.available()
    }

    /// The keys and values of sequences that step together, with room for `capacity` tokens each.
    /// They leave the sequences, since MLX writes in place only what nobody else holds.
    pub fn take_herd(
        &mut self,
        ops: &Ops,
        ids: &[SequenceId],
        capacity: usize,
    ) -> Result<Herd, MlxError> {
        let mut members = Vec::with_capacity(ids.len());
        for id in ids {
            let sequence = self.alive.get_mut(id);
            let (kv, len) = sequence.map_or((None, 0), |own| (own.kv.take(), own.len));
            members.push(Member { kv, len });
        }
        let whole = self.whole_herd(&members).filter(|id| {
            let herd = self.herds.get(*id);
            members.len() == 1 || herd.is_some_and(|herd| herd.fits(ops, capacity))
        });
        if let Some(herd) = whole.and_then(|id| self.herds.leave(id, members.len())) {
            return Ok(herd);
        }
        let mut alone = Vec::with_capacity(members.len());
        for Member { kv, len } in members {
            let left = kv.and_then(|(herd, row)| Some((self.herds.leave(herd, 1)?, row)));
            let own = match left {
                Some((herd, row)) => herd.row(ops, row)?,
                None => Herd::empty(1, self.layers),
            };
            alone.push((own, len));
        }
        match alone.len() {
            // It grows where it is written.
            1 => Ok(alone.remove(0).0),
            _ => Herd::join(ops, &alone, capacity),
        }
    }

    /// The herd that these are all of, in its order.
    fn whole_herd(&self, members: &[Member]) -> Option<HerdId> {
        let (herd, _) = members.first()?.kv?;
        let in_order =
            (members.iter().enumerate()).all(|(row, member)| member.kv == Some((herd, row)));
        let whole = in_order && self.herds.get(herd)?.rows == members.len();
        whole.then_some(herd)
    }

    /// Brings keys and values back, whatever was written after the sequences' last tokens.
    pub fn put_herd(&mut self, ids: &[SequenceId], herd: Herd) {
        let herd = self.herds.insert(herd, ids.len());
        for (row, id) in ids.iter().enumerate() {
            match self.alive.get_mut(id) {
                Some(sequence) => sequence.kv = Some((herd, row)),
                None => drop(self.herds.leave(herd, 1)),
            }
        }
    }

    /// Gives sequences that do not step any more with their herd arrays of their own, so that
    /// they do not hold the others' memory. The arrays are to be computed soon.
    pub fn part(
        &mut self,
        ops: &Ops,
        goes_on: impl Fn(SequenceId) -> bool,
    ) -> Result<Vec<Array>, MlxError> {
        let mut parted = Vec::new();
        // What forks share they share on.
        let mut herds: HashMap<(HerdId, usize), HerdId> = HashMap::new();
        let mut states: HashMap<Entry, Vec<Recurrent>> = HashMap::new();
        for (_, sequence) in self.alive.iter_mut().filter(|(id, _)| !goes_on(**id)) {
            if let Some((id, row)) = sequence.kv
                && let Some(herd) = self.herds.get(id).filter(|herd| herd.rows > 1)
            {
                let own = match herds.get(&(id, row)) {
                    Some(own) => {
                        self.herds.hold(*own);
                        *own
                    }
                    None => {
                        let own = herd.row(ops, row)?.apart(ops)?;
                        parted.extend(own.arrays().cloned());
                        self.herds.insert(own, 1)
                    }
                };
                herds.insert((id, row), own);
                self.herds.leave(id, 1);
                sequence.kv = Some((own, 0));
            }
            if std::mem::take(&mut sequence.state_in_herd) {
                let snapshots = sequence.snapshots.iter_mut().map(|taken| &mut taken.state);
                for state in sequence.state.iter_mut().chain(snapshots) {
                    if let Some(own) = states.get(&state.entry) {
                        state.layers = own.clone();
                        continue;
                    }
                    let own = state.layers.iter().map(|layer| layer.apart(ops));
                    state.layers = own.collect::<Result<_, _>>()?;
                    parted.extend(state.layers.iter().flat_map(Recurrent::arrays).cloned());
                    states.insert(state.entry, state.layers.clone());
                }
            }
        }
        Ok(parted)
    }

    /// Counts a row's tokens and keeps its states.
    pub fn commit(&mut self, id: SequenceId, granted: Granted, tokens: usize, states: States) {
        let Some(sequence) = self.alive.get_mut(&id) else {
            return self.give_back(granted);
        };
        let Some(entry) = granted.after else {
            sequence.len += tokens;
            return;
        };
        // The state before the row stays as the nearest way back, until the next row.
        let is_regular = |taken: &Snapshot| taken.len.is_multiple_of(SNAPSHOT_INTERVAL);
        sequence.state_in_herd |= states.in_herd;
        let after = State {
            entry,
            layers: states.after,
        };
        let before = sequence.state.replace(after).map(|state| Snapshot {
            len: sequence.len,
            state,
        });
        let taken = granted.on_the_way.into_iter().zip(states.on_the_way);
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

    /// What a sequence remembers, to look at.
    pub fn contents(&self, id: SequenceId) -> Result<Contents<'_>, SessionError> {
        let sequence = self.get(id)?;
        let herd_of = |(id, row)| Some((self.herds.get(id)?, row));
        Ok(Contents {
            len: sequence.len,
            kv: sequence.kv.and_then(herd_of),
            state: sequence.state.as_ref().map(|state| state.layers.as_slice()),
        })
    }
}
