//! Softmax attention, and the pages it reads.

use std::ops::Range;

use super::access::decode;
use super::logits::softcap;
use super::{Launch, Result, at, bytes_at, dot, vector};
use crate::ops::{Address, Attend, AttendDense, KvRef, PAGE, ReachKind, WriteKv};

/// One head's keys and values that a token sees, `[position][head_dim]` and
/// `[position][value_dim]`.
struct Seen {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// What a head's softmax needs beside its query.
struct Scoring {
    scale: f32,
    softcap: f32,
    sink: Option<f32>,
}

impl Launch<'_> {
    pub(super) fn write_kv(&mut self, op: &WriteKv) -> Result<()> {
        self.check_layout(&op.kv)?;
        let kv = &op.kv;
        let (heads, format) = (kv.heads as usize, kv.format);
        let (head_dim, value_dim) = (kv.head_dim as usize, kv.value_dim as usize);
        for token in self.covered() {
            self.access.set_unit(token);
            let position = self.position(token)?;
            let page = self.page_of(kv, token, position)?;
            let slot = position % PAGE;
            let keys = vector(op.keys, token, op.key_stride);
            let keys = self.access.f32s("keys", keys, heads * head_dim)?;
            for (head, key) in keys.chunks_exact(head_dim).enumerate() {
                let to = bytes_at(page, key_offset(kv, head, slot));
                self.access
                    .write_stored("keys of the page", to, key, format)?;
            }
            if kv.values_in_keys != 0 {
                continue;
            }
            let values = vector(op.values, token, op.value_stride);
            let values = self.access.f32s("values", values, heads * value_dim)?;
            for (row, value) in values.iter().enumerate() {
                let to = bytes_at(page, value_offset(kv, row, slot));
                // Not logged: the write of the token's keys already marks its slot in the log.
                self.access
                    .write_unlogged("values of the page", to, &[*value], format)?;
            }
        }
        Ok(())
    }

    pub(super) fn attend(&mut self, op: &Attend) -> Result<()> {
        self.check_layout(&op.kv)?;
        let (heads, kv_heads) = (op.heads as usize, op.kv.heads as usize);
        let (head_dim, value_dim) = (op.kv.head_dim as usize, op.kv.value_dim as usize);
        let divides = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        self.access
            .require(divides, "heads", "not a multiple of the key heads")?;
        let sharing = heads / kv_heads;
        self.access.set_shared();
        let sinks = self.access.optional_f32s("sinks", op.sinks, heads)?;
        for token in self.covered() {
            self.access.set_unit(token);
            let visible = self.visible(op, token)?;
            let query = vector(op.query, token, op.query_stride);
            let query = self.access.f32s("query", query, heads * head_dim)?;
            let mut out = vec![0.0; heads * value_dim];
            for kv_head in 0..kv_heads {
                let seen = self.seen(&op.kv, token, kv_head, &visible)?;
                for head in kv_head * sharing..(kv_head + 1) * sharing {
                    let scoring = Scoring {
                        scale: op.scale,
                        softcap: op.softcap,
                        sink: sinks.as_ref().map(|sinks| sinks[head]),
                    };
                    mix(
                        &scoring,
                        &query[head * head_dim..(head + 1) * head_dim],
                        &seen,
                        &mut out[head * value_dim..(head + 1) * value_dim],
                    );
                }
            }
            let to = vector(op.out, token, op.out_stride);
            self.access.write("out", to, &out)?;
        }
        Ok(())
    }

    pub(super) fn attend_dense(&mut self, op: &AttendDense) -> Result<()> {
        let head_dim = op.head_dim as usize;
        self.access.require(head_dim > 0, "head_dim", "is 0")?;
        for token in self.covered() {
            self.access.set_unit(token);
            let range = self.token_u32s("ranges", op.ranges, token, 2)?;
            let range = range[0] as usize..range[1] as usize;
            self.access
                .require(!range.is_empty(), "ranges", "a token sees nothing")?;
            for head in 0..op.heads as usize {
                let of_head = |buffer: Address, token: usize| {
                    at(vector(buffer, token, op.stride), head * head_dim)
                };
                let query = of_head(op.query, token);
                let query = self.access.f32s("query", query, head_dim)?;
                let mut seen = Seen {
                    keys: Vec::new(),
                    values: Vec::new(),
                };
                for other in range.clone() {
                    let key = of_head(op.key, other);
                    seen.keys.extend(self.access.f32s("key", key, head_dim)?);
                    let value = of_head(op.value, other);
                    let value = self.access.f32s("value", value, head_dim)?;
                    seen.values.extend(value);
                }
                let scoring = Scoring {
                    scale: op.scale,
                    softcap: 0.0,
                    sink: None,
                };
                let mut out = vec![0.0; head_dim];
                mix(&scoring, &query, &seen, &mut out);
                self.access.write("out", of_head(op.out, token), &out)?;
            }
        }
        Ok(())
    }

    /// The positions that a token attends to.
    fn visible(&mut self, op: &Attend, token: usize) -> Result<Range<usize>> {
        let position = self.position(token)?;
        let len = op.reach_len as usize;
        self.access.require(
            op.reach == ReachKind::All || len > 0,
            "reach_len",
            "0 in a layer of limited reach",
        )?;
        let first = match op.reach {
            ReachKind::All => 0,
            ReachKind::Window => (position + 1).saturating_sub(len),
            ReachKind::Chunk => position / len * len,
        };
        let end = if op.looks_ahead == 0 {
            position + 1
        } else {
            self.seen_end(token)?
        };
        self.access
            .require(first < end, "seen_end", "a token sees nothing")?;
        Ok(first..end)
    }

    /// Reads one head's keys and values at the positions.
    fn seen(
        &mut self,
        kv: &KvRef,
        token: usize,
        head: usize,
        visible: &Range<usize>,
    ) -> Result<Seen> {
        let run = self.page_run(token, kv.group)?;
        let run_first = run.first as usize;
        self.check_run(run_first, visible.start)?;
        let (start, end) = (visible.start - run_first, visible.end - run_first);
        let page_range = start / PAGE..end.div_ceil(PAGE);
        let pages = self.pages(run, page_range.clone())?;
        let (head_dim, value_dim) = (kv.head_dim as usize, kv.value_dim as usize);
        let mut keys = vec![0.0; (end - start) * head_dim];
        let mut values = vec![0.0; (end - start) * value_dim];
        for (index, page) in page_range.zip(pages) {
            let page = page_address(kv, page);
            let first = start.max(index * PAGE);
            let len = end.min((index + 1) * PAGE) - first;
            let (slot, first) = (first % PAGE, first - start);
            let keys = &mut keys[first * head_dim..(first + len) * head_dim];
            self.read_keys(kv, page, (head, slot), keys)?;
            let values = &mut values[first * value_dim..(first + len) * value_dim];
            if kv.values_in_keys == 0 {
                self.read_values(kv, page, (head, slot), values)?;
            } else {
                let pairs = values.chunks_exact_mut(value_dim);
                for (value, key) in pairs.zip(keys.chunks_exact(head_dim)) {
                    value.copy_from_slice(&key[..value_dim]);
                }
            }
        }
        Ok(Seen { keys, values })
    }

    /// Fills `out` with a head's keys from `slot` on.
    pub(super) fn read_keys(
        &mut self,
        kv: &KvRef,
        page: Address,
        (head, slot): (usize, usize),
        out: &mut [f32],
    ) -> Result<()> {
        let from = bytes_at(page, key_offset(kv, head, slot));
        let stored = self.access.stored("keys", from, out.len(), kv.format)?;
        decode(stored, kv.format, out);
        Ok(())
    }

    /// Fills `out` with a head's values from `slot` on.
    fn read_values(
        &mut self,
        kv: &KvRef,
        page: Address,
        (head, slot): (usize, usize),
        out: &mut [f32],
    ) -> Result<()> {
        let (value_dim, size) = (kv.value_dim as usize, kv.format.bytes());
        let len = out.len() / value_dim.max(1);
        let mut row = vec![0.0; len];
        let first = bytes_at(page, value_offset(kv, head * value_dim, 0));
        self.access
            .note_read("values", first, value_dim * PAGE * size);
        for dim in 0..value_dim {
            let from = bytes_at(page, value_offset(kv, head * value_dim + dim, slot));
            let stored = self.access.unlogged("values", from, len * size, size)?;
            decode(stored, kv.format, &mut row);
            for (value, row) in out.chunks_exact_mut(value_dim).zip(&row) {
                value[dim] = *row;
            }
        }
        Ok(())
    }

    /// The page of a token's own keys and values.
    fn page_of(&mut self, kv: &KvRef, token: usize, position: usize) -> Result<Address> {
        let run = self.page_run(token, kv.group)?;
        let run_first = run.first as usize;
        self.check_run(run_first, position)?;
        let page = (position - run_first) / PAGE;
        let pages = self.pages(run, page..page + 1)?;
        Ok(page_address(kv, pages[0]))
    }

    pub(super) fn check_run(&self, run_first: usize, position: usize) -> Result<()> {
        let is_page = run_first.is_multiple_of(PAGE);
        self.access
            .require(is_page, "page_runs", "the first position is not a page's")?;
        if run_first > position {
            let why = format!("begins at {run_first}, but position {position} is needed");
            return Err(self.access.invalid("page_runs", why));
        }
        Ok(())
    }

    /// Checks that keys and values are within a page, and apart.
    pub(super) fn check_layout(&self, kv: &KvRef) -> Result<()> {
        let len = |dim: u32| (kv.heads as usize * PAGE * dim as usize * kv.format.bytes()) as u64;
        let has_values = kv.head_dim > 0 && kv.value_dim > 0;
        self.access
            .require(has_values, "kv", "no values in a head")?;
        let keys = kv.keys..kv.keys.saturating_add(len(kv.head_dim));
        let values = kv.values..kv.values.saturating_add(len(kv.value_dim));
        let fits = keys.end <= kv.page_bytes;
        self.access.require(fits, "kv", "keys exceed the page")?;
        if kv.values_in_keys != 0 {
            let fits = kv.value_dim <= kv.head_dim;
            return self
                .access
                .require(fits, "kv", "values are longer than the keys they are in");
        }
        let fits = values.end <= kv.page_bytes;
        self.access.require(fits, "kv", "values exceed the page")?;
        let apart = keys.end <= values.start || values.end <= keys.start;
        self.access.require(apart, "kv", "keys and values overlap")
    }
}

pub(super) fn page_address(kv: &KvRef, page: u32) -> Address {
    bytes_at(kv.pages, u64::from(page).wrapping_mul(kv.page_bytes))
}

pub(super) fn key_offset(kv: &KvRef, head: usize, slot: usize) -> u64 {
    let values = (head * PAGE + slot) * kv.head_dim as usize;
    kv.keys + (values * kv.format.bytes()) as u64
}

/// `row` counts value dimensions over all heads.
pub(super) fn value_offset(kv: &KvRef, row: usize, slot: usize) -> u64 {
    kv.values + ((row * PAGE + slot) * kv.format.bytes()) as u64
}

/// `out = softmax(scores) · values`. The maximum includes the sink, so that no exponential
/// overflows.
fn mix(scoring: &Scoring, query: &[f32], seen: &Seen, out: &mut [f32]) {
    let mut weights: Vec<f32> = seen
        .keys
        .chunks_exact(query.len())
        .map(|key| softcap(dot(query, key) * scoring.scale, scoring.softcap))
        .collect();
    let sink = scoring.sink.unwrap_or(f32::NEG_INFINITY);
    let max = weights.iter().copied().fold(sink, f32::max);
    let mut total = (sink - max).exp();
    for weight in &mut weights {
        *weight = (*weight - max).exp();
        total += *weight;
    }
    for (weight, value) in weights.iter().zip(seen.values.chunks_exact(out.len())) {
        for (out, value) in out.iter_mut().zip(value) {
            *out += weight / total * value;
        }
    }
}
