//! Attention of one new token for each row.
//!
//! The kernels round probabilities to bf16 as they are at that time: relative to the largest score
//! that a warp has seen. So this walks over pages in the same splits and quarters.

use std::ops::Range;

use half::bf16;

use super::{X_BLOCK, XVectors};
use crate::fused::FusedAttention;
use crate::fused_launch::has_attention;
use crate::interpret::attention::{key_offset, page_address, value_offset};
use crate::interpret::logits::softcap;
use crate::interpret::{Launch, Result, bytes_at, dot, vector};
use crate::ops::{Address, Format, KvRef, PAGE};

/// Into which a row's pages are cut.
const SPLITS: usize = 16;
/// Slots of a page that a warp walks over.
const QUARTER: usize = PAGE / 4;

/// A token's heads, after norm and rope, rounded.
pub(super) struct NewToken {
    pub queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// A token's earlier positions, and the pages they are in.
pub(super) struct Past {
    /// In reach.
    positions: Range<usize>,
    /// The first position of the first page.
    first: usize,
    pages: Vec<Address>,
}

/// One key head's earlier keys and values by position from [`Past::first`] on. Keys out of reach
/// are zeros.
struct PastHead {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// Softmax of some scores, relative to the largest.
#[derive(Clone)]
struct PartialSoftmax {
    largest: f32,
    total: f32,
    mixed: Vec<f32>,
}

impl Launch<'_> {
    pub(super) fn fused_attention(&mut self, op: &FusedAttention) -> Result<()> {
        self.check_attention(op)?;
        let head_dim = op.kv.head_dim as usize;
        self.access.set_shared();
        let query_gain = self
            .access
            .optional_f32s("query_gain", op.query_gain, head_dim)?;
        let key_gain = self
            .access
            .optional_f32s("key_gain", op.key_gain, head_dim)?;
        let gains = [query_gain, key_gain];
        let width = op.heads * op.kv.head_dim;
        let to = XVectors::fragments("out", op.out, width).in_order(op.flags, op.groups);
        for (index, token) in self.covered().enumerate() {
            self.access.set_unit(token);
            let new = self.new_token(op, token, &gains)?;
            let position = self.position(token)?;
            let row = op.first_row as usize + index;
            let (past, page) = self.past(op, row, position)?;
            let (heads, kv_heads) = (op.heads as usize, op.kv.heads as usize);
            let sharing = heads / kv_heads;
            let mut out = Vec::with_capacity(heads * head_dim);
            for kv_head in 0..kv_heads {
                let of_past = self.past_head(&op.kv, &past, kv_head)?;
                let own = kv_head * head_dim..(kv_head + 1) * head_dim;
                let own = [&new.keys[own.clone()], &new.values[own]];
                for head in kv_head * sharing..(kv_head + 1) * sharing {
                    let query = &new.queries[head * head_dim..(head + 1) * head_dim];
                    out.extend(attend(op, query, (&past, &of_past), own));
                }
            }
            self.write_x(&to, token, &out)?;
            self.write_new_token(&op.kv, page, position % PAGE, &new)?;
        }
        Ok(())
    }

    /// What the kernels take for granted.
    pub(super) fn check_attention(&self, op: &FusedAttention) -> Result<()> {
        let (kv, require) = (&op.kv, |holds, operand, why| {
            self.access.require(holds, operand, why)
        });
        self.check_layout(kv)?;
        let is_plain = kv.format == Format::Bf16 && kv.values_in_keys == 0;
        require(is_plain, "kv", "not bf16 keys and values")?;
        let is_square = kv.value_dim == kv.head_dim;
        require(is_square, "kv", "values are not as long as keys")?;
        let divides = kv.heads > 0 && op.heads.is_multiple_of(kv.heads);
        require(divides, "heads", "not a multiple of the key heads")?;
        let sharing = op.heads / kv.heads;
        let has_kernel = sharing > 0 && has_attention(kv.head_dim as usize, sharing as usize);
        require(has_kernel, "heads", "no kernel has such heads")?;
        let rotates = 2 * op.pairs <= kv.head_dim;
        require(rotates, "pairs", "more than a head has")?;
        let fits = (op.heads * kv.head_dim).is_multiple_of(X_BLOCK as u32);
        require(fits, "out", "its width is not a multiple of 32")?;
        // Keys are loaded by 16 bytes, four slots of values by 8.
        let pages = [
            kv.pages,
            Address(kv.page_bytes),
            Address(kv.keys),
            Address(kv.values),
        ];
        let is_aligned = pages.iter().all(|part| part.0.is_multiple_of(16));
        require(is_aligned, "kv", "not aligned to 16 bytes")
    }

    /// Norm and rope of a token's queries and keys.
    pub(super) fn new_token(
        &mut self,
        op: &FusedAttention,
        token: usize,
        gains: &[Option<Vec<f32>>; 2],
    ) -> Result<NewToken> {
        let head_dim = op.kv.head_dim as usize;
        let (queries, keys) = (
            op.heads as usize * head_dim,
            op.kv.heads as usize * head_dim,
        );
        let width = queries + 2 * keys;
        let from = vector(op.qkv, token, width as u32);
        let mut qkv = self.access.f32s("qkv", from, width)?;
        let pairs = op.pairs as usize;
        let [cos, sin] = [("cos", op.cos), ("sin", op.sin)].map(|(operand, angles)| {
            self.access
                .f32s(operand, vector(angles, token, op.pairs), pairs)
        });
        let (cos, sin) = (cos?, sin?);
        let heads = qkv[..queries + keys].chunks_exact_mut(head_dim);
        for (head, values) in heads.enumerate() {
            let gain = &gains[usize::from(head >= op.heads as usize)];
            if let Some(gain) = gain {
                let squares: f32 = values.iter().map(|value| value * value).sum();
                let factor = 1.0 / (squares / head_dim as f32 + op.eps).sqrt();
                for (value, gain) in values.iter_mut().zip(gain) {
                    *value *= factor * gain;
                }
            }
            for (pair, (cos, sin)) in cos.iter().zip(&sin).enumerate() {
                let (low, high) = (values[pair], values[pair + pairs]);
                values[pair] = low * cos - high * sin;
                values[pair + pairs] = high * cos + low * sin;
            }
        }
        qkv.iter_mut().for_each(|value| *value = rounded(*value));
        let values = qkv.split_off(queries + keys);
        let keys = qkv.split_off(queries);
        Ok(NewToken {
            queries: qkv,
            keys,
            values,
        })
    }

    /// What a row's token attends to besides itself, and the page of its own keys and values.
    pub(super) fn past(
        &mut self,
        op: &FusedAttention,
        row: usize,
        position: usize,
    ) -> Result<(Past, Address)> {
        let run = self.page_run_of_row("first_row", row, op.kv.group)?;
        let reach = match op.reach_len as usize {
            0 => position + 1,
            len => len,
        };
        let start = (position + 1).saturating_sub(reach);
        self.check_run(run.first as usize, start)?;
        let first = start / PAGE * PAGE;
        let index = |position: usize| (position - run.first as usize) / PAGE;
        let pages = self.pages(run, index(first)..index(position) + 1)?;
        let mut pages: Vec<Address> = pages
            .into_iter()
            .map(|page| page_address(&op.kv, page))
            .collect();
        let own = pages[pages.len() - 1];
        // A token that sees only itself needs none, even if others share its page.
        pages.truncate(if start < position {
            (position - first).div_ceil(PAGE)
        } else {
            0
        });
        let past = Past {
            positions: start..position,
            first,
            pages,
        };
        Ok((past, own))
    }

    fn past_head(&mut self, kv: &KvRef, past: &Past, head: usize) -> Result<PastHead> {
        let head_dim = kv.head_dim as usize;
        let len = past.positions.end - past.first;
        let mut found = PastHead {
            keys: vec![0.0; len * head_dim],
            values: vec![0.0; len * head_dim],
        };
        let Range { start, end } = past.positions;
        for (index, page) in past.pages.iter().enumerate() {
            let first = past.first + index * PAGE;
            let end = end.min(first + PAGE);
            let part = |from: usize| (from - past.first) * head_dim..(end - past.first) * head_dim;
            let seen = start.max(first);
            let keys = &mut found.keys[part(seen)];
            self.read_keys(kv, *page, (head, seen - first), keys)?;
            // Also what is out of reach at the beginning of a page: kernels multiply it by zero,
            // so it must be finite. The new token's slot is in the range that `read_values` logs,
            // hence a loop of its own.
            let values = &mut found.values[part(first)];
            for dim in 0..head_dim {
                let row = head * head_dim + dim;
                let from = bytes_at(*page, value_offset(kv, row, 0));
                let bytes = 2 * (end - first);
                let stored = self.access.unlogged("values", from, bytes, 2)?;
                let halves = stored.as_chunks::<2>().0.iter();
                for (value, half) in values.chunks_exact_mut(head_dim).zip(halves) {
                    value[dim] = bf16::from_le_bytes(*half).to_f32();
                }
            }
        }
        Ok(found)
    }

    pub(super) fn write_new_token(
        &mut self,
        kv: &KvRef,
        page: Address,
        slot: usize,
        new: &NewToken,
    ) -> Result<()> {
        let head_dim = kv.head_dim as usize;
        for (head, key) in new.keys.chunks_exact(head_dim).enumerate() {
            let to = bytes_at(page, key_offset(kv, head, slot));
            self.access
                .write_stored("keys of the page", to, key, kv.format)?;
        }
        for (row, value) in new.values.iter().enumerate() {
            let to = bytes_at(page, value_offset(kv, row, slot));
            // Not logged: the write of the token's keys already marks its slot in the log.
            self.access
                .write_unlogged("values of the page", to, &[*value], kv.format)?;
        }
        Ok(())
    }
}

/// One head's output.
fn attend(
    op: &FusedAttention,
    query: &[f32],
    (past, of_past): (&Past, &PastHead),
    [key, value]: [&[f32]; 2],
) -> Vec<f32> {
    let pages = past.pages.len();
    let per_split = pages.div_ceil(SPLITS).max(1);
    let mut parts: Vec<PartialSoftmax> = (0..pages)
        .step_by(per_split)
        .map(|page| {
            let pages = page..pages.min(page + per_split);
            let quarters: Vec<PartialSoftmax> = (0..PAGE / QUARTER)
                .map(|quarter| walk_quarter(op, query, (past, of_past), pages.clone(), quarter))
                .collect();
            PartialSoftmax::merge(&quarters)
        })
        .collect();
    parts.push(PartialSoftmax {
        largest: score(op, dot(query, key)),
        total: 1.0,
        mixed: value.to_vec(),
    });
    let PartialSoftmax { total, mixed, .. } = PartialSoftmax::merge(&parts);
    mixed.into_iter().map(|value| value / total).collect()
}

/// A warp's slots in the pages of a split.
fn walk_quarter(
    op: &FusedAttention,
    query: &[f32],
    (past, of_past): (&Past, &PastHead),
    pages: Range<usize>,
    quarter: usize,
) -> PartialSoftmax {
    let head_dim = query.len();
    let mut softmax = PartialSoftmax {
        largest: f32::NEG_INFINITY,
        total: 0.0,
        mixed: vec![0.0; head_dim],
    };
    let len = past.positions.end - past.first;
    for page in pages {
        let first = page * PAGE + quarter * QUARTER;
        let scores: Vec<f32> = (first..len.min(first + QUARTER))
            .map(|slot| {
                if past.positions.contains(&(past.first + slot)) {
                    let key = &of_past.keys[slot * head_dim..(slot + 1) * head_dim];
                    score(op, dot(query, key))
                } else {
                    f32::NEG_INFINITY
                }
            })
            .collect();
        let values = of_past.values[first.min(len) * head_dim..].chunks_exact(head_dim);
        softmax.add(&scores, values);
    }
    softmax
}

impl PartialSoftmax {
    fn add<'a>(&mut self, scores: &[f32], values: impl Iterator<Item = &'a [f32]>) {
        let largest = scores.iter().copied().fold(self.largest, f32::max);
        let decay = weight(self.largest, largest);
        self.total *= decay;
        self.mixed.iter_mut().for_each(|mixed| *mixed *= decay);
        for (score, value) in scores.iter().zip(values) {
            let probability = weight(*score, largest);
            self.total += probability;
            let probability = rounded(probability);
            for (mixed, value) in self.mixed.iter_mut().zip(value) {
                *mixed += probability * value;
            }
        }
        self.largest = largest;
    }

    fn merge(parts: &[Self]) -> Self {
        let largest = parts
            .iter()
            .map(|part| part.largest)
            .fold(f32::NEG_INFINITY, f32::max);
        let mut merged = Self {
            largest,
            total: 0.0,
            mixed: vec![0.0; parts[0].mixed.len()],
        };
        for part in parts {
            let factor = weight(part.largest, largest);
            merged.total += factor * part.total;
            for (merged, value) in merged.mixed.iter_mut().zip(&part.mixed) {
                *merged += factor * value;
            }
        }
        merged
    }
}

/// A score in units of log 2.
fn score(op: &FusedAttention, product: f32) -> f32 {
    softcap(product * op.scale, op.softcap) * std::f32::consts::LOG2_E
}

/// Nothing is relative to nothing.
fn weight(score: f32, largest: f32) -> f32 {
    if score == f32::NEG_INFINITY {
        0.0
    } else {
        (score - largest).exp2()
    }
}

fn rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}
