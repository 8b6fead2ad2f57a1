//! The storage of a session's sequences: rows of KV batches, and recurrent states.

use std::collections::HashMap;

use loquat_session::sequences::{CopyOnWrite, RowGrant, SequenceStorage, Sequences, Slot};
use loquat_session::{MediaId, SequenceId, SessionError};

use crate::array::{Array, Ops};
use crate::error::MlxError;
use crate::kv::{KvBatch, KvRoom, Recurrent};
use crate::kv_batches::{KvBatchId, KvBatches};
use crate::layout::Layout;
use crate::media::MediaFeatures;

/// Tokens of a page. Growing copies a sequence's keys, and MLX's fastest attention on CUDA needs
/// multiples of this.
pub const PAGE: usize = 256;

pub type MlxSequences = Sequences<ArrayStorage>;

pub struct ArrayStorage {
    /// The group of equal reach of each of the model's layers.
    layer_groups: Vec<usize>,
    /// How many groups there are.
    groups: usize,
    batches: KvBatches,
    /// By slot.
    states: Vec<StateArrays>,
    media: HashMap<MediaId, MediaFeatures>,
}

/// A sequence's keys and values: a row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchRow {
    batch: KvBatchId,
    row: usize,
}

#[derive(Clone, Default)]
struct StateArrays {
    layers: Vec<Recurrent>,
    /// The arrays are slices of arrays that hold other sequences' states too.
    is_slice: bool,
}

/// The recurrent states that a row computed.
#[derive(Default)]
pub struct ComputedStates {
    /// At the lengths of [`RowStates::snapshots`](loquat_session::sequences::RowStates::snapshots).
    pub snapshots: Vec<Vec<Recurrent>>,
    pub after: Vec<Recurrent>,
    /// They are slices of arrays that hold other rows' states too.
    pub are_slices: bool,
}

/// A sequence's length, keys and values, and recurrent state.
pub struct Contents<'a> {
    pub len: usize,
    pub kv: Option<(&'a KvBatch, usize)>,
    pub state: Option<&'a [Recurrent]>,
}

impl SequenceStorage for ArrayStorage {
    const COPY_ON_WRITE: CopyOnWrite = CopyOnWrite::Sequence;

    /// `None` before the first token, and while a pass has the batch.
    type Sequence = Option<BatchRow>;

    fn share(&mut self, source: &Option<BatchRow>, len: usize) -> Option<BatchRow> {
        let shared = source.filter(|_| len > 0)?;
        self.batches.retain(shared.batch);
        Some(shared)
    }

    fn release(&mut self, sequence: Option<BatchRow>) {
        if let Some(BatchRow { batch, .. }) = sequence {
            self.batches.release(batch, 1);
        }
    }

    /// MLX copies shared arrays when they are written.
    fn copy_page(&mut self, _group: usize, _from: Slot, _to: Slot) {}

    fn allocate_state(&mut self, state: Slot) {
        let count = self.states.len().max(state.index() + 1);
        self.states.resize_with(count, StateArrays::default);
    }

    fn free_state(&mut self, state: Slot) {
        self.states[state.index()] = StateArrays::default();
    }

    fn free_media(&mut self, media: MediaId) {
        self.media.remove(&media);
    }
}

impl ArrayStorage {
    pub fn new(layout: &Layout) -> Self {
        let layers = 0..layout.layers.len();
        Self {
            layer_groups: layers.map(|layer| layout.groups.of_layer(layer)).collect(),
            groups: layout.groups.count(),
            batches: KvBatches::default(),
            states: Vec::new(),
            media: HashMap::new(),
        }
    }

    pub fn insert_media(&mut self, id: MediaId, features: MediaFeatures) {
        self.media.insert(id, features);
    }

    pub fn media(&self, id: MediaId) -> Option<&MediaFeatures> {
        self.media.get(&id)
    }

    /// The batch whose rows are exactly these, in this order.
    fn whole_batch(&self, rows: &[Option<BatchRow>]) -> Option<KvBatchId> {
        let batch = rows.first().copied()??.batch;
        let in_order = rows
            .iter()
            .enumerate()
            .all(|(row, own)| *own == Some(BatchRow { batch, row }));
        let is_whole = in_order && self.batches.get(batch)?.rows == rows.len();
        is_whole.then_some(batch)
    }

    /// The row in separate arrays.
    fn detach_row(&mut self, ops: &Ops, from: BatchRow) -> Result<KvBatch, MlxError> {
        let missing = || MlxError("a KV batch is missing".to_owned());
        let batch = self.batches.get(from.batch).ok_or_else(missing)?;
        batch.row(ops, from.row)?.detach(ops)
    }
}

/// The sequence's recurrent state, for a pass.
pub fn recurrent_state(
    sequences: &MlxSequences,
    id: SequenceId,
) -> Result<Vec<Recurrent>, SessionError> {
    let storage = sequences.storage();
    Ok(match sequences.state(id)? {
        Some(state) => storage.states[state.index()].layers.clone(),
        None => vec![Recurrent::default(); storage.layer_groups.len()],
    })
}

/// What an accepted row's arrays have room for: its sequence's pages.
pub fn room(sequences: &MlxSequences, grant: &RowGrant) -> KvRoom {
    let first = |group| {
        let pages = sequences.pages(grant.sequence, group);
        pages.map_or(0, |pages| pages.first * sequences.granularity())
    };
    KvRoom {
        firsts: (0..sequences.storage().groups).map(first).collect(),
        end: grant.capacity,
    }
}

/// Whether accepted sequences may share a batch: they do already, or copies of what they hold fit
/// into free pages.
pub fn may_join(sequences: &MlxSequences, ids: &[SequenceId]) -> bool {
    let rows = ids.iter().filter_map(|id| sequences.stored(*id).ok());
    let rows: Vec<Option<BatchRow>> = rows.copied().collect();
    sequences.storage().whole_batch(&rows).is_some()
        || sequences
            .held(ids)
            .is_ok_and(|held| held.kv_tokens <= sequences.available_tokens())
}

/// Takes the keys and values of sequences that step together, all with the same room. MLX writes in place only what nothing else refers to, so they leave the sequences until
/// [`put_batch`].
pub fn take_batch(
    sequences: &mut MlxSequences,
    ops: &Ops,
    ids: &[SequenceId],
    room: &KvRoom,
) -> Result<KvBatch, MlxError> {
    let mut rows = Vec::with_capacity(ids.len());
    let mut lens = Vec::with_capacity(ids.len());
    for id in ids {
        rows.push(sequences.stored_mut(*id).and_then(|(_, row)| row.take()));
        lens.push(sequences.len(*id).unwrap_or(0));
    }
    let storage = sequences.storage_mut();
    let whole = storage.whole_batch(&rows).filter(|id| {
        let batch = storage.batches.get(*id);
        rows.len() == 1 || batch.is_some_and(|batch| batch.fits(ops, room))
    });
    if let Some(batch) = whole.and_then(|id| storage.batches.release(id, rows.len())) {
        return Ok(batch);
    }
    let mut members = Vec::with_capacity(rows.len());
    for (row, len) in rows.into_iter().zip(lens) {
        let left = row.and_then(|own| Some((storage.batches.release(own.batch, 1)?, own.row)));
        let own = match left {
            Some((batch, row)) => batch.row(ops, row)?,
            None => KvBatch::empty(1, &storage.layer_groups),
        };
        members.push((own, len));
    }
    match members.len() {
        // It grows when it is written.
        1 => Ok(members.remove(0).0),
        _ => KvBatch::join(ops, &members, room),
    }
}

/// Returns keys and values to the sequences that [`take_batch`] took them from.
pub fn put_batch(sequences: &mut MlxSequences, ids: &[SequenceId], batch: KvBatch) {
    let batch = sequences.storage_mut().batches.insert(batch, ids.len());
    for (row, id) in ids.iter().enumerate() {
        match sequences.stored_mut(*id) {
            Some((_, stored)) => *stored = Some(BatchRow { batch, row }),
            None => drop(sequences.storage_mut().batches.release(batch, 1)),
        }
    }
}

/// Moves sequences that no longer step with their batch into separate arrays, so that they do
/// not keep the others' memory. Returns the new arrays, which are not computed yet.
pub fn split_off(
    sequences: &mut MlxSequences,
    ops: &Ops,
    continues: impl Fn(SequenceId) -> bool,
) -> Result<Vec<Array>, MlxError> {
    let mut arrays = Vec::new();
    // Forks of one row keep sharing it.
    let mut detached: HashMap<BatchRow, KvBatchId> = HashMap::new();
    let (storage, sequences) = sequences.storage_and_sequences();
    for (_, stored, states) in sequences.filter(|(id, ..)| !continues(*id)) {
        if let Some(from) = *stored
            && storage.batches.get(from.batch).is_some_and(|b| b.rows > 1)
        {
            let batch = match detached.get(&from) {
                Some(batch) => {
                    storage.batches.retain(*batch);
                    *batch
                }
                None => {
                    let own = storage.detach_row(ops, from)?;
                    arrays.extend(own.arrays().cloned());
                    storage.batches.insert(own, 1)
                }
            };
            detached.insert(from, batch);
            storage.batches.release(from.batch, 1);
            *stored = Some(BatchRow { batch, row: 0 });
        }
        for state in states {
            let state = &mut storage.states[state.index()];
            if std::mem::take(&mut state.is_slice) {
                let own = state.layers.iter().map(|layer| layer.detach(ops));
                state.layers = own.collect::<Result<_, _>>()?;
                arrays.extend(state.layers.iter().flat_map(Recurrent::arrays).cloned());
            }
        }
    }
    Ok(arrays)
}

/// Appends a row's tokens and stores its states.
pub fn commit(sequences: &mut MlxSequences, grant: RowGrant, computed: ComputedStates) {
    store_states(sequences, &grant, computed);
    sequences.commit(grant);
}

pub fn store_states(sequences: &mut MlxSequences, grant: &RowGrant, computed: ComputedStates) {
    if let Some(row) = &grant.states {
        let slots = row.snapshots().map(|(_, state)| state);
        let slots = slots.chain(std::iter::once(row.after));
        let layers = computed.snapshots.into_iter();
        let layers = layers.chain(std::iter::once(computed.after));
        for (slot, layers) in slots.zip(layers) {
            sequences.storage_mut().states[slot.index()] = StateArrays {
                layers,
                is_slice: computed.are_slices,
            };
        }
    }
}

/// The contents of a sequence, for an export.
pub fn contents(sequences: &MlxSequences, id: SequenceId) -> Result<Contents<'_>, SessionError> {
    let storage = sequences.storage();
    let batch = |own: BatchRow| Some((storage.batches.get(own.batch)?, own.row));
    let state = sequences.state(id)?;
    Ok(Contents {
        len: sequences.len(id)?,
        kv: sequences.stored(id)?.and_then(batch),
        state: state.map(|state| storage.states[state.index()].layers.as_slice()),
    })
}
