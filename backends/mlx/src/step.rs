//! The context of one forward pass for blocks.
//!
//! The rows' tokens are concatenated in arrays of [tokens, ...]. Rows with equally many tokens
//! form a [`Group`], which a block can treat as one array of [rows, tokens, ...].

use std::ops::Range;

use loquat_spec::{MediaAttention, Reach, Temperature};

use crate::adapted::StepAdapters;
use crate::array::{Array, Binary, Ops, Type};
use crate::error::MlxError;
use crate::kv::{KvBatch, KvRoom, Recurrent, WritePositions};
use crate::media::StepMedia;
use crate::norm::{Rope, SectionedRope};
use crate::places::RowPlaces;

pub struct Step<'a> {
    pub ops: &'a Ops,
    /// Of activations.
    pub dtype: Type,
    pub groups: &'a [Group],
    pub rows: &'a mut [RowState],
    /// Keys and values of earlier tokens, in the rows' order.
    pub kv_batches: &'a mut [KvBatchState],
    /// Every token's inputs for every layer, [tokens, layers, dim], if the model has them.
    pub per_layer: Option<Array>,
    pub media: StepMedia,
    pub adapters: StepAdapters<'a>,
    /// What positions of media attend to.
    pub media_attention: MediaAttention,
    masks: Vec<(MaskKey, Array)>,
    /// By batch.
    masks_ahead: Vec<(usize, Reach, Array)>,
    /// By a group's first token: cosines and sines.
    angles: Vec<(usize, SectionedRope, [Array; 2])>,
    kv_batch_masks: Vec<(usize, Reach, Array)>,
    /// By a group's first token.
    query_scales: Vec<(usize, Temperature, Option<Array>)>,
}

/// Rows with equally many tokens.
pub struct Group {
    /// In the step's rows.
    pub rows: Range<usize>,
    /// Index of the group's first token among all tokens of the step.
    pub first: usize,
    /// Tokens of each row.
    pub tokens: usize,
    /// The rows' first positions, [rows], int32.
    pub offsets: Array,
    /// The same for ropes with several axes.
    pub rope: GroupRope,
    /// The batches of these rows, in the step's batches; a batch's rows are adjacent.
    pub kv_batches: Range<usize>,
}

/// Positions of a group's tokens, for ropes with several axes.
pub enum GroupRope {
    /// The rows' first positions, [rows], int32, from which tokens are counted.
    From(Array),
    /// Frame, row and column of each token, row after row.
    Each(Vec<[usize; 3]>),
}

/// A sequence during a step.
pub struct RowState {
    /// Tokens before the step.
    pub start: usize,
    /// Of its new tokens.
    pub places: RowPlaces,
    /// For each of the model's layers.
    pub recurrent: Vec<Recurrent>,
}

/// A batch during a step.
pub struct KvBatchState {
    pub kv_batch: KvBatch,
    /// In the step's rows.
    pub rows: Range<usize>,
    /// Where the rows' new tokens are written.
    pub positions: WritePositions,
}

impl KvBatchState {
    /// Only rows of one token each may have different lengths.
    pub fn new(
        ops: &Ops,
        kv_batch: KvBatch,
        rows: Range<usize>,
        starts: &[usize],
        room: KvRoom,
    ) -> Result<Self, MlxError> {
        Ok(Self {
            kv_batch,
            rows,
            positions: WritePositions::new(ops, starts, room)?,
        })
    }

    /// Whether all rows are equally long.
    pub fn is_aligned(&self) -> bool {
        matches!(self.positions, WritePositions::Aligned { .. })
    }
}

/// The parameters of a mask.
#[derive(Clone, Copy, PartialEq, Eq)]
struct MaskKey {
    queries: usize,
    keys: usize,
    /// The first key's position.
    origin: usize,
    reach: Reach,
}

impl Group {
    pub fn token_range(&self) -> Range<usize> {
        self.first..self.first + self.rows.len() * self.tokens
    }
}

impl<'a> Step<'a> {
    pub fn new(
        ops: &'a Ops,
        dtype: Type,
        groups: &'a [Group],
        rows: &'a mut [RowState],
        kv_batches: &'a mut [KvBatchState],
    ) -> Self {
        Self {
            ops,
            dtype,
            groups,
            rows,
            kv_batches,
            per_layer: None,
            media: StepMedia::default(),
            adapters: StepAdapters::default(),
            media_attention: MediaAttention::default(),
            masks: Vec::new(),
            masks_ahead: Vec::new(),
            angles: Vec::new(),
            kv_batch_masks: Vec::new(),
            query_scales: Vec::new(),
        }
    }

    /// Tokens over all rows.
    pub fn tokens(&self) -> usize {
        let last = self.groups.last();
        last.map_or(0, |group| group.token_range().end)
    }

    /// Every token's position, [tokens], int32.
    pub fn positions(&self) -> Result<Array, MlxError> {
        let mut positions = Vec::with_capacity(self.tokens());
        for group in self.groups {
            for row in &self.rows[group.rows.clone()] {
                let range = row.start..row.start + group.tokens;
                positions.extend(range.map(|position| position as i32));
            }
        }
        self.ops.upload_i32(&positions, &[positions.len() as i32])
    }

    /// The group's part of an array of [tokens, width...].
    pub fn group_part(&self, group: &Group, x: &Array) -> Result<Array, MlxError> {
        let range = group.token_range();
        if range == (0..self.tokens()) {
            return Ok(x.clone());
        }
        let mut stop = x.shape();
        let mut start = vec![0; stop.len()];
        (start[0], stop[0]) = (range.start as i32, range.end as i32);
        self.ops.slice(x, &start, &stop)
    }

    /// The groups' arrays of [tokens, ...], one after another, as one.
    pub fn gather(&self, parts: Vec<Array>) -> Result<Array, MlxError> {
        match <[Array; 1]>::try_from(parts) {
            Ok([whole]) => Ok(whole),
            Err(parts) => {
                let parts: Vec<&Array> = parts.iter().collect();
                self.ops.concatenate(&parts, 0)
            }
        }
    }

    /// Appends a batch's new keys (and values) of [rows, heads, tokens, dim] to the layer's.
    pub fn append(
        &mut self,
        kv_batch: usize,
        layer: usize,
        keys: &Array,
        values: Option<&Array>,
    ) -> Result<(), MlxError> {
        let KvBatchState {
            kv_batch,
            positions,
            ..
        } = &mut self.kv_batches[kv_batch];
        kv_batch.layers[layer].append(self.ops, positions, keys, values)
    }

    /// Rotates a group's heads, [rows, heads, tokens, dim], by their tokens' positions.
    pub fn rotate(&mut self, group: &Group, rope: &Rope, heads: &Array) -> Result<Array, MlxError> {
        match (&rope.sectioned, &group.rope) {
            (None, _) => rope.rotate(self.ops, heads, &group.offsets),
            (Some(_), GroupRope::From(offsets)) => rope.rotate(self.ops, heads, offsets),
            (Some(sectioned), GroupRope::Each(places)) => {
                let [cos, sin] = self.angles(group, sectioned, places)?;
                rope.rotate_by(self.ops, heads, [&cos, &sin])
            }
        }
    }

    /// Cosines and sines of a group's tokens, each [rows, 1, tokens, pairs]. Cached for all layers.
    fn angles(
        &mut self,
        group: &Group,
        rope: &SectionedRope,
        places: &[[usize; 3]],
    ) -> Result<[Array; 2], MlxError> {
        let mut known = self.angles.iter();
        let same = known.find(|(first, of, _)| *first == group.first && of == rope);
        if let Some((_, _, angles)) = same {
            return Ok(angles.clone());
        }
        let pairs = rope.frequencies.len() as i32;
        let dims = [group.rows.len() as i32, 1, group.tokens as i32, pairs];
        let [cos, sin] = rope.angles(places);
        let angles = [
            self.ops.upload_f32(&cos, &dims)?,
            self.ops.upload_f32(&sin, &dims)?,
        ];
        self.angles
            .push((group.first, rope.clone(), angles.clone()));
        Ok(angles)
    }

    /// Which of the keys at positions `seen` each query of a batch's only row attends to, as
    /// booleans of [queries, keys]. `None` unless some attend to later positions in layers of this
    /// reach. Cached for all layers.
    pub fn mask_ahead(
        &mut self,
        kv_batch: usize,
        seen: Range<usize>,
        reach: Reach,
    ) -> Result<Option<Array>, MlxError> {
        // Rows of several tokens are alone in their batch, and only those see ahead.
        let row = &self.rows[self.kv_batches[kv_batch].rows.start];
        let Some(seen_ends) = &row.places.seen_ends else {
            return Ok(None);
        };
        if !self.media_attention.applies_to(reach) {
            return Ok(None);
        }
        let mut known = self.masks_ahead.iter();
        let same = known.find(|(of, by, _)| *of == kv_batch && *by == reach);
        if let Some((_, _, mask)) = same {
            return Ok(Some(mask.clone()));
        }
        let ops = self.ops;
        let per_query = |positions: Vec<i32>| {
            let dims = [positions.len() as i32, 1];
            ops.upload_i32(&positions, &dims)
        };
        let queries = row.start..row.start + seen_ends.len();
        let first = per_query(queries.map(|at| reach.first_seen(at) as i32).collect())?;
        let last = per_query(seen_ends.iter().map(|end| *end as i32 - 1).collect())?;
        let keys = ops.arange(seen.start as i32, seen.end as i32, Type::I32)?;
        let mask = ops.binary(
            Binary::And,
            &ops.binary(Binary::GreaterEqual, &keys, &first)?,
            &ops.binary(Binary::GreaterEqual, &last, &keys)?,
        )?;
        self.masks_ahead.push((kv_batch, reach, mask.clone()));
        Ok(Some(mask))
    }

    /// The factors of a temperature for the group's queries, [rows, 1, tokens, 1]; `None` if all
    /// are one. Cached for all layers.
    pub fn query_scale(
        &mut self,
        group: &Group,
        temperature: &Temperature,
    ) -> Result<Option<Array>, MlxError> {
        let mut known = self.query_scales.iter();
        let same = known.find(|(first, of, _)| *first == group.first && of == temperature);
        if let Some((_, _, query_scale)) = same {
            return Ok(query_scale.clone());
        }
        let rows = self.rows[group.rows.clone()].iter();
        let values: Vec<f32> = rows
            .flat_map(|row| row.start..row.start + group.tokens)
            .map(|position| temperature.factor(position))
            .collect();
        let query_scale = if values.iter().all(|value| *value == 1.0) {
            None
        } else {
            let dims = [group.rows.len() as i32, 1, group.tokens as i32, 1];
            let query_scale = self.ops.upload_f32(&values, &dims)?;
            Some(self.ops.astype(&query_scale, self.dtype)?)
        };
        let entry = (group.first, *temperature, query_scale.clone());
        self.query_scales.push(entry);
        Ok(query_scale)
    }

    /// The positions that a batch's rows attend to with one token each, and which of them each row
    /// does, as booleans of [rows, 1, 1, positions]. Cached for all layers.
    pub fn kv_batch_mask(
        &mut self,
        kv_batch: usize,
        reach: Reach,
    ) -> Result<(Range<usize>, Array), MlxError> {
        let rows = &self.rows[self.kv_batches[kv_batch].rows.clone()];
        let starts = || rows.iter().map(|row| row.start);
        let first = starts().map(|own| reach.first_seen(own)).min();
        let seen = first.unwrap_or(0)..starts().max().map_or(0, |last| last + 1);
        let mut known = self.kv_batch_masks.iter();
        let same = known.find(|(of, by, _)| *of == kv_batch && *by == reach);
        if let Some((_, _, mask)) = same {
            return Ok((seen, mask.clone()));
        }
        let count = rows.len() as i32;
        let per_row = |position: &dyn Fn(usize) -> usize| {
            let positions = rows.iter().map(|row| position(row.start) as i32);
            let positions: Vec<i32> = positions.collect();
            self.ops.upload_i32(&positions, &[count, 1, 1, 1])
        };
        let all = self
            .ops
            .arange(seen.start as i32, seen.end as i32, Type::I32)?;
        let mut mask = self
            .ops
            .binary(Binary::GreaterEqual, &per_row(&|own| own)?, &all)?;
        if reach != Reach::All {
            let first = per_row(&|own| reach.first_seen(own))?;
            let in_reach = self.ops.binary(Binary::GreaterEqual, &all, &first)?;
            mask = self.ops.binary(Binary::And, &mask, &in_reach)?;
        }
        self.kv_batch_masks.push((kv_batch, reach, mask.clone()));
        Ok((seen, mask))
    }

    /// Which keys each query attends to, as booleans of [queries, keys], for queries that are the
    /// last of the keys; the first key is at position `origin`. Cached for all layers.
    pub fn mask(
        &mut self,
        queries: usize,
        keys: usize,
        origin: usize,
        reach: Reach,
    ) -> Result<Array, MlxError> {
        let key = MaskKey {
            queries,
            keys,
            origin,
            reach,
        };
        if let Some((_, mask)) = self.masks.iter().find(|(known, _)| *known == key) {
            return Ok(mask.clone());
        }
        let mask = make_mask(self.ops, key)?;
        self.masks.push((key, mask.clone()));
        Ok(mask)
    }
}

fn make_mask(ops: &Ops, key: MaskKey) -> Result<Array, MlxError> {
    let end = key.origin + key.keys;
    let range = |from: usize, to: usize| ops.arange(from as i32, to as i32, Type::I32);
    let keys = ops.reshape(&range(key.origin, end)?, &[1, key.keys as i32])?;
    let queries = range(end - key.queries, end)?;
    let queries = ops.reshape(&queries, &[key.queries as i32, 1])?;
    let not_after = ops.binary(Binary::GreaterEqual, &queries, &keys)?;
    let first_seen = match key.reach {
        Reach::All => return Ok(not_after),
        Reach::Window(window) => {
            let window = i32::try_from(window).unwrap_or(i32::MAX);
            ops.binary(
                Binary::Subtract,
                &queries,
                &ops.upload_i32(&[window - 1], &[1])?,
            )?
        }
        Reach::Chunk(chunk) => {
            let starts: Vec<i32> = (end - key.queries..end)
                .map(|position| (position / chunk * chunk) as i32)
                .collect();
            ops.upload_i32(&starts, &[key.queries as i32, 1])?
        }
    };
    let in_reach = ops.binary(Binary::GreaterEqual, &keys, &first_seen)?;
    ops.binary(Binary::And, &not_after, &in_reach)
}
