//! Divides attention into kernel calls and distributes them over threads.
//!
//! A unit is a set of queries that read the same pages. With many units, each thread computes whole
//! units. With few units, as when one long sequence is decoded, threads compute pieces of a unit,
//! and the results of the pieces are joined in order, as the kernel itself does for a whole unit.

use std::ops::Range;

use loquat_cpu_kernels::{
    AttendArgs, AttendQuery, Kernels, KvElement, MAX_QUERIES, piece_len, pieces,
};

use super::{Forward, Plan, PlannedRow, Scratch};
use crate::buffers::{Buffer, fit};
use crate::model::AttentionWeights;
use crate::page::LayerLayout;
use crate::pool::Pool;
use crate::shared::SharedMut;

/// With fewer units per thread, some threads would finish long before others.
pub const UNITS_PER_THREAD: usize = 4;

/// The maximum number of piece results stored at once, unless one unit has more.
pub const MAX_PIECE_RESULTS: usize = 4096;

/// Results of pieces that are not joined yet.
#[derive(Default)]
pub struct Pieces {
    tasks: Vec<PieceTask>,
    results: Buffer<f32>,
}

/// A piece of a unit, and the index of the unit's first result; results are `[query][piece]`.
#[derive(Clone, Copy)]
pub struct PieceTask {
    unit: usize,
    piece: usize,
    results: usize,
}

impl<T: KvElement> Forward<'_, T> {
    /// Writes the attention output of every query, `[token][head]`, to `scratch.inner`.
    pub(super) fn attend(&mut self, kv_layer: usize, weights: &AttentionWeights) {
        let spec = &weights.spec;
        let Scratch {
            query,
            attended,
            pieces,
            inner,
            ..
        } = &mut *self.scratch;
        inner.resize(self.plan.tokens.len(), spec.mixed_len());
        let groups = Groups::new(spec.heads / spec.kv_heads);
        groups.lay_out(&self.plan.rows, attended);
        let units = Units {
            plan: self.plan,
            layout: self.layout.layer(kv_layer),
            weights,
            kernels: self.kernels,
            query,
            groups,
            blocks: attended,
        };
        let threads = self.pool.threads();
        let few = threads > 1 && units.count() < UNITS_PER_THREAD * threads;
        if few && units.are_long() {
            units.attend_pieces(self.pool, pieces, &mut inner.values);
        } else {
            units.attend(self.pool, &mut inner.values);
        }
    }
}

/// A layer's queries in independent units.
struct Units<'a, T> {
    plan: &'a Plan<T>,
    layout: LayerLayout,
    weights: &'a AttentionWeights,
    kernels: &'static Kernels,
    /// `[token][head]`
    query: &'a [f32],
    groups: Groups,
    /// Blocks of tokens, each of one row.
    blocks: &'a [Range<usize>],
}

/// The queries of some tokens of one row and some heads that share a key head.
struct Unit {
    tokens: Range<usize>,
    kv_head: usize,
    heads: Range<usize>,
}

impl Unit {
    fn queries(&self) -> usize {
        self.tokens.len() * self.heads.len()
    }
}

impl<T: KvElement> Units<'_, T> {
    fn count(&self) -> usize {
        self.blocks.len() * self.weights.spec.kv_heads * self.groups.parts
    }

    /// Units of one head are consecutive, so that its pages stay in cache.
    fn unit(&self, index: usize) -> Unit {
        let part = index / self.blocks.len();
        let (kv_head, part) = (part / self.groups.parts, part % self.groups.parts);
        Unit {
            tokens: self.blocks[index % self.blocks.len()].clone(),
            kv_head,
            heads: self.groups.heads(kv_head, part),
        }
    }

    /// The positions that a planned token attends to, counted from the first of its page run.
    fn visible(&self, token: usize) -> Range<usize> {
        let planned = &self.plan.tokens[token];
        let first = self.plan.page_run(token, self.layout.group()).first;
        let end = if self.weights.looks_ahead {
            planned.seen_end
        } else {
            planned.position + 1
        };
        self.weights.spec.reach.first_seen(planned.position) - first..end - first
    }

    /// The pieces that any of the tokens attends to.
    fn pieces(&self, tokens: &Range<usize>) -> Range<usize> {
        pieces(&(self.visible(tokens.start).start..self.visible(tokens.end - 1).end))
    }

    fn are_long(&self) -> bool {
        let mut blocks = self.blocks.iter();
        blocks.any(|tokens| self.pieces(tokens).len() > 1)
    }

    /// Runs the kernel over a unit, or one piece of it. `out` returns a query's output for its
    /// token, head and index in the unit.
    fn run<'a>(
        &'a self,
        unit: &Unit,
        piece: Option<usize>,
        out: impl Fn(usize, usize) -> &'a mut [f32],
    ) {
        let spec = &self.weights.spec;
        let run = self.plan.page_run(unit.tokens.start, self.layout.group());
        let args = AttendArgs {
            scale: spec.scale,
            softcap: spec.softcap,
            value_dim: spec.value_dim,
            pages: self
                .layout
                .head(&self.plan.pages[run.pages.clone()], unit.kv_head),
            piece,
        };
        let mut queries = Queries::default();
        for token in unit.tokens.clone() {
            for head in unit.heads.clone() {
                let pair = token * spec.heads + head;
                queries.push(AttendQuery {
                    query: &self.query[pair * spec.head_dim..(pair + 1) * spec.head_dim],
                    sink: self.sink(head),
                    seen: self.visible(token),
                    out: out(pair, queries.len),
                });
            }
        }
        // SAFETY: the table was chosen for this machine.
        unsafe { T::attend(self.kernels)(&args, queries.as_mut()) };
    }

    fn sink(&self, head: usize) -> Option<f32> {
        self.weights.sinks.as_ref().map(|sinks| sinks[head])
    }

    /// Each unit by one thread.
    fn attend(&self, pool: &mut Pool, out: &mut [f32]) {
        let value_dim = self.weights.spec.value_dim;
        let out = SharedMut::new(out);
        let count = self.count();
        let per_task = (count / (pool.threads() * 8)).clamp(1, 4);
        pool.run(count.div_ceil(per_task), &|task| {
            for unit in task * per_task..((task + 1) * per_task).min(count) {
                // SAFETY: each pair of token and head writes its own elements.
                let out = |pair, _| unsafe { out.slice(pair * value_dim, value_dim) };
                self.run(&self.unit(unit), None, out);
            }
        });
    }

    /// Each unit by many threads, with as many units at a time as there is room for results.
    fn attend_pieces(&self, pool: &mut Pool, room: &mut Pieces, out: &mut [f32]) {
        let mut units = 0..self.count();
        while !units.is_empty() {
            units.start = self.lay_out(units.clone(), room);
            let len = piece_len(self.weights.spec.value_dim);
            let results = SharedMut::new(&mut room.results);
            let tasks = &room.tasks;
            pool.run(tasks.len(), &|task| {
                let PieceTask {
                    unit,
                    piece,
                    results: first,
                } = tasks[task];
                let unit = self.unit(unit);
                let pieces = self.pieces(&unit.tokens);
                let index = |query| first + query * pieces.len() + piece - pieces.start;
                // SAFETY: each piece of each query writes its own elements.
                let out = |_, query| unsafe { results.slice(index(query) * len, len) };
                self.run(&unit, Some(piece), out);
            });
            let (results, out) = (&room.results, SharedMut::new(out));
            pool.run(tasks.len(), &|task| {
                let task = tasks[task];
                let unit = self.unit(task.unit);
                // A unit is represented by its first piece.
                if task.piece == self.pieces(&unit.tokens).start {
                    self.join(&unit, &results[task.results * len..], &out);
                }
            });
        }
    }

    /// Adds units in order while there is room for their results. Returns the first unit that was
    /// not added.
    fn lay_out(&self, units: Range<usize>, room: &mut Pieces) -> usize {
        room.tasks.clear();
        let mut results = 0;
        let mut end = units.start;
        for index in units {
            let unit = self.unit(index);
            let pieces = self.pieces(&unit.tokens);
            let count = unit.queries() * pieces.len();
            if results > 0 && results + count > MAX_PIECE_RESULTS {
                break;
            }
            room.tasks.reserve_exact(pieces.len());
            room.tasks.extend(pieces.map(|piece| PieceTask {
                unit: index,
                piece,
                results,
            }));
            results += count;
            end = index + 1;
        }
        let len = piece_len(self.weights.spec.value_dim);
        fit(&mut room.results, results * len);
        end
    }

    /// Computes each query of a unit from the results of its pieces.
    fn join(&self, unit: &Unit, results: &[f32], out: &SharedMut<f32>) {
        let spec = &self.weights.spec;
        let len = piece_len(spec.value_dim);
        let all = self.pieces(&unit.tokens);
        let mut of_query = results.chunks_exact(all.len() * len);
        for token in unit.tokens.clone() {
            let own = pieces(&self.visible(token));
            for head in unit.heads.clone() {
                let Some(results) = of_query.next() else {
                    return;
                };
                let results = &results[(own.start - all.start) * len..(own.end - all.start) * len];
                let pair = token * spec.heads + head;
                // SAFETY: each pair of token and head belongs to one unit, and the table was chosen
                // for this machine.
                unsafe {
                    let out = out.slice(pair * spec.value_dim, spec.value_dim);
                    (self.kernels.join_pieces)(results, self.sink(head), out);
                }
            }
        }
    }
}

/// Which queries of a key head one kernel call computes.
struct Groups {
    /// Query heads for each key head.
    sharing: usize,
    /// The number of parts these are divided into.
    parts: usize,
    /// Tokens of one row whose queries are processed together.
    tokens: usize,
}

impl Groups {
    fn new(sharing: usize) -> Self {
        let parts = sharing.div_ceil(MAX_QUERIES).max(1);
        Self {
            sharing,
            parts,
            tokens: (MAX_QUERIES / sharing.div_ceil(parts).max(1)).max(1),
        }
    }

    /// Divides the rows' tokens into blocks, each within one row.
    fn lay_out(&self, rows: &[PlannedRow], blocks: &mut Vec<Range<usize>>) {
        blocks.clear();
        let tokens: usize = rows.iter().map(|row| row.tokens).sum();
        blocks.reserve_exact(tokens);
        for row in rows {
            let end = row.first + row.tokens;
            let starts = (row.first..end).step_by(self.tokens);
            blocks.extend(starts.map(|start| start..(start + self.tokens).min(end)));
        }
    }

    /// The query heads of one part.
    fn heads(&self, kv_head: usize, part: usize) -> Range<usize> {
        let size = self.sharing.div_ceil(self.parts);
        let first = kv_head * self.sharing;
        let end = first + self.sharing;
        first + part * size..(first + (part + 1) * size).min(end)
    }
}

/// Up to [`MAX_QUERIES`] queries, on the stack.
#[derive(Default)]
struct Queries<'a> {
    slots: [AttendQuery<'a>; MAX_QUERIES],
    len: usize,
}

impl<'a> Queries<'a> {
    fn push(&mut self, query: AttendQuery<'a>) {
        self.slots[self.len] = query;
        self.len += 1;
    }

    fn as_mut(&mut self) -> &mut [AttendQuery<'a>] {
        &mut self.slots[..self.len]
    }
}
