//! What a sequence remembers: keys and values in arrays with room to grow, recurrent states.
//!
//! MLX's arrays are values: forks share them until one of the two writes, and only then does MLX
//! copy. A write happens in place where nobody else holds the array, so states are moved through
//! a step, never cloned.

use crate::array::{Array, Ops, Type};
use crate::error::MlxError;

/// Keys and values of one layer; nothing before the first token, and in layers that keep none.
#[derive(Clone, Default)]
pub struct KvSlot(Option<Kv>);

/// Each [1, heads, room, dim].
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
    /// The heads' memories, float32.
    pub memory: Option<Array>,
}

impl KvSlot {
    /// Puts keys (and values) of [1, heads, tokens, dim] in their place.
    pub fn append(
        &mut self,
        ops: &Ops,
        at: Place,
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
        let missing = || MlxError("a layer reads keys that nobody wrote".to_owned());
        self.0.as_ref().ok_or_else(missing)
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let kv = self.0.iter();
        kv.flat_map(|kv| std::iter::once(&kv.keys).chain(&kv.values))
    }
}

impl Recurrent {
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.conv.iter().chain(&self.memory)
    }
}

/// Where a row's new tokens go.
#[derive(Clone, Copy)]
pub struct Place {
    pub start: usize,
    pub capacity: usize,
    pub dtype: Type,
}

impl Place {
    fn write(&self, ops: &Ops, old: Option<Array>, new: &Array) -> Result<Array, MlxError> {
        let (heads, tokens, dim) = (new.dim(1), new.dim(2), new.dim(3));
        let (start, capacity) = (self.start as i32, self.capacity as i32);
        let room = match old {
            Some(old) if old.dim(2) == capacity => old,
            old => {
                let room = ops.full(&[1, heads, capacity, dim], 0.0, self.dtype)?;
                match old {
                    Some(old) if start > 0 => {
                        let whole = [1, heads, start, dim];
                        let kept = ops.slice(&old, &[0; 4], &whole)?;
                        ops.slice_update(&room, &kept, &[0; 4], &whole)?
                    }
                    _ => room,
                }
            }
        };
        let from = [0, 0, start, 0];
        ops.slice_update(&room, new, &from, &[1, heads, start + tokens, dim])
    }
}

impl From<Kv> for KvSlot {
    fn from(kv: Kv) -> Self {
        Self(Some(kv))
    }
}
