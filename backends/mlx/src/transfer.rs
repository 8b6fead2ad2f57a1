//! Serializes sequences: for each layer its keys, its values, then its
//! recurrent state, each in row-major order.

use crate::array::{Array, Ops, Type};
use crate::error::MlxError;
use crate::kv::{Kv, KvBatch, KvSlot, Recurrent, regrow};
use crate::layout::{LayerLayout, Layout};
use crate::storage::Contents;

impl Layout {
    /// Bytes of an exported sequence of `len` tokens.
    pub fn export_len(&self, len: usize, dtype: Type) -> Option<usize> {
        let state = if len == 0 { 0 } else { self.state_bytes(dtype) };
        len.checked_mul(self.token_bytes(dtype))?.checked_add(state)
    }
}

pub fn export(
    ops: &Ops,
    layout: &Layout,
    contents: &Contents,
    out: &mut Vec<u8>,
) -> Result<(), MlxError> {
    if contents.len == 0 {
        return Ok(());
    }
    let missing = || MlxError("the keys of a sequence are missing".to_owned());
    let len = contents.len as i32;
    for (index, layer) in layout.layers.iter().enumerate() {
        if layer.kv.is_some() {
            let (kv_batch, row) = contents.kv.ok_or_else(missing)?;
            for array in kv_batch.layers[index].arrays() {
                let row = row as i32;
                let stop = [row + 1, array.dim(1), len, array.dim(3)];
                append(ops, &ops.slice(array, &[row, 0, 0, 0], &stop)?, out)?;
            }
        }
        if let Some(state) = contents.state.map(|layers| &layers[index]) {
            for array in state.arrays() {
                append(ops, array, out)?;
            }
        }
    }
    Ok(())
}

fn append(ops: &Ops, array: &Array, out: &mut Vec<u8>) -> Result<(), MlxError> {
    let values: usize = array.shape().iter().map(|dim| *dim as usize).product();
    let start = out.len();
    out.resize(start + values * array.dtype().bytes(), 0);
    ops.read(array, &mut out[start..])
}

/// Keys and values with room for `capacity` tokens, of which `len` are in `bytes`, and the
/// recurrent state. The caller has checked the length.
pub fn import(
    ops: &Ops,
    layout: &Layout,
    dtype: Type,
    (len, capacity): (usize, usize),
    bytes: &[u8],
) -> Result<(KvBatch, Vec<Recurrent>), MlxError> {
    let mut reader = Reader { ops, dtype, bytes };
    let mut layers = Vec::with_capacity(layout.layers.len());
    let mut states = Vec::with_capacity(layout.layers.len());
    for layer in &layout.layers {
        layers.push(match layer.kv {
            Some(shape) => {
                let keys =
                    reader.next_with_capacity([shape.heads, len, shape.key_dim], capacity)?;
                let values = match shape.value_dim {
                    0 => None,
                    dim => Some(reader.next_with_capacity([shape.heads, len, dim], capacity)?),
                };
                KvSlot::from(Kv { keys, values })
            }
            None => KvSlot::default(),
        });
        states.push(reader.state(layer)?);
    }
    Ok((KvBatch { rows: 1, layers }, states))
}

struct Reader<'a> {
    ops: &'a Ops,
    dtype: Type,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn next(&mut self, dims: &[usize], of: Type) -> Result<Array, MlxError> {
        let len = dims.iter().product::<usize>() * of.bytes();
        let (own, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or_else(|| MlxError("an exported sequence ends early".to_owned()))?;
        self.bytes = rest;
        let mut shape = vec![1];
        shape.extend(dims.iter().map(|dim| *dim as i32));
        self.ops.upload(own, &shape, of)
    }

    /// The next array with capacity for `capacity` tokens.
    fn next_with_capacity(&mut self, dims: [usize; 3], capacity: usize) -> Result<Array, MlxError> {
        let kept = self.next(&dims, self.dtype)?;
        regrow(self.ops, &kept, dims[1], capacity)
    }

    fn state(&mut self, layer: &LayerLayout) -> Result<Recurrent, MlxError> {
        let Some(shape) = layer.recurrent else {
            return Ok(Recurrent::default());
        };
        Ok(Recurrent {
            conv: match shape.conv {
                [0, _] => None,
                dims => Some(self.next(&dims, self.dtype)?),
            },
            memory: match shape.memory {
                Some(dims) => Some(self.next(&dims, Type::F32)?),
                None => None,
            },
        })
    }
}
