//! Softmax attention of a few queries over the pages of one head.
//!
//! Queries that see the same pages are handed over together, so that a page is read and widened
//! once for all of them. What one of them computes does not depend on the others.

use super::float::{CHAINS, exp, fold, fold_max, softcap};
use super::{KvElement, LANES, PAGE};
use crate::shared::PagePtr;

/// The most queries at once: as many as have room for their sums in 32 registers.
pub const MAX_QUERIES: usize = 6;

/// Where one head's keys and values lie in a page: keys as `[head_dim][PAGE]`, so that a
/// register holds many tokens, values as `[PAGE][head_dim]`.
#[derive(Clone, Copy)]
pub struct HeadPages<'a, T> {
    /// The sequence's pages, oldest first.
    pub pages: &'a [PagePtr<T>],
    pub key_offset: usize,
    /// `None`: the values are the keys' first dimensions.
    pub value_offset: Option<usize>,
}

impl<T: KvElement> HeadPages<'_, T> {
    /// One page's keys, and its values where they are kept apart.
    ///
    /// # Safety
    /// Nobody writes to the page meanwhile.
    #[inline(always)]
    pub(super) unsafe fn slices(
        &self,
        page: usize,
        head_dim: usize,
        value_dim: usize,
    ) -> (&[T], Option<&[T]>) {
        let page = &self.pages[page];
        // SAFETY: as the caller promises; the offsets are the layout's own.
        unsafe {
            let values = self.value_offset;
            (
                page.slice(self.key_offset, head_dim * PAGE),
                values.map(|offset| page.slice(offset, value_dim * PAGE)),
            )
        }
    }
}

/// What the queries have in common.
pub struct AttendArgs<'a, T> {
    pub scale: f32,
    /// `score = tanh(score / cap) * cap`
    pub softcap: Option<f32>,
    pub pages: HeadPages<'a, T>,
}

/// One query against the positions `start..end`. All of a call's are equally long, and so are
/// the values they mix.
#[derive(Default)]
pub struct AttendQuery<'a> {
    pub query: &'a [f32],
    /// A score that takes part without a value.
    pub sink: Option<f32>,
    pub start: usize,
    pub end: usize,
    pub out: &'a mut [f32],
}

/// A softmax under way.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    pub max: f32,
    total: f32,
}

impl Softmax {
    pub const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        total: 0.0,
    };

    /// Turns a page's scores at `from..to` into weights under the maximum so far, and goes on.
    #[inline(always)]
    pub fn weigh(&mut self, weights: &mut [f32; PAGE], from: usize, to: usize) -> f32 {
        let mut largest = [self.max; LANES];
        for (half, scores) in weights.as_chunks::<LANES>().0.iter().enumerate() {
            for (i, largest) in largest.iter_mut().enumerate() {
                let at = half * LANES + i;
                // NaN is larger than nothing.
                let larger = at >= from && at < to && scores[i] > *largest;
                *largest = if larger { scores[i] } else { *largest };
            }
        }
        let max = fold_max(largest);
        for (i, weight) in weights.iter_mut().enumerate() {
            let seen = i >= from && i < to;
            let raised = exp(*weight - max);
            *weight = if seen { raised } else { 0.0 };
        }
        let sum = fold(std::array::from_fn(|i| weights[i] + weights[i + LANES]));
        self.advance(max, sum)
    }

    /// Goes on to a page's maximum and the sum of its weights; what was summed before has to be
    /// multiplied by the result.
    #[inline(always)]
    pub fn advance(&mut self, max: f32, sum: f32) -> f32 {
        let correction = exp(self.max - max);
        let correction = if self.max == f32::NEG_INFINITY {
            0.0
        } else {
            correction
        };
        self.total = self.total.mul_add(correction, sum);
        self.max = max;
        correction
    }

    #[inline(always)]
    pub fn finish(&self, query: &mut AttendQuery) {
        let sink = query.sink.map_or(0.0, |sink| exp(sink - self.max));
        let inverse = 1.0 / (self.total + sink);
        query.out.iter_mut().for_each(|value| *value *= inverse);
    }
}

/// Page by page in order, with a running maximum. What a query computes depends on its own
/// pages' contents at `start..end` alone.
#[inline(always)]
pub(super) fn attend<T: KvElement>(args: &AttendArgs<T>, queries: &mut [AttendQuery]) {
    for query in queries {
        query.out.fill(0.0);
        let mut softmax = Softmax::EMPTY;
        for page in query.start / PAGE..query.end.div_ceil(PAGE) {
            attend_page(args, query, page, &mut softmax);
        }
        softmax.finish(query);
    }
}

/// One query over one page.
#[inline(always)]
pub(super) fn attend_page<T: KvElement>(
    args: &AttendArgs<T>,
    query: &mut AttendQuery,
    page: usize,
    softmax: &mut Softmax,
) {
    let (head_dim, value_dim) = (query.query.len(), query.out.len());
    let first = page * PAGE;
    let from = query.start.max(first) - first;
    let to = query.end.min(first + PAGE) - first;
    // SAFETY: the step has written its tokens and waited for all threads before any of them
    // attends, and pages live as long as the cache.
    let (keys, values) = unsafe { args.pages.slices(page, head_dim, value_dim) };
    let mut weights = scores(query.query, keys, args.scale);
    if let Some(cap) = args.softcap {
        softcap(&mut weights, cap);
    }
    let correction = softmax.weigh(&mut weights, from, to);
    match values {
        Some(values) => accumulate(
            &weights[from..to],
            &values[from * value_dim..to * value_dim],
            correction,
            query.out,
            0,
        ),
        None => accumulate_keys(&weights, from..to, keys, correction, query.out),
    }
}

/// Query times every key of the page, including those that will be masked.
#[inline(always)]
fn scores<T: KvElement>(query: &[f32], keys: &[T], scale: f32) -> [f32; PAGE] {
    let mut even = [0.0f32; PAGE];
    let mut odd = [0.0f32; PAGE];
    let mut pairs = query.chunks_exact(2).zip(keys.chunks_exact(2 * PAGE));
    for (q, k) in pairs.by_ref() {
        for i in 0..PAGE {
            even[i] = q[0].mul_add(k[i].load(), even[i]);
        }
        for i in 0..PAGE {
            odd[i] = q[1].mul_add(k[PAGE + i].load(), odd[i]);
        }
    }
    if query.len() % 2 == 1 {
        let last = query.len() - 1;
        for i in 0..PAGE {
            even[i] = query[last].mul_add(keys[last * PAGE + i].load(), even[i]);
        }
    }
    std::array::from_fn(|i| (even[i] + odd[i]) * scale)
}

/// `out = out * correction + Σ weight · value`, token after token, for the dimensions from `done`
/// on.
#[inline(always)]
pub(super) fn accumulate<T: KvElement>(
    weights: &[f32],
    values: &[T],
    correction: f32,
    out: &mut [f32],
    mut done: usize,
) {
    let value_dim = out.len();
    // Four registers of the head at a time, so that their chains overlap.
    while done + CHAINS * LANES <= value_dim {
        accumulate_block::<T, { CHAINS * LANES }>(weights, values, correction, out, done);
        done += CHAINS * LANES;
    }
    while done + LANES <= value_dim {
        accumulate_block::<T, LANES>(weights, values, correction, out, done);
        done += LANES;
    }
    while done < value_dim {
        accumulate_block::<T, 1>(weights, values, correction, out, done);
        done += 1;
    }
}

/// The same where each of the value's dimensions lies as a row of tokens.
#[inline(always)]
fn accumulate_keys<T: KvElement>(
    weights: &[f32; PAGE],
    seen: std::ops::Range<usize>,
    keys: &[T],
    correction: f32,
    out: &mut [f32],
) {
    for (out, row) in out.iter_mut().zip(keys.as_chunks::<PAGE>().0) {
        // What lies beyond the sequence's end may be anything, NaN included.
        let product = |i: usize| {
            let value = row[i].load();
            let value = if seen.contains(&i) { value } else { 0.0 };
            weights[i] * value
        };
        let sums = std::array::from_fn(|i| product(i) + product(i + LANES));
        *out = out.mul_add(correction, fold(sums));
    }
}

#[inline(always)]
fn accumulate_block<T: KvElement, const N: usize>(
    weights: &[f32],
    values: &[T],
    correction: f32,
    out: &mut [f32],
    at: usize,
) {
    let value_dim = out.len();
    let mut sum = [0.0; N];
    sum.copy_from_slice(&out[at..at + N]);
    for value in &mut sum {
        *value *= correction;
    }
    for (weight, row) in weights.iter().zip(values.chunks_exact(value_dim)) {
        let row = &row[at..at + N];
        for i in 0..N {
            sum[i] = weight.mul_add(row[i].load(), sum[i]);
        }
    }
    out[at..at + N].copy_from_slice(&sum);
}
