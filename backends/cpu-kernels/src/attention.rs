//! Softmax attention of a few queries over the pages of one head.
//!
//! Queries that see the same pages are handed over together, so that a page is read and widened
//! once for all of them. What one of them computes does not depend on the others.
//!
//! The positions are cut into pieces of [`PIECE`], counted from the sequence's first. Each piece
//! has a softmax of its own, page by page with a running maximum, and the pieces are joined in
//! order. So several threads can take a long sequence's pieces, and one thread that takes them
//! all computes the same bits.
//!
//! Registers stay out of closures: those are not built for the instruction set of the kernel that
//! the code around them is inlined into.

use std::cell::RefCell;
use std::ops::Range;

use super::attend_codes::QueryTile;
use super::code_register::CodeRegister;
use super::element::{KvElement, PlainElement};
use super::float::{CHAINS, exp, fold, fold_max, softcap};
use super::kv_codes::CodeSpan;
use super::page::PagePtr;
use super::register::Register;
use super::{LANES, PAGE};

/// The most queries at once: as many as have room for their sums in 32 registers.
pub const MAX_QUERIES: usize = 6;

/// Positions that share a softmax: whole pages, enough to make starting and joining cheap, few
/// enough that a prompt of some hundred tokens is work for several threads.
pub const PIECE: usize = 8 * PAGE;

thread_local! {
    /// A piece's output before it is joined, kept so that a step need not allocate.
    static LATER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Queries in whole numbers.
    static QUERIES: RefCell<Vec<QueryTile>> = const { RefCell::new(Vec::new()) };
}

/// The pieces that some positions lie in.
pub fn pieces(positions: &Range<usize>) -> Range<usize> {
    positions.start / PIECE..positions.end.div_ceil(PIECE)
}

/// Values in a piece's result: its mix, then its softmax, in separate registers.
pub fn piece_len(value_dim: usize) -> usize {
    value_dim.next_multiple_of(LANES) + LANES
}

/// One head's keys and values.
#[derive(Clone, Copy)]
pub struct HeadPages<'a, T> {
    /// The sequence's pages, oldest first.
    pub pages: &'a [PagePtr<T>],
    pub layout: HeadLayout,
}

/// Where one head's keys and values lie in a page. Floats: keys as `[key_dim][PAGE]`, so that a
/// register holds many tokens, and values as `[PAGE][value_dim]`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct HeadLayout {
    pub keys: usize,
    pub key_dim: usize,
    /// `None`: the values are the keys' first dimensions, which codes do not support.
    pub values: Option<usize>,
    pub value_dim: usize,
    /// If elements are bytes of codes.
    pub codes: Option<HeadCodes>,
}

/// How a head's keys and values are coded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadCodes {
    pub key: CodeSpan,
    pub value: CodeSpan,
    /// Values whose softmax weight is certainly smaller are skipped.
    pub skip_below: f32,
}

/// One page's share of a head.
struct HeadPage<'a, T> {
    keys: &'a [T],
    values: Option<&'a [T]>,
}

impl<T: PlainElement> HeadPages<'_, T> {
    #[inline(always)]
    fn page(&self, page: usize, head_dim: usize, value_dim: usize) -> HeadPage<'_, T> {
        let page = &self.pages[page];
        // SAFETY: the step has written its tokens and waited for all threads before any of them
        // attends, pages live as long as the cache, and the offsets are the layout's own.
        unsafe {
            HeadPage {
                keys: page.slice(self.layout.keys, head_dim * PAGE),
                values: self
                    .layout
                    .values
                    .map(|at| page.slice(at, value_dim * PAGE)),
            }
        }
    }
}

/// What the queries have in common.
pub struct AttendArgs<'a, T> {
    pub scale: f32,
    /// `score = tanh(score / cap) * cap`
    pub softcap: Option<f32>,
    pub value_dim: usize,
    pub pages: HeadPages<'a, T>,
    /// Only this piece, for `join_pieces`: each query's answer is [`piece_len`] long.
    pub piece: Option<usize>,
}

/// One query against the positions it sees. All of a call's are equally long.
#[derive(Default)]
pub struct AttendQuery<'a> {
    pub query: &'a [f32],
    /// A score that takes part without a value.
    pub sink: Option<f32>,
    pub seen: Range<usize>,
    pub out: &'a mut [f32],
}

/// A softmax under way.
#[derive(Clone, Copy)]
pub struct Softmax {
    max: f32,
    total: f32,
}

impl Softmax {
    const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        total: 0.0,
    };

    /// Turns a page's scores at `seen` into weights under the maximum so far, and goes on. What
    /// was summed before has to be multiplied by the result.
    #[inline(always)]
    fn weigh(&mut self, weights: &mut [f32; PAGE], seen: &Range<usize>) -> f32 {
        let mut largest = [self.max; LANES];
        for (half, scores) in weights.as_chunks::<LANES>().0.iter().enumerate() {
            for (i, largest) in largest.iter_mut().enumerate() {
                // NaN is larger than nothing.
                let larger = seen.contains(&(half * LANES + i)) && scores[i] > *largest;
                *largest = if larger { scores[i] } else { *largest };
            }
        }
        let max = fold_max(largest);
        for (i, weight) in weights.iter_mut().enumerate() {
            let raised = exp(*weight - max);
            *weight = if seen.contains(&i) { raised } else { 0.0 };
        }
        let sum = fold(std::array::from_fn(|i| weights[i] + weights[i + LANES]));
        self.advance(max, sum)
    }

    /// The same for a page that is seen whole.
    #[inline(always)]
    fn weigh_all<R: Register>(&mut self, scores: [R; 2], weights: &mut [f32; PAGE]) -> f32 {
        let largest = scores[0].larger(R::splat(self.max));
        let max = scores[1].larger(largest).fold_max();
        let raised = [
            scores[0].sub(R::splat(max)).exp(),
            scores[1].sub(R::splat(max)).exp(),
        ];
        put(weights, raised);
        self.advance(max, raised[0].add(raised[1]).fold())
    }

    #[inline(always)]
    fn advance(&mut self, max: f32, sum: f32) -> f32 {
        let correction = self.correction(max);
        self.total = self.total.mul_add(correction, sum);
        self.max = max;
        correction
    }

    #[inline(always)]
    fn correction(&self, max: f32) -> f32 {
        let correction = exp(self.max - max);
        if self.max == f32::NEG_INFINITY {
            0.0
        } else {
            correction
        }
    }

    /// Takes in the next piece's softmax and what it mixed.
    #[inline(always)]
    fn join(&mut self, piece: Self, mixed: &[f32], out: &mut [f32]) {
        // The first as it is, zeros' signs too: it may have been computed in place.
        if self.max == f32::NEG_INFINITY && self.total == 0.0 {
            *self = piece;
            out.copy_from_slice(mixed);
            return;
        }
        let max = if piece.max > self.max {
            piece.max
        } else {
            self.max
        };
        let (kept, added) = (self.correction(max), exp(piece.max - max));
        self.total = self.total.mul_add(kept, piece.total * added);
        self.max = max;
        for (out, mixed) in out.iter_mut().zip(mixed) {
            *out = out.mul_add(kept, mixed * added);
        }
    }

    #[inline(always)]
    fn finish(&self, sink: Option<f32>, out: &mut [f32]) {
        let sink = sink.map_or(0.0, |sink| exp(sink - self.max));
        let inverse = 1.0 / (self.total + sink);
        out.iter_mut().for_each(|value| *value *= inverse);
    }
}

/// Attention over everything that each query sees, or over one piece of it.
#[inline(always)]
pub(super) fn attend<R: CodeRegister, T: KvElement>(
    args: &AttendArgs<T>,
    queries: &mut [AttendQuery],
) {
    // As many at once as the register has room for, in groups of the same size; a `const` condition
    // keeps the compiler from generating the others. The rest follow one by one.
    let most = if T::QUERIES < R::QUERIES {
        T::QUERIES
    } else {
        R::QUERIES
    };
    let width = queries
        .len()
        .div_ceil(queries.len().div_ceil(most).max(1))
        .max(1);
    let grouped = if width > 1 {
        queries.len() - queries.len() % width
    } else {
        0
    };
    let (groups, rest) = queries.split_at_mut(grouped);
    match width {
        2 if const { R::QUERIES >= 2 && T::QUERIES >= 2 } => attend_all::<R, T, 2>(args, groups),
        3 if const { R::QUERIES >= 3 && T::QUERIES >= 3 } => attend_all::<R, T, 3>(args, groups),
        4 if const { R::QUERIES >= 4 && T::QUERIES >= 4 } => attend_all::<R, T, 4>(args, groups),
        5 if const { R::QUERIES >= 5 && T::QUERIES >= 5 } => attend_all::<R, T, 5>(args, groups),
        MAX_QUERIES if const { R::QUERIES >= 6 && T::QUERIES >= 6 } => {
            attend_all::<R, T, MAX_QUERIES>(args, groups)
        }
        _ => {}
    }
    attend_all::<R, T, 1>(args, rest);
}

/// `N` at a time; the number of queries must be a multiple.
#[inline(always)]
fn attend_all<R: CodeRegister, T: KvElement, const N: usize>(
    args: &AttendArgs<T>,
    queries: &mut [AttendQuery],
) {
    for queries in queries.as_chunks_mut::<N>().0 {
        attend_few::<R, T, N>(args, queries);
    }
}

#[inline(always)]
fn attend_few<R: CodeRegister, T: KvElement, const N: usize>(
    args: &AttendArgs<T>,
    queries: &mut [AttendQuery; N],
) {
    let value_dim = args.value_dim;
    let mut room = QUERIES.take();
    let visible = VisibleQueries::<T, N> {
        queries: T::prepare(queries.each_ref().map(|query| query.query), &mut room),
        seen: queries.each_ref().map(|query| query.seen.clone()),
    };
    let range = match args.piece {
        Some(piece) => piece..piece + 1,
        None => visible.pieces(),
    };
    let mut softmaxes = [Softmax::EMPTY; N];
    // What later pieces mix, before it is joined; the first piece's is computed in place.
    let mut later = LATER.take();
    for piece in range.clone() {
        let in_place = piece == range.start;
        let outs: [&mut [f32]; N] = if in_place {
            queries.each_mut().map(|query| &mut query.out[..value_dim])
        } else {
            later.resize(N * value_dim, 0.0);
            let mut later = later.chunks_exact_mut(value_dim);
            std::array::from_fn(|_| later.next().unwrap_or_default())
        };
        let found = attend_piece::<R, T, N>(args, &visible, piece, outs);
        if in_place {
            softmaxes = found;
            continue;
        }
        for (i, query) in queries.iter_mut().enumerate() {
            if pieces(&query.seen).contains(&piece) {
                let mixed = &later[i * value_dim..(i + 1) * value_dim];
                softmaxes[i].join(found[i], mixed, query.out);
            }
        }
    }
    LATER.set(later);
    QUERIES.set(room);
    for (query, softmax) in queries.iter_mut().zip(softmaxes) {
        if args.piece.is_some() {
            let end = value_dim.next_multiple_of(LANES);
            query.out[end..end + 2].copy_from_slice(&[softmax.max, softmax.total]);
        } else {
            softmax.finish(query.sink, query.out);
        }
    }
}

/// A query's answer from those of all its pieces, in order, each [`piece_len`] long.
#[inline(always)]
pub(super) fn join_pieces(answers: &[f32], sink: Option<f32>, out: &mut [f32]) {
    let value_dim = out.len();
    let mut softmax = Softmax::EMPTY;
    for answer in answers.chunks_exact(piece_len(value_dim)) {
        let (mixed, last) = answer.split_at(value_dim.next_multiple_of(LANES));
        let piece = Softmax {
            max: last[0],
            total: last[1],
        };
        softmax.join(piece, &mixed[..value_dim], out);
    }
    softmax.finish(sink, out);
}

/// A call's queries and their visible positions.
struct VisibleQueries<'a, T: KvElement, const N: usize> {
    queries: [T::Query<'a>; N],
    seen: [Range<usize>; N],
}

impl<T: KvElement, const N: usize> VisibleQueries<'_, T, N> {
    /// The pieces that any of them sees.
    fn pieces(&self) -> Range<usize> {
        let all = self.seen.iter().map(pieces);
        let first = all.clone().map(|pieces| pieces.start).min();
        first.unwrap_or(0)..all.map(|pieces| pieces.end).max().unwrap_or(0)
    }
}

/// One piece's softmaxes; what they mix, not yet divided by its total, goes to `outs`.
#[inline(always)]
fn attend_piece<R: CodeRegister, T: KvElement, const N: usize>(
    args: &AttendArgs<T>,
    visible: &VisibleQueries<T, N>,
    piece: usize,
    mut outs: [&mut [f32]; N],
) -> [Softmax; N] {
    let mut softmaxes = [Softmax::EMPTY; N];
    outs.iter_mut().for_each(|out| out.fill(0.0));
    let first = visible.seen.iter().map(|seen| seen.start / PAGE).min();
    let end = visible
        .seen
        .iter()
        .map(|seen| seen.end.div_ceil(PAGE))
        .max();
    let first = first.unwrap_or(0).max(piece * (PIECE / PAGE));
    let end = end.unwrap_or(0).min((piece + 1) * (PIECE / PAGE));
    for page in first..end {
        let seen = visible.seen.each_ref().map(|seen| within(seen, page));
        if N > 1 && seen.iter().all(|other| *other == seen[0]) {
            let step = PageStep {
                args,
                queries: visible.queries,
                page,
                seen: seen[0].clone(),
            };
            step.run::<R>(&mut softmaxes, &mut outs);
            continue;
        }
        for (i, seen) in seen.into_iter().enumerate() {
            let step = PageStep {
                args,
                queries: [visible.queries[i]],
                page,
                seen,
            };
            if !step.seen.is_empty() {
                R::attend_page(&step, &mut softmaxes[i], outs[i]);
            }
        }
    }
    softmaxes
}

/// The slots of a page that are seen.
#[inline(always)]
fn within(seen: &Range<usize>, page: usize) -> Range<usize> {
    let first = page * PAGE;
    let start = seen.start.clamp(first, first + PAGE) - first;
    start..(seen.end.clamp(first, first + PAGE) - first).max(start)
}

/// Queries that see the same of a page.
pub struct PageStep<'a, 'q, T: KvElement, const N: usize> {
    pub(super) args: &'a AttendArgs<'a, T>,
    pub(super) queries: [T::Query<'q>; N],
    pub(super) page: usize,
    pub(super) seen: Range<usize>,
}

impl<T: KvElement, const N: usize> PageStep<'_, '_, T, N> {
    #[inline(always)]
    pub fn run<R: CodeRegister>(&self, softmaxes: &mut [Softmax; N], outs: &mut [&mut [f32]; N]) {
        T::attend_page::<R, N>(self, softmaxes, outs);
    }

    /// Scores to weights, and what the sums so far have to be multiplied by.
    #[inline(always)]
    pub(super) fn weigh<R: Register>(
        &self,
        scores: [[R; 2]; N],
        softmaxes: &mut [Softmax; N],
    ) -> ([[f32; PAGE]; N], [f32; N]) {
        let mut weights = [[0.0; PAGE]; N];
        let mut corrections = [0.0; N];
        for i in 0..N {
            let (scores, weights) = (scores[i], &mut weights[i]);
            corrections[i] = if self.args.softcap.is_none() && self.seen.len() == PAGE {
                softmaxes[i].weigh_all(scores, weights)
            } else {
                put(weights, scores);
                if let Some(cap) = self.args.softcap {
                    softcap(weights, cap);
                }
                softmaxes[i].weigh(weights, &self.seen)
            };
        }
        (weights, corrections)
    }
}

/// Attention over a page of floats.
#[inline(always)]
pub(super) fn attend_floats<'q, R, T, const N: usize>(
    step: &PageStep<'_, 'q, T, N>,
    softmaxes: &mut [Softmax; N],
    outs: &mut [&mut [f32]; N],
) where
    R: Register,
    T: PlainElement + KvElement<Query<'q> = &'q [f32]>,
{
    let (args, pages) = (step.args, &step.args.pages);
    let (head_dim, value_dim) = (step.queries[0].len(), args.value_dim);
    let page = pages.page(step.page, head_dim, value_dim);
    // Of the last page, itself: that costs nothing.
    let next = (step.page + 1).min(pages.pages.len() - 1);
    let next = pages.page(next, head_dim, value_dim);
    let scores = scores::<R, T, N>(step.queries, page.keys, next.keys, args.scale);
    let (weights, corrections) = step.weigh::<R>(scores, softmaxes);
    let Some(values) = page.values else {
        for ((weights, correction), out) in weights.iter().zip(corrections).zip(outs) {
            mix_keys(weights, &step.seen, page.keys, correction, out);
        }
        return;
    };
    let mix = Mix {
        weights: &weights,
        corrections,
        seen: step.seen.clone(),
        values,
        next: next.values.unwrap_or(values),
        value_dim,
    };
    mix.run::<R>(outs);
}

#[inline(always)]
fn multiplied<R: Register>(values: [R; 2], factors: [R; 2]) -> [R; 2] {
    [values[0].mul(factors[0]), values[1].mul(factors[1])]
}

#[inline(always)]
fn put<R: Register>(values: &mut [f32; PAGE], registers: [R; 2]) {
    let halves = values.as_chunks_mut::<LANES>().0;
    registers[0].store(&mut halves[0]);
    registers[1].store(&mut halves[1]);
}

/// Each query times every key of the page, masked ones included.
#[inline(always)]
fn scores<R: Register, T: PlainElement, const N: usize>(
    queries: [&[f32]; N],
    keys: &[T],
    next: &[T],
    scale: f32,
) -> [[R; 2]; N] {
    let mut even = [[R::splat(0.0); 2]; N];
    let mut odd = [[R::splat(0.0); 2]; N];
    let key_pairs = keys.as_chunks::<{ 2 * PAGE }>().0;
    let next_pairs = &next.as_chunks::<{ 2 * PAGE }>().0[..key_pairs.len()];
    let query_pairs = queries.map(|query| &query.as_chunks::<2>().0[..key_pairs.len()]);
    for (pair, keys) in key_pairs.iter().enumerate() {
        prefetch(&next_pairs[pair]);
        let (even_keys, odd_keys) = keys.split_at(PAGE);
        let even_keys = widened::<R, T>(even_keys);
        let odd_keys = widened::<R, T>(odd_keys);
        for i in 0..N {
            let [even_query, odd_query] = query_pairs[i][pair];
            let (even_query, odd_query) = (R::splat(even_query), R::splat(odd_query));
            for half in 0..2 {
                even[i][half] = even_query.fma(even_keys[half], even[i][half]);
                odd[i][half] = odd_query.fma(odd_keys[half], odd[i][half]);
            }
        }
    }
    let last_keys = keys.as_chunks::<{ 2 * PAGE }>().1;
    if !last_keys.is_empty() {
        let keys = widened::<R, T>(last_keys);
        for (even, query) in even.iter_mut().zip(queries) {
            let query = R::splat(query[query.len() - 1]);
            *even = [query.fma(keys[0], even[0]), query.fma(keys[1], even[1])];
        }
    }
    let scale = [R::splat(scale); 2];
    for (even, odd) in even.iter_mut().zip(odd) {
        *even = multiplied([even[0].add(odd[0]), even[1].add(odd[1])], scale);
    }
    even
}

/// A row of [`PAGE`] elements.
#[inline(always)]
fn widened<R: Register, T: PlainElement>(row: &[T]) -> [R; 2] {
    let halves = row.as_chunks::<LANES>().0;
    [T::widen(&halves[0]), T::widen(&halves[1])]
}

/// `out = out * correction + Σ weight · value`, token after token.
struct Mix<'a, T, const N: usize> {
    weights: &'a [[f32; PAGE]; N],
    corrections: [f32; N],
    seen: Range<usize>,
    values: &'a [T],
    /// The values to prefetch.
    next: &'a [T],
    value_dim: usize,
}

impl<T: PlainElement, const N: usize> Mix<'_, T, N> {
    #[inline(always)]
    fn run<R: Register>(&self, outs: &mut [&mut [f32]; N]) {
        let mut done = 0;
        // Four registers of the head at a time, so that their chains overlap.
        while done + CHAINS * LANES <= self.value_dim {
            self.block::<R, CHAINS>(outs, done);
            done += CHAINS * LANES;
        }
        while done + LANES <= self.value_dim {
            self.block::<R, 1>(outs, done);
            done += LANES;
        }
        for at in done..self.value_dim {
            for (i, out) in outs.iter_mut().enumerate() {
                let seen = self.seen.clone();
                out[at] = seen.fold(out[at] * self.corrections[i], |sum, token| {
                    let value = self.values[token * self.value_dim + at].load();
                    self.weights[i][token].mul_add(value, sum)
                });
            }
        }
    }

    /// The `C` registers of dimensions from `at` on.
    #[inline(always)]
    fn block<R: Register, const C: usize>(&self, outs: &mut [&mut [f32]; N], at: usize) {
        let mut sums = [[R::splat(0.0); C]; N];
        for i in 0..N {
            let out = outs[i][at..at + C * LANES].as_chunks::<LANES>().0;
            let correction = R::splat(self.corrections[i]);
            for c in 0..C {
                sums[i][c] = R::load(&out[c]).mul(correction);
            }
        }
        for token in self.seen.clone() {
            let row = token * self.value_dim + at;
            prefetch(&self.next[row..row + C * LANES]);
            let row = self.values[row..row + C * LANES].as_chunks::<LANES>().0;
            let mut values = [R::splat(0.0); C];
            for c in 0..C {
                values[c] = T::widen(&row[c]);
            }
            for (sums, weights) in sums.iter_mut().zip(self.weights) {
                let weight = R::splat(weights[token]);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = weight.fma(value, *sum);
                }
            }
        }
        for (sums, out) in sums.into_iter().zip(outs) {
            let out = out[at..at + C * LANES].as_chunks_mut::<LANES>().0;
            for (sum, out) in sums.into_iter().zip(out) {
                sum.store(out);
            }
        }
    }
}

/// The same for one query if each of the value's dimensions is a row of tokens.
#[inline(always)]
fn mix_keys<T: PlainElement>(
    weights: &[f32; PAGE],
    seen: &Range<usize>,
    keys: &[T],
    correction: f32,
    out: &mut [f32],
) {
    for (out, row) in out.iter_mut().zip(keys.as_chunks::<PAGE>().0) {
        // Slots beyond the sequence's end may hold anything, including NaN.
        let product = |i: usize| {
            let value = row[i].load();
            let value = if seen.contains(&i) { value } else { 0.0 };
            weights[i] * value
        };
        let sums = std::array::from_fn(|i| product(i) + product(i + LANES));
        *out = out.mul_add(correction, fold(sums));
    }
}

/// Prefetches values that the hardware does not predict, because they are not contiguous with those
/// that are read before.
#[inline(always)]
pub fn prefetch<T>(values: &[T]) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of_val(values)).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = values.as_ptr().cast::<i8>();
        // SAFETY: the address lies in the slice, and prefetching changes nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.add(at)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, LINE);
}
