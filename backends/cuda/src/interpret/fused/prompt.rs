//! Attention of rows of several tokens, in two operations.

use half::bf16;

use super::XVectors;
use crate::fused::{FusedAttention, FusedPromptAttention, FusedQkvFinish};
use crate::interpret::attention::value_offset;
use crate::interpret::logits::softcap;
use crate::interpret::{Launch, Result, bytes_at, dot};
use crate::ops::{Address, Format, PAGE};

impl Launch<'_> {
    pub(super) fn finish_qkv(&mut self, op: &FusedQkvFinish) -> Result<()> {
        let as_attention = FusedAttention {
            kv: op.kv,
            qkv: op.qkv,
            cos: op.cos,
            sin: op.sin,
            query_gain: op.query_gain,
            key_gain: op.key_gain,
            out: op.query,
            heads: op.heads,
            pairs: op.pairs,
            reach_len: 0,
            first_row: 0,
            scale: 1.0,
            softcap: 0.0,
            eps: op.eps,
            flags: 0,
            groups: 0,
            reserved: 0,
        };
        self.check_attention(&as_attention)?;
        let head_dim = op.kv.head_dim as usize;
        self.access.set_shared();
        let mut gain = |operand, at| self.access.optional_f32s(operand, at, head_dim);
        let gains = [
            gain("query_gain", op.query_gain)?,
            gain("key_gain", op.key_gain)?,
        ];
        let width = op.heads as usize * head_dim;
        for token in self.covered() {
            self.access.set_unit(token);
            let new = self.new_token(&as_attention, token, &gains)?;
            let position = self.position(token)?;
            let row = self.row_of_token(token)?;
            let (_, page) = self.past(&as_attention, row, position)?;
            let to = bytes_at(op.query, 2 * (token * width) as u64);
            self.access
                .write_stored("query", to, &new.queries, Format::Bf16)?;
            self.write_new_token(&op.kv, page, position % PAGE, &new)?;
        }
        Ok(())
    }

    pub(super) fn prompt_attention(&mut self, op: &FusedPromptAttention) -> Result<()> {
        let (heads, head_dim) = (op.heads as usize, op.kv.head_dim as usize);
        let sharing = heads / op.kv.heads as usize;
        let to = XVectors::fragments("out", op.out, op.heads * op.kv.head_dim);
        let to = to.in_order(op.flags, op.groups);
        for token in self.covered() {
            self.access.set_unit(token);
            let position = self.position(token)?;
            let row = self.row_of_token(token)?;
            let covered = op.first_row as usize..(op.first_row + op.row_count) as usize;
            let is_covered = covered.contains(&row);
            self.access
                .require(is_covered, "row_count", "a token is of another row")?;
            let from = bytes_at(op.query, 2 * (token * heads * head_dim) as u64);
            let stored = self
                .access
                .stored("query", from, heads * head_dim, Format::Bf16)?;
            let mut queries = vec![0.0; heads * head_dim];
            super::super::access::decode(stored, Format::Bf16, &mut queries);
            let seen = self.seen_values(op, row, position)?;
            let mut out = Vec::with_capacity(heads * head_dim);
            for head in 0..heads {
                let query = &queries[head * head_dim..(head + 1) * head_dim];
                out.extend(mix(op, query, &seen[head / sharing]));
            }
            self.write_x(&to, token, &out)?;
        }
        Ok(())
    }

    /// By key head: the keys and values that a position attends to, itself included.
    fn seen_values(
        &mut self,
        op: &FusedPromptAttention,
        row: usize,
        position: usize,
    ) -> Result<Vec<Vec<[Vec<f32>; 2]>>> {
        let (kv, head_dim) = (&op.kv, op.kv.head_dim as usize);
        let run = self.page_run_of_row("first_row", row, kv.group)?;
        let start = match op.reach_len as usize {
            0 => 0,
            len => (position + 1).saturating_sub(len),
        };
        self.check_run(run.first as usize, start)?;
        let index = |position: usize| (position - run.first as usize) / PAGE;
        let pages = self.pages(run, index(start)..index(position) + 1)?;
        let pages: Vec<Address> = pages
            .into_iter()
            .map(|page| crate::interpret::attention::page_address(kv, page))
            .collect();
        let mut seen = vec![Vec::new(); kv.heads as usize];
        for (head, seen) in seen.iter_mut().enumerate() {
            for at in start..=position {
                let page = pages[index(at) - index(start)];
                let mut key = vec![0.0; head_dim];
                self.read_keys(kv, page, (head, at % PAGE), &mut key)?;
                let mut value = vec![0.0; head_dim];
                for (dim, value) in value.iter_mut().enumerate() {
                    let offset = value_offset(kv, head * head_dim + dim, at % PAGE);
                    let from = bytes_at(page, offset);
                    let stored = self.access.unlogged("values", from, 2, 2)?;
                    *value = bf16::from_le_bytes([stored[0], stored[1]]).to_f32();
                }
                seen.push([key, value]);
            }
        }
        Ok(seen)
    }
}

/// One head's output.
fn mix(op: &FusedPromptAttention, query: &[f32], seen: &[[Vec<f32>; 2]]) -> Vec<f32> {
    let scores = seen
        .iter()
        .map(|[key, _]| softcap(dot(query, key) * op.scale, op.softcap));
    let scores: Vec<f32> = scores.collect();
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    let mut mixed = vec![0.0; query.len()];
    for (score, [_, value]) in scores.iter().zip(seen) {
        let weight = (score - largest).exp();
        total += weight;
        // Kernels multiply by rounded weights.
        let weight = bf16::from_f32(weight).to_f32();
        for (mixed, value) in mixed.iter_mut().zip(value) {
            *mixed += weight * value;
        }
    }
    mixed.into_iter().map(|value| value / total).collect()
}
