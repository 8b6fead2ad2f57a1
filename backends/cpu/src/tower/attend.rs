//! Attention between patches of a frame, or of a window of it.

use std::cell::RefCell;

use loquat_cpu_kernels::{
    DENSE_QUERIES, DENSE_TILE, DenseArgs, DenseLayout, DenseProducts, DenseScratch, LANES,
};
use loquat_session::tower::{BATCH_PATCHES, TowerBatch};
use loquat_spec::VisionSpec;

use super::rope::Angles;
use super::{Compute, Tower, TowerLayer, add_branch, apply, run_together};
use crate::linear::for_tokens;
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
        let mut input = compute.buffers.copy(x);
        apply(compute, &layer.attention_norm, &mut input, hidden);
        let width = block.heads * block.head_dim;
        let len = batch.tokens * width;
        let [mut query, mut key, mut value, mut mixed] =
            [(); 4].map(|()| compute.buffers.take(len));
        let outs = [&mut query[..], &mut key[..], &mut value[..]];
        run_together(compute, layer.qkv.each_ref(), (&input, hidden), outs);
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
        // What belongs to no group mixes nothing.
        mixed.fill(0.0);
        let attention = AttentionInput {
            query: &query,
            key: &key,
            value: &value,
            // As accurate as the products that computed them.
            rounded: layer.qkv.iter().all(|matrix| matrix.linear.rounds()),
        };
        self.attend(compute, attention, &groups, &mut mixed);
        layer.output.run(compute, (&mixed, width), &mut input);
        let norm = layer.attention_post_norm.as_ref();
        let gain = layer.attention_gain.as_deref();
        add_branch(compute, (x, hidden), &mut input, norm, gain);
        compute.buffers.give([input, query, key, value, mixed]);
    }

    /// Each token of a group attends to all of them; writes `[token][head]`.
    fn attend(
        &self,
        compute: &mut Compute<'_>,
        input: AttentionInput<'_>,
        groups: &[Vec<usize>],
        out: &mut [f32],
    ) {
        let block = &self.spec.block;
        let (heads, head_dim) = (block.heads, block.head_dim);
        let products = if input.rounded {
            compute.kernels.dense_bf16
        } else {
            DenseProducts::Exact
        };
        let all = (0..groups.len()).flat_map(|group| (0..heads).map(move |head| (group, head)));
        let mut spans = all.map(|(group, head)| HeadSpan {
            tokens: &groups[group],
            head,
            at: 0,
            layout: DenseLayout {
                products,
                positions: groups[group].len(),
                key_dim: head_dim,
                value_dim: head_dim,
            },
        });
        let most = input.key.len().max(BATCH_PATCHES * heads * head_dim) / head_dim;
        let most = most * head_words(head_dim);
        let mut next = spans.next();
        let mut memory = std::mem::take(&mut compute.buffers.words);
        while let Some(first) = next {
            let mut words = first.layout.words();
            let mut together = vec![first];
            next = spans.next();
            while let Some(span) = next.take_if(|span| words + span.layout.words() <= most) {
                together.push(HeadSpan { at: words, ..span });
                words += span.layout.words();
                next = spans.next();
            }
            memory.clear();
            memory.resize(words, 0);
            input.store(compute, &self.spec, &together, &mut memory);
            input.answer(compute, &self.spec, (&together, &memory), out);
        }
        compute.buffers.words = memory;
    }
}

/// Words of a position's key and value at most.
pub(super) fn head_words(head_dim: usize) -> usize {
    head_dim.next_multiple_of(2) + head_dim.next_multiple_of(LANES)
}

/// What attention reads, `[token][head]` each.
struct AttentionInput<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    /// Numbers are rounded to bf16.
    rounded: bool,
}

/// A head of tokens that attend to each other.
struct HeadSpan<'a> {
    tokens: &'a [usize],
    head: usize,
    /// Where its keys and values are in the memory.
    at: usize,
    layout: DenseLayout,
}

impl AttentionInput<'_> {
    fn store(
        &self,
        compute: &mut Compute<'_>,
        spec: &VisionSpec,
        spans: &[HeadSpan<'_>],
        memory: &mut [u32],
    ) {
        let (heads, head_dim) = (spec.block.heads, spec.block.head_dim);
        let tiles = spans
            .iter()
            .flat_map(|span| (0..span.layout.tiles()).map(move |tile| (span, tile)));
        let tiles: Vec<_> = tiles.collect();
        let memory = SharedMut::new(memory);
        for_tokens(
            compute.pool,
            tiles.len(),
            4 * DENSE_TILE * head_dim,
            &|task| {
                let (span, tile) = tiles[task];
                // SAFETY: each tile belongs to one task.
                let mut parts = span
                    .layout
                    .tile(tile)
                    .map(|range| unsafe { memory.slice(span.at + range.start, range.len()) });
                let tokens = span.tokens.chunks(DENSE_TILE).nth(tile).unwrap_or_default();
                for (slot, token) in tokens.iter().enumerate() {
                    let at = (token * heads + span.head) * head_dim;
                    let row = at..at + head_dim;
                    let rows = (&self.key[row.clone()], &self.value[row]);
                    span.layout
                        .store(parts.each_mut().map(|part| &mut **part), slot, rows);
                }
            },
        );
    }

    fn answer(
        &self,
        compute: &mut Compute<'_>,
        spec: &VisionSpec,
        (spans, memory): (&[HeadSpan<'_>], &[u32]),
        out: &mut [f32],
    ) {
        let (heads, head_dim) = (spec.block.heads, spec.block.head_dim);
        // Those of one head are consecutive, so that its keys stay in a cache.
        let units = spans.iter().flat_map(|span| {
            let blocks = span.tokens.chunks(DENSE_QUERIES);
            blocks.map(move |tokens| (span, tokens))
        });
        let units: Vec<_> = units.collect();
        let kernels = compute.kernels;
        let kernel = if self.rounded {
            kernels.attend_dense_bf16
        } else {
            kernels.attend_dense
        };
        let out = SharedMut::new(out);
        compute.pool.run(units.len(), &|unit| {
            let (span, tokens) = units[unit];
            let of_token = |token: usize| (token * heads + span.head) * head_dim;
            WORKSPACE.with_borrow_mut(|workspace| {
                workspace.queries.clear();
                for token in tokens {
                    let at = of_token(*token);
                    let query = &self.query[at..at + head_dim];
                    workspace.queries.extend_from_slice(query);
                }
                let width = span.layout.value_width();
                workspace.answers.resize(tokens.len() * width, 0.0);
                let args = DenseArgs {
                    layout: span.layout,
                    memory: &memory[span.at..span.at + span.layout.words()],
                    scale: spec.block.scale,
                    queries: &workspace.queries,
                };
                // SAFETY: the table was chosen for this machine.
                unsafe { kernel(&args, &mut workspace.scratch, &mut workspace.answers) };
                let answers = workspace.answers.chunks_exact(width);
                for (token, answer) in tokens.iter().zip(answers) {
                    // SAFETY: each pair of token and head belongs to one unit.
                    let out = unsafe { out.slice(of_token(*token), head_dim) };
                    out.copy_from_slice(&answer[..head_dim]);
                }
            });
        });
    }
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

/// What a thread attends with.
#[derive(Default)]
struct Workspace {
    queries: Vec<f32>,
    answers: Vec<f32>,
    scratch: DenseScratch,
}
