//! Attention between patches of a frame, or of a window of it.

use std::cell::RefCell;
use std::ops::Range;

use loquat_cpu_kernels::{
    AttendArgs, AttendQuery, HeadPages, Kernels, KvElement, LANES, MAX_QUERIES, PAGE, PagePtr,
    piece_len, pieces,
};
use loquat_session::tower::TowerBatch;

use super::rope::Angles;
use super::{Compute, Tower, TowerLayer, add_branch, apply};
use crate::linear::for_tokens;
use crate::page::LayerLayout;
use crate::shared::SharedMut;

impl Tower {
    pub(super) fn attention(
        &self,
        compute: &mut Compute<'_>,
        x: &mut [f32],
        layer: &TowerLayer,
        (index, batch, angles): (usize, &TowerBatch, Option<&Angles>),
    ) {
        let (block, hidden) = (&self.spec.block, self.spec.hidden_size);
        let mut input = x.to_vec();
        apply(compute, &layer.attention_norm, &mut input, hidden);
        let width = block.heads * block.head_dim;
        let [mut query, mut key, mut value] = [(); 3].map(|()| vec![0.0; batch.tokens * width]);
        let outputs = [&mut query, &mut key, &mut value];
        for (matrix, out) in layer.qkv.iter().zip(outputs) {
            matrix.run(compute, (&input, hidden), out);
        }
        let (kernels, head_dim) = (compute.kernels, block.head_dim);
        for (values, norm, rotated) in [
            (&mut query, &layer.query_norm, true),
            (&mut key, &layer.key_norm, true),
            (&mut value, &layer.value_norm, false),
        ] {
            let values = SharedMut::new(values);
            for_tokens(compute.pool, batch.tokens, 2 * width, &|token| {
                // SAFETY: each token's task touches its own row.
                let row = unsafe { values.slice(token * width, width) };
                for head in row.chunks_exact_mut(head_dim) {
                    if let Some(norm) = norm {
                        norm.apply(kernels, head);
                    }
                    if let Some(angles) = angles.filter(|_| rotated) {
                        angles.rotate(kernels, token, head);
                    }
                }
            });
        }
        let groups = batch.groups(self.spec.layers[index]);
        let mut mixed = vec![0.0; batch.tokens * width];
        self.attend(compute, [&query, &key, &value], &groups, &mut mixed);
        layer.output.run(compute, (&mixed, width), &mut input);
        let norm = layer.attention_post_norm.as_ref();
        let gain = layer.attention_gain.as_deref();
        add_branch(compute, (x, hidden), &mut input, norm, gain);
    }

    /// Each token of a group attends to all of them; writes `[token][head]`.
    fn attend(
        &self,
        compute: &mut Compute<'_>,
        [query, key, value]: [&[f32]; 3],
        groups: &[Vec<usize>],
        out: &mut [f32],
    ) {
        let block = &self.spec.block;
        let (heads, head_dim) = (block.heads, block.head_dim);
        let width = heads * head_dim;
        let value_dim = head_dim.next_multiple_of(LANES);
        let layout = LayerLayout::for_heads(heads, head_dim, value_dim);
        let page_len = layout.page_len();
        let mut first_page = 0;
        let mut placed = Vec::with_capacity(groups.len());
        for group in groups {
            let count = group.len().div_ceil(PAGE);
            placed.push(first_page..first_page + count);
            first_page += count;
        }
        let mut memory = vec![0.0f32; first_page * page_len];
        let pages: Vec<PagePtr<f32>> = memory
            .chunks_exact_mut(page_len.max(1))
            .map(|page| PagePtr::new(page.as_mut_ptr(), page.len()))
            .collect();
        let writes: Vec<(usize, PagePtr<f32>, usize)> = groups
            .iter()
            .zip(&placed)
            .flat_map(|(group, placed)| {
                let pages = &pages[placed.clone()];
                let tokens = group.iter().enumerate();
                tokens.map(|(index, token)| (*token, pages[index / PAGE], index % PAGE))
            })
            .collect();
        for_tokens(compute.pool, writes.len(), 8 * width, &|index| {
            let (token, page, slot) = writes[index];
            let row = token * width..(token + 1) * width;
            // SAFETY: every token has a slot of its own, and reading waits for the pool.
            unsafe {
                layout.write_unpadded(page, slot, (&key[row.clone()], &value[row]), head_dim)
            };
        });
        let units = units(groups, heads);
        let kernels = compute.kernels;
        let out = SharedMut::new(out);
        compute.pool.run(units.len(), &|unit| {
            let (group, head, members) = &units[unit];
            let tokens = &groups[*group][members.clone()];
            let seen = 0..groups[*group].len();
            let pages = layout.head(&pages[placed[*group].clone()], *head);
            let queries = tokens.iter().map(|token| {
                let at = (token * heads + head) * head_dim;
                &query[at..at + head_dim]
            });
            let queries: Vec<&[f32]> = queries.collect();
            let block = QueryBlock {
                scale: block.scale,
                value_dim,
                pages,
                seen,
            };
            ANSWERS.with_borrow_mut(|answers| {
                block.run(kernels, &queries, answers, &mut |index, mixed| {
                    let at = (tokens[index] * heads + head) * head_dim;
                    // SAFETY: each pair of token and head belongs to one unit.
                    let out = unsafe { out.slice(at, head_dim) };
                    out.copy_from_slice(&mixed[..head_dim]);
                });
            });
        });
    }
}

thread_local! {
    /// What each query of a block found in each piece.
    static ANSWERS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Queries of one head over the same positions.
struct QueryBlock<'a> {
    scale: f32,
    value_dim: usize,
    pages: HeadPages<'a, f32>,
    seen: Range<usize>,
}

impl QueryBlock<'_> {
    /// Calls `write` with the index and the result of each query. All queries read a piece of the
    /// positions before the next, so that its keys and values are read from a near cache; the
    /// results are those of each query alone.
    fn run(
        &self,
        kernels: &Kernels,
        queries: &[&[f32]],
        answers: &mut Vec<f32>,
        write: &mut dyn FnMut(usize, &[f32]),
    ) {
        let pieces = pieces(&self.seen);
        let answer_len = piece_len(self.value_dim);
        let per_query = pieces.len() * answer_len;
        answers.resize(queries.len() * per_query + self.value_dim, 0.0);
        let (answers, joined) = answers.split_at_mut(queries.len() * per_query);
        for (index, piece) in pieces.enumerate() {
            let args = AttendArgs {
                scale: self.scale,
                softcap: None,
                value_dim: self.value_dim,
                pages: self.pages,
                piece: Some(piece),
            };
            let blocks = answers.chunks_mut(MAX_QUERIES * per_query);
            for (queries, answers) in queries.chunks(MAX_QUERIES).zip(blocks) {
                let mut few: [AttendQuery<'_>; MAX_QUERIES] = Default::default();
                let own = answers.chunks_exact_mut(per_query);
                for ((slot, query), answers) in few.iter_mut().zip(queries).zip(own) {
                    *slot = AttendQuery {
                        query,
                        sink: None,
                        seen: self.seen.clone(),
                        out: &mut answers[index * answer_len..(index + 1) * answer_len],
                    };
                }
                // SAFETY: the table was chosen for this machine.
                unsafe { f32::attend(kernels)(&args, &mut few[..queries.len()]) };
            }
        }
        for (index, answers) in answers.chunks_exact(per_query).enumerate() {
            // SAFETY: the table was chosen for this machine.
            unsafe { (kernels.join_pieces)(answers, None, joined) };
            write(index, joined);
        }
    }
}

/// Queries that share a reading of each piece from a far cache. Their answers to all pieces of a
/// large picture stay in a near one.
const BLOCK_QUERIES: usize = 8 * MAX_QUERIES;

/// A group, a head, and some of the group's members.
type Unit = (usize, usize, Range<usize>);

/// Queries that run together. Those of one head are consecutive, so that its pages stay in cache.
fn units(groups: &[Vec<usize>], heads: usize) -> Vec<Unit> {
    let mut units = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        for head in 0..heads {
            for first in (0..group.len()).step_by(BLOCK_QUERIES) {
                let members = first..(first + BLOCK_QUERIES).min(group.len());
                units.push((index, head, members));
            }
        }
    }
    units
}
