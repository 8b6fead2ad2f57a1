//! Serializes sequences: for each layer its keys, its values, then its
//! recurrent state, each in row-major order.

use std::ops::Range;

use loquat_session::{KvGroups, Memory};

use crate::array::{Array, Ops, Type};
use crate::error::MlxError;
use crate::kv::{Kv, KvBatch, KvRoom, KvSlot, Recurrent, regrow};
use crate::layout::{LayerLayout, Layout};
use crate::storage::Contents;

/// The format of a session's exports.
#[derive(Clone, Copy)]
pub struct Exports<'a> {
    layout: &'a Layout,
    dtype: Type,
    kv_groups: KvGroups,
    /// Tokens of a page.
    page: usize,
}

impl<'a> Exports<'a> {
    pub fn new(layout: &'a Layout, dtype: Type, memory: &Memory) -> Self {
        Self {
            layout,
            dtype,
            kv_groups: memory.kv_groups,
            page: memory.kv_granularity,
        }
    }

    /// The positions of a group that a sequence of `len` tokens exports: the pages in reach of the
    /// next token. Whole pages, because the sequence can be cut wherever pages reach back far
    /// enough.
    fn positions(&self, group: usize, len: usize) -> Range<usize> {
        let mut groups = self.kv_groups.iter();
        let first = groups
            .nth(group)
            .map(|group| group.first_page(len, self.page));
        first.unwrap_or(0) * self.page..len
    }

    /// Bytes of an exported sequence of `len` tokens.
    pub fn len(&self, len: usize) -> Option<usize> {
        if len == 0 {
            return Some(0);
        }
        // Lengths of damaged exports may have no next position.
        len.checked_add(1)?;
        let mut total = self.layout.state_bytes(self.dtype);
        for (index, group) in self.kv_groups.iter().enumerate() {
            let tokens = self.positions(index, len).len();
            let token_bytes = usize::try_from(group.bytes_per_token).ok()?;
            total = tokens.checked_mul(token_bytes)?.checked_add(total)?;
        }
        Some(total)
    }

    /// Appends a sequence.
    pub fn write(&self, ops: &Ops, contents: &Contents, out: &mut Vec<u8>) -> Result<(), MlxError> {
        if contents.len == 0 {
            return Ok(());
        }
        let missing = || MlxError("the keys of a sequence are missing".to_owned());
        let own_row = contents.kv.map(|(kv_batch, row)| kv_batch.row(ops, row));
        let own_row = own_row.transpose()?;
        for (index, layer) in self.layout.layers.iter().enumerate() {
            if let Some(shape) = layer.kv {
                let kv = own_row.as_ref().ok_or_else(missing)?.layers[index].get()?;
                let positions = self.positions(self.layout.groups.of_layer(index), contents.len);
                append(ops, &kv.keys_at(ops, positions.clone())?, out)?;
                if shape.value_dim > 0 {
                    append(ops, &kv.values_at(ops, positions)?, out)?;
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

    /// Keys and values with the given room, of which those before `len` are in `bytes`, and the
    /// recurrent state. The caller has checked the size.
    pub fn read(
        &self,
        ops: &Ops,
        (len, room): (usize, &KvRoom),
        bytes: &[u8],
    ) -> Result<(KvBatch, Vec<Recurrent>), MlxError> {
        let dtype = self.dtype;
        let mut reader = Reader { ops, dtype, bytes };
        let mut layers = Vec::with_capacity(self.layout.layers.len());
        let mut states = Vec::with_capacity(self.layout.layers.len());
        for (index, layer) in self.layout.layers.iter().enumerate() {
            let group = self.layout.groups.of_layer(index);
            let kv = layer.kv.map(|shape| {
                let positions = self.positions(group, len);
                let mut next = |dim: usize| -> Result<Array, MlxError> {
                    let kept = reader.next(&[shape.heads, positions.len(), dim], dtype)?;
                    let room = room.firsts[group]..room.end;
                    regrow(ops, (&kept, positions.start), len, room)
                };
                let keys = next(shape.key_dim)?;
                let values = match shape.value_dim {
                    0 => None,
                    dim => Some(next(dim)?),
                };
                Ok::<Kv, MlxError>(Kv::new(room.firsts[group], keys, values))
            });
            layers.push(KvSlot::new(group, kv.transpose()?));
            states.push(reader.state(layer)?);
        }
        Ok((KvBatch { rows: 1, layers }, states))
    }
}

fn append(ops: &Ops, array: &Array, out: &mut Vec<u8>) -> Result<(), MlxError> {
    let values: usize = array.shape().iter().map(|dim| *dim as usize).product();
    let start = out.len();
    out.resize(start + values * array.dtype().bytes(), 0);
    ops.read(array, &mut out[start..])
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
