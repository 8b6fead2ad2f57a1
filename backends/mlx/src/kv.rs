//! The storage of sequences: keys and values in arrays with room to grow, and recurrent states.
//!
//! Sequences that decode together keep their keys in one array, a [`KvBatch`], so that a layer
//! writes and reads them in a few operations for any number of sequences. A single sequence is a
//! batch of one.
//!
//! MLX's arrays are values: forks share them until one of the two writes, and only then does MLX
//! copy. A write happens in place if nothing else refers to the array, so batches are moved
//! through a step, never cloned.

use crate::array::{Array, Ops};
use crate::error::MlxError;

/// Keys and values of one layer; empty before the first token and in layers without KV.
#[derive(Clone, Default)]
pub struct KvSlot(Option<Kv>);

/// Each [rows, heads, room, dim].
#[derive(Clone)]
pub struct Kv {
    pub keys: Array,
    /// `None`: values are a part of the keys.
    pub values: Option<Array>,
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
    /// Writes keys (and values) of [rows, heads, tokens, dim].
    pub fn append(
        &mut self,
        ops: &Ops,
        at: &WritePositions,
        keys: &Array,
        values: Option<&Array>,
    ) -> Result<(), MlxError> {
        let (old_keys, old_values) = match self.0.take() {
            Some(kv) => (Some(kv.keys), kv.values),
            None => (None, None),
        };
        let keys = at.write(ops, old_keys, keys)?;
        let values = match values {
            Some(values) => Some(at.write(ops, old_values, values)?),
            None => None,
        };
        self.0 = Some(Kv { keys, values });
        Ok(())
    }

    pub fn get(&self) -> Result<&Kv, MlxError> {
        let missing = || MlxError("a layer reads keys that do not exist".to_owned());
        self.0.as_ref().ok_or_else(missing)
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let kv = self.0.iter();
        kv.flat_map(|kv| std::iter::once(&kv.keys).chain(&kv.values))
    }

    /// Applies a function to each array.
    pub fn map(
        &self,
        change: impl Fn(&Array) -> Result<Array, MlxError>,
    ) -> Result<Self, MlxError> {
        let Some(kv) = &self.0 else {
            return Ok(Self(None));
        };
        Ok(Self(Some(Kv {
            keys: change(&kv.keys)?,
            values: kv.values.as_ref().map(change).transpose()?,
        })))
    }

    /// Concatenates slots of one layer along the rows.
    fn join(ops: &Ops, slots: &[&Self]) -> Result<Self, MlxError> {
        let join = |pick: fn(&Kv) -> Option<&Array>| {
            let arrays: Vec<&Array> = slots
                .iter()
                .filter_map(|slot| slot.0.as_ref().and_then(pick))
                .collect();
            if arrays.len() == slots.len() {
                ops.concatenate(&arrays, 0).map(Some)
            } else {
                Ok(None)
            }
        };
        let keys = join(|kv| Some(&kv.keys))?;
        let values = join(|kv| kv.values.as_ref())?;
        Ok(Self(keys.map(|keys| Kv { keys, values })))
    }
}

/// Sequences' keys and values of all layers, in arrays of [rows, heads, room, dim].
#[derive(Clone, Default)]
pub struct KvBatch {
    pub rows: usize,
    /// For each of the model's layers.
    pub layers: Vec<KvSlot>,
}

impl KvBatch {
    pub fn empty(rows: usize, layers: usize) -> Self {
        Self {
            rows,
            layers: vec![KvSlot::default(); layers],
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

    /// With room for `capacity` tokens, of which the first `len` are kept.
    fn fitted(&self, ops: &Ops, len: usize, capacity: usize) -> Result<Self, MlxError> {
        self.map(self.rows, |array| regrow(ops, array, len, capacity))
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

    /// Whether its arrays have the size for `capacity` tokens.
    pub fn fits(&self, ops: &Ops, capacity: usize) -> bool {
        let mut arrays = self.arrays();
        arrays.all(|array| array.dim(2) == positions(ops, capacity, array.dim(3)))
    }

    /// Sequences of the given lengths together, all with room for `capacity` tokens.
    pub fn join(ops: &Ops, members: &[(Self, usize)], capacity: usize) -> Result<Self, MlxError> {
        let members = members
            .iter()
            .map(|(kv_batch, len)| kv_batch.fitted(ops, *len, capacity));
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

/// The first `len` tokens in an array with room for `capacity`.
pub fn regrow(ops: &Ops, old: &Array, len: usize, capacity: usize) -> Result<Array, MlxError> {
    let (rows, heads, dim) = (old.dim(0), old.dim(1), old.dim(3));
    let (len, positions) = (len as i32, positions(ops, capacity, dim));
    if old.dim(2) == positions {
        return Ok(old.clone());
    }
    let room = ops.full(&[rows, heads, positions, dim], 0.0, old.dtype())?;
    let kept_dims = [rows, heads, len, dim];
    let kept = ops.slice(old, &[0; 4], &kept_dims)?;
    ops.slice_update(&room, &kept, &[0; 4], &kept_dims)
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
    /// After the first `start` tokens of every row, in arrays with room for `capacity`.
    Aligned { start: usize, capacity: usize },
    /// One token of each row at the row's position: row numbers and positions, int32.
    PerRow { rows: Array, positions: Array },
}

impl WritePositions {
    fn write(&self, ops: &Ops, old: Option<Array>, new: &Array) -> Result<Array, MlxError> {
        match self {
            Self::Aligned { start, capacity } => {
                let room = match old {
                    Some(old) => regrow(ops, &old, *start, *capacity)?,
                    None => {
                        let positions = positions(ops, *capacity, new.dim(3));
                        let dims = [new.dim(0), new.dim(1), positions, new.dim(3)];
                        ops.full(&dims, 0.0, new.dtype())?
                    }
                };
                let start = *start as i32;
                let stop = [new.dim(0), new.dim(1), start + new.dim(2), new.dim(3)];
                ops.slice_update(&room, new, &[0, 0, start, 0], &stop)
            }
            Self::PerRow { rows, positions } => match old {
                Some(old) => {
                    let dims = [new.dim(0), 1, new.dim(1), 1, new.dim(3)];
                    ops.put_tokens(&old, rows, positions, &ops.reshape(new, &dims)?)
                }
                None => Err(MlxError(
                    "rows without keys have different lengths".to_owned(),
                )),
            },
        }
    }
}

impl From<Kv> for KvSlot {
    fn from(kv: Kv) -> Self {
        Self(Some(kv))
    }
}
