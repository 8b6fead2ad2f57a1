//! The storage of sequences: keys and values in arrays with room to grow, and recurrent states.
//!
//! Sequences that decode together keep their keys in one array, a [`KvBatch`], so that a layer
//! writes and reads them in a few operations for any number of sequences. A single sequence is a
//! batch of one.
//!
//! MLX's arrays are values: forks share them until one of the two writes, and only then does MLX
//! copy. A write happens in place if nothing else refers to the array, so batches are moved
//! through a step, never cloned.

use std::ops::Range;

use crate::array::{Array, Ops, slice_axis};
use crate::error::MlxError;

/// Keys and values of one layer; empty before the first token and in layers without KV.
#[derive(Clone, Default)]
pub struct KvSlot {
    /// The layer's group of equal reach.
    group: usize,
    kv: Option<Kv>,
}

/// Each [rows, heads, positions, dim].
#[derive(Clone)]
pub struct Kv {
    /// Position of the first token; those before it are freed.
    first: usize,
    keys: Array,
    /// `None`: values are a part of the keys.
    values: Option<Array>,
}

/// The positions that the arrays of a batch have room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvRoom {
    /// By group of layers, the first one.
    pub firsts: Vec<usize>,
    /// Up to this one.
    pub end: usize,
}

impl KvRoom {
    fn of_group(&self, group: usize) -> Range<usize> {
        self.firsts[group]..self.end
    }
}

/// A recurrent mixer's state after the last token. `None`: zeros.
#[derive(Clone, Default)]
pub struct Recurrent {
    /// The convolution's last inputs, [1, kernel - 1, channels].
    pub conv: Option<Array>,
    /// The states of the heads, float32.
    pub memory: Option<Array>,
}

impl KvSlot {
    /// Of a layer of this group.
    pub fn new(group: usize, kv: Option<Kv>) -> Self {
        Self { group, kv }
    }

    /// Writes keys (and values) of [rows, heads, tokens, dim].
    pub fn append(
        &mut self,
        ops: &Ops,
        at: &WritePositions,
        keys: &Array,
        values: Option<&Array>,
    ) -> Result<(), MlxError> {
        let (first, old_keys, old_values) = match self.kv.take() {
            Some(kv) => (kv.first, Some(kv.keys), kv.values),
            None => (at.first(self.group), None, None),
        };
        let write = |old: Option<Array>, new: &Array| {
            let old = old.map(|array| (array, first));
            at.write(ops, self.group, old, new)
        };
        self.kv = Some(Kv {
            first: at.first(self.group),
            keys: write(old_keys, keys)?,
            values: values.map(|values| write(old_values, values)).transpose()?,
        });
        Ok(())
    }

    pub fn get(&self) -> Result<&Kv, MlxError> {
        let missing = || MlxError("a layer reads keys that do not exist".to_owned());
        self.kv.as_ref().ok_or_else(missing)
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.kv.iter().flat_map(Kv::arrays)
    }

    /// Applies a function to each array, whose positions stay the same.
    fn map(&self, change: impl Fn(&Array) -> Result<Array, MlxError>) -> Result<Self, MlxError> {
        let change_kv = |kv: &Kv| kv.moved(kv.first, &change);
        Ok(Self {
            group: self.group,
            kv: self.kv.as_ref().map(change_kv).transpose()?,
        })
    }

    /// With room for these positions, of which those before `len` are kept.
    fn fitted(&self, ops: &Ops, len: usize, room: &KvRoom) -> Result<Self, MlxError> {
        let room = room.of_group(self.group);
        let fit = |kv: &Kv| {
            kv.moved(room.start, |array| {
                regrow(ops, (array, kv.first), len, room.clone())
            })
        };
        Ok(Self {
            group: self.group,
            kv: self.kv.as_ref().map(fit).transpose()?,
        })
    }

    /// Whether its arrays have exactly this room.
    fn fits(&self, ops: &Ops, room: &KvRoom) -> bool {
        let room = room.of_group(self.group);
        self.kv.iter().all(|kv| {
            let mut arrays = kv.arrays();
            kv.first == room.start
                && arrays.all(|array| array.dim(2) == positions(ops, room.len(), array.dim(3)))
        })
    }

    /// Concatenates slots of one layer along the rows.
    fn join(ops: &Ops, slots: &[&Self]) -> Result<Self, MlxError> {
        let join = |pick: fn(&Kv) -> Option<&Array>| {
            let arrays: Vec<&Array> = slots
                .iter()
                .filter_map(|slot| slot.kv.as_ref().and_then(pick))
                .collect();
            if arrays.len() == slots.len() {
                ops.concatenate(&arrays, 0).map(Some)
            } else {
                Ok(None)
            }
        };
        let keys = join(|kv| Some(&kv.keys))?;
        let values = join(|kv| kv.values.as_ref())?;
        let one = slots.first();
        let first = one
            .and_then(|slot| slot.kv.as_ref())
            .map_or(0, |kv| kv.first);
        Ok(Self {
            group: one.map_or(0, |slot| slot.group),
            kv: keys.map(|keys| Kv {
                first,
                keys,
                values,
            }),
        })
    }
}

impl Kv {
    /// From arrays whose first token is at position `first`.
    pub fn new(first: usize, keys: Array, values: Option<Array>) -> Self {
        Self {
            first,
            keys,
            values,
        }
    }

    /// Keys, then values unless they are a part of the keys.
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        std::iter::once(&self.keys).chain(&self.values)
    }

    /// The keys at some positions.
    pub fn keys_at(&self, ops: &Ops, positions: Range<usize>) -> Result<Array, MlxError> {
        self.at(ops, &self.keys, positions)
    }

    /// The values at some positions.
    pub fn values_at(&self, ops: &Ops, positions: Range<usize>) -> Result<Array, MlxError> {
        let none = || MlxError("a layer has no cached values".to_owned());
        self.at(ops, self.values.as_ref().ok_or_else(none)?, positions)
    }

    fn at(&self, ops: &Ops, array: &Array, positions: Range<usize>) -> Result<Array, MlxError> {
        let freed = || MlxError("a layer reads keys that are freed".to_owned());
        let start = positions.start.checked_sub(self.first).ok_or_else(freed)?;
        slice_axis(ops, array, 2, start..start + positions.len())
    }

    fn moved(
        &self,
        first: usize,
        change: impl Fn(&Array) -> Result<Array, MlxError>,
    ) -> Result<Self, MlxError> {
        Ok(Self {
            first,
            keys: change(&self.keys)?,
            values: self.values.as_ref().map(&change).transpose()?,
        })
    }
}

/// Sequences' keys and values of all layers, in arrays of [rows, heads, positions, dim].
#[derive(Clone, Default)]
pub struct KvBatch {
    pub rows: usize,
    /// For each of the model's layers.
    pub layers: Vec<KvSlot>,
}

impl KvBatch {
    /// `groups`: that of each layer.
    pub fn empty(rows: usize, groups: &[usize]) -> Self {
        let layers = groups.iter().map(|group| KvSlot::new(*group, None));
        Self {
            rows,
            layers: layers.collect(),
        }
    }

    /// One of its sequences as a separate batch: views of the same arrays.
    pub fn row(&self, ops: &Ops, row: usize) -> Result<Self, MlxError> {
        if self.rows == 1 {
            return Ok(self.clone());
        }
        self.map(1, |array| {
            let mut stop = array.shape();
            stop[0] = row as i32 + 1;
            ops.slice(array, &[row as i32, 0, 0, 0], &stop)
        })
    }

    /// A copy that shares no memory with the rest of the batch.
    pub fn detach(&self, ops: &Ops) -> Result<Self, MlxError> {
        self.map(self.rows, |array| ops.contiguous(array))
    }

    /// With room for these positions, of which those before `len` are kept.
    fn fitted(&self, ops: &Ops, len: usize, room: &KvRoom) -> Result<Self, MlxError> {
        let layers = self.layers.iter().map(|slot| slot.fitted(ops, len, room));
        Ok(Self {
            rows: self.rows,
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    fn map(
        &self,
        rows: usize,
        change: impl Fn(&Array) -> Result<Array, MlxError>,
    ) -> Result<Self, MlxError> {
        let layers = self.layers.iter().map(|slot| slot.map(&change));
        Ok(Self {
            rows,
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    /// Whether its arrays have exactly this room.
    pub fn fits(&self, ops: &Ops, room: &KvRoom) -> bool {
        self.layers.iter().all(|slot| slot.fits(ops, room))
    }

    /// Sequences of the given lengths together, all with the same room.
    pub fn join(ops: &Ops, members: &[(Self, usize)], room: &KvRoom) -> Result<Self, MlxError> {
        let members = members
            .iter()
            .map(|(kv_batch, len)| kv_batch.fitted(ops, *len, room));
        let members = members.collect::<Result<Vec<Self>, _>>()?;
        let layers = members.first().map_or(0, |kv_batch| kv_batch.layers.len());
        let layers = (0..layers).map(|layer| {
            let slots: Vec<&KvSlot> = members
                .iter()
                .map(|kv_batch| &kv_batch.layers[layer])
                .collect();
            KvSlot::join(ops, &slots)
        });
        Ok(Self {
            rows: members.len(),
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(KvSlot::arrays)
    }
}

/// Extra positions that an array may have.
pub const EXTRA_POSITIONS: usize = 8;

/// Positions of an array with room for `capacity` tokens of `dim` values. On CUDA, MLX uses cuDNN's
/// attention for multiples of 256 and its own otherwise; its own is faster for small heads and
/// short arrays (measured on an H200: docs/benchmarks.md).
fn positions(ops: &Ops, capacity: usize, dim: i32) -> i32 {
    const SHORT: usize = 2048;
    const SMALL_HEAD: i32 = 64;
    let extra = if ops.is_cuda() && capacity < SHORT && dim <= SMALL_HEAD {
        EXTRA_POSITIONS
    } else {
        0
    };
    (capacity + extra) as i32
}

/// The tokens before position `len` in an array with this room. The old array begins at position
/// `first`, no later than the room.
pub fn regrow(
    ops: &Ops,
    (old, first): (&Array, usize),
    len: usize,
    room: Range<usize>,
) -> Result<Array, MlxError> {
    let (rows, heads, dim) = (old.dim(0), old.dim(1), old.dim(3));
    let positions = positions(ops, room.len(), dim);
    if first == room.start && old.dim(2) == positions {
        return Ok(old.clone());
    }
    let new = ops.full(&[rows, heads, positions, dim], 0.0, old.dtype())?;
    let kept = len.saturating_sub(room.start);
    if kept == 0 {
        return Ok(new);
    }
    let start = room.start - first;
    let kept_keys = slice_axis(ops, old, 2, start..start + kept)?;
    ops.slice_update(&new, &kept_keys, &[0; 4], &[rows, heads, kept as i32, dim])
}

impl Recurrent {
    /// A copy that shares no memory with the rest of the batch.
    pub fn detach(&self, ops: &Ops) -> Result<Self, MlxError> {
        let detach = |array: &Array| ops.contiguous(array);
        Ok(Self {
            conv: self.conv.as_ref().map(detach).transpose()?,
            memory: self.memory.as_ref().map(detach).transpose()?,
        })
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.conv.iter().chain(&self.memory)
    }
}

/// Where the new tokens of a batch's rows are written.
pub enum WritePositions {
    /// After the first `start` tokens of every row.
    Aligned { start: usize, room: KvRoom },
    /// One token of each row at the row's place in arrays that have the room: row numbers, and
    /// indices by group of layers, int32.
    PerRow {
        rows: Array,
        indices: Vec<Array>,
        room: KvRoom,
    },
}

impl WritePositions {
    /// Only rows of one token each may have different lengths.
    pub fn new(ops: &Ops, starts: &[usize], room: KvRoom) -> Result<Self, MlxError> {
        if starts.iter().all(|start| *start == starts[0]) {
            return Ok(Self::Aligned {
                start: starts[0],
                room,
            });
        }
        let upload = |numbers: Vec<i32>| ops.upload_i32(&numbers, &[numbers.len() as i32]);
        let indices = room.firsts.iter().map(|first| {
            let indices = starts.iter().map(|start| (start - first) as i32);
            upload(indices.collect())
        });
        Ok(Self::PerRow {
            rows: upload((0..starts.len() as i32).collect())?,
            indices: indices.collect::<Result<_, _>>()?,
            room,
        })
    }

    /// Position of the first token in a group's arrays.
    fn first(&self, group: usize) -> usize {
        let (Self::Aligned { room, .. } | Self::PerRow { room, .. }) = self;
        room.firsts[group]
    }

    /// `old`: an array and the position of its first token.
    fn write(
        &self,
        ops: &Ops,
        group: usize,
        old: Option<(Array, usize)>,
        new: &Array,
    ) -> Result<Array, MlxError> {
        match self {
            Self::Aligned { start, room } => {
                let room = room.of_group(group);
                let at = (start - room.start) as i32;
                let array = match old {
                    Some((old, first)) => regrow(ops, (&old, first), *start, room)?,
                    None => {
                        let positions = positions(ops, room.len(), new.dim(3));
                        let dims = [new.dim(0), new.dim(1), positions, new.dim(3)];
                        ops.full(&dims, 0.0, new.dtype())?
                    }
                };
                let stop = [new.dim(0), new.dim(1), at + new.dim(2), new.dim(3)];
                ops.slice_update(&array, new, &[0, 0, at, 0], &stop)
            }
            Self::PerRow { rows, indices, .. } => match old {
                Some((old, _)) => {
                    let dims = [new.dim(0), 1, new.dim(1), 1, new.dim(3)];
                    ops.put_tokens(&old, rows, &indices[group], &ops.reshape(new, &dims)?)
                }
                None => Err(MlxError(
                    "rows without keys have different lengths".to_owned(),
                )),
            },
        }
    }
}
