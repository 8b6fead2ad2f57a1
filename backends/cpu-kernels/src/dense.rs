//! Softmax attention of many queries over all positions of one head, as vision towers need it.
//!
//! Every query sees every position, so a chunk of positions is one step of the softmax: its scores
//! are computed for a few queries at once, turned into weights, and mixed with its values while
//! all of that stays in a near cache. What a query computes does not depend on the others, and
//! its sums run in an order fixed by the number of positions.
//!
//! [`Exact`] multiplies `f32`. The rounded products multiply bf16: queries, keys, values and
//! weights are rounded, sums are not. With the dot product of bf16 pairs, which adds the odd
//! product, then the even one, each as a fused multiply-add, numbers are stored in pairs.
//! [`Widened`] stores them as `f32` and takes them in the same order. Both give the same bits,
//! because no denormal number arises, which that instruction takes for zero: queries are scaled as
//! [`round`] does, weights are between 2^14 and 2^60, and denormal keys and values count as zero.

use std::ops::Range;

use super::LANES;
use super::plain::{round, rounded_bits};
use super::register::Register;

/// Positions whose keys are stored together.
pub const DENSE_TILE: usize = 64;
/// The most positions that share a softmax step.
const MAX_CHUNK: usize = 2 * DENSE_TILE;
/// Queries that read a chunk while it is in a near cache.
pub const DENSE_QUERIES: usize = 96;

/// Attention of queries, `[query][key_dim]`. Writes `[query][value_width]`.
pub type AttendDense = unsafe fn(&DenseArgs, &mut DenseScratch, &mut [f32]);

/// How keys and values are multiplied, and with it how they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseProducts {
    Exact,
    /// bf16 stored as `f32`.
    Widened,
    /// Two columns of a key or two positions of a value in a word, the even one in its low half.
    Pairs,
}

/// How one head's keys and values are stored.
#[derive(Clone, Copy, Debug)]
pub struct DenseLayout {
    pub products: DenseProducts,
    pub positions: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

pub struct DenseArgs<'a> {
    pub layout: DenseLayout,
    /// [`DenseLayout::words`] of them.
    pub memory: &'a [u32],
    pub scale: f32,
    pub queries: &'a [f32],
}

/// Memory that calls use again.
#[derive(Default)]
pub struct DenseScratch {
    /// Of each group of queries, `[row][query]`.
    queries: Vec<u32>,
    /// What each query's scores are multiplied by.
    factors: Vec<f32>,
    pairs: Vec<u32>,
    softmaxes: Vec<Softmax>,
}

#[derive(Clone, Copy)]
struct Softmax {
    /// The largest score, to the base of two.
    max: f32,
    total: f32,
}

impl DenseLayout {
    /// Words of a head.
    pub fn words(&self) -> usize {
        self.tiles() * (self.key_tile_words() + self.value_tile_words())
    }

    pub fn tiles(&self) -> usize {
        self.positions.div_ceil(DENSE_TILE)
    }

    /// Where a tile's keys and its values are stored.
    pub fn tile(&self, tile: usize) -> [Range<usize>; 2] {
        let span = |start: usize, len: usize| start + tile * len..start + (tile + 1) * len;
        [
            span(0, self.key_tile_words()),
            span(
                self.tiles() * self.key_tile_words(),
                self.value_tile_words(),
            ),
        ]
    }

    /// Stores a position of a tile, whose memory starts as zeros.
    pub fn store(
        &self,
        [keys, values]: [&mut [u32]; 2],
        slot: usize,
        (key, value): (&[f32], &[f32]),
    ) {
        assert!(keys.len() == self.key_tile_words() && values.len() == self.value_tile_words());
        assert!(slot < DENSE_TILE && key.len() == self.key_dim && value.len() == self.value_dim);
        let column = keys[slot..].iter_mut().step_by(DENSE_TILE);
        let width = self.value_width();
        let word = |x: &f32| match self.products {
            DenseProducts::Exact => x.to_bits(),
            DenseProducts::Widened | DenseProducts::Pairs => normal_bf16(*x) << 16,
        };
        if self.products == DenseProducts::Pairs {
            for (out, pair) in column.zip(key.chunks(2)) {
                *out = word(&pair[0]) >> 16 | pair.get(1).map_or(0, word);
            }
            let shift = if slot.is_multiple_of(2) { 16 } else { 0 };
            for (out, x) in values[slot / 2 * width..].iter_mut().zip(value) {
                *out |= word(x) >> shift;
            }
        } else {
            column.zip(key).for_each(|(out, x)| *out = word(x));
            let row = values[slot * width..].iter_mut();
            row.zip(value).for_each(|(out, x)| *out = word(x));
        }
    }

    /// Words of a query, and of a position's key.
    fn key_rows(&self) -> usize {
        match self.products {
            DenseProducts::Exact => self.key_dim,
            DenseProducts::Widened => self.key_dim.next_multiple_of(2),
            DenseProducts::Pairs => self.key_dim.div_ceil(2),
        }
    }

    fn key_tile_words(&self) -> usize {
        self.key_rows() * DENSE_TILE
    }

    fn value_tile_words(&self) -> usize {
        match self.products {
            DenseProducts::Exact | DenseProducts::Widened => DENSE_TILE * self.value_width(),
            DenseProducts::Pairs => DENSE_TILE / 2 * self.value_width(),
        }
    }

    /// Values of an answer, of which those from `value_dim` on are zeros.
    pub fn value_width(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }
}

/// The nearest bf16, ties to even; zero if that is denormal.
#[inline(always)]
fn normal_bf16(x: f32) -> u32 {
    let bits = rounded_bits(x.to_bits());
    if bits & 0x7f80 == 0 { 0 } else { bits }
}

/// One way to multiply.
pub trait DenseProduct<R: Register> {
    const PRODUCTS: DenseProducts;
    /// Positions that share a softmax step; those of rounded products are equal.
    const CHUNK: usize;
    /// Rows are taken in the order of their number, changed by this.
    const SWAP: usize;
    /// The power of two that weights are multiplied by.
    const RAISED: f32;
    /// The power of two that weights stay at if their scores are less, before they are multiplied.
    const LEAST: f32;

    /// `sums + row * factor`
    fn add(sums: R, row: R, factor: R) -> R;
    /// Writes [`LANES`] weights to the first words.
    fn store(weights: R, out: &mut [u32]);
    /// Words of this many positions.
    fn words(positions: usize) -> usize;
}

pub struct Exact;

impl<R: Register> DenseProduct<R> for Exact {
    const PRODUCTS: DenseProducts = DenseProducts::Exact;
    const CHUNK: usize = DENSE_TILE;
    const SWAP: usize = 0;
    const RAISED: f32 = 0.0;
    const LEAST: f32 = -126.0;

    #[inline(always)]
    fn add(sums: R, row: R, factor: R) -> R {
        factor.fma(row, sums)
    }

    #[inline(always)]
    fn store(weights: R, out: &mut [u32]) {
        store_words(weights, out);
    }

    #[inline(always)]
    fn words(positions: usize) -> usize {
        positions
    }
}

pub struct Widened;

/// As [`RAISED`](DenseProduct::RAISED) and [`LEAST`](DenseProduct::LEAST) of rounded products. The
/// least weight is a multiple of 2^7 as a bf16, a normal value one of 2^-133, and every sum of
/// their products one of 2^-126.
pub(super) const ROUNDED_RAISED: f32 = 60.0;
pub(super) const ROUNDED_LEAST: f32 = -46.0;

impl<R: Register> DenseProduct<R> for Widened {
    const PRODUCTS: DenseProducts = DenseProducts::Widened;
    const CHUNK: usize = MAX_CHUNK;
    const SWAP: usize = 1;
    const RAISED: f32 = ROUNDED_RAISED;
    const LEAST: f32 = ROUNDED_LEAST;

    #[inline(always)]
    fn add(sums: R, row: R, factor: R) -> R {
        factor.fma(row, sums)
    }

    #[inline(always)]
    fn store(weights: R, out: &mut [u32]) {
        store_words(weights.rounded_to_bf16(), out);
    }

    #[inline(always)]
    fn words(positions: usize) -> usize {
        positions.next_multiple_of(2)
    }
}

#[cfg(target_arch = "x86_64")]
pub mod pairs {
    //! The products of bf16 pairs by the instruction for them.

    use std::arch::x86_64::*;
    use std::mem::transmute;

    use super::super::register::Avx512;
    use super::*;

    struct Pairs;

    impl DenseProduct<Avx512> for Pairs {
        const PRODUCTS: DenseProducts = DenseProducts::Pairs;
        const CHUNK: usize = MAX_CHUNK;
        const SWAP: usize = 0;
        const RAISED: f32 = ROUNDED_RAISED;
        const LEAST: f32 = ROUNDED_LEAST;

        #[inline(always)]
        fn add(sums: Avx512, row: Avx512, factor: Avx512) -> Avx512 {
            // SAFETY: only `attend`, which has the target feature, multiplies pairs; all are 512
            // bits.
            Avx512(unsafe {
                let row = transmute::<__m512, __m512bh>(row.0);
                let factor = transmute::<__m512, __m512bh>(factor.0);
                _mm512_dpbf16_ps(sums.0, row, factor)
            })
        }

        #[inline(always)]
        fn store(weights: Avx512, out: &mut [u32]) {
            let out = &mut out[..LANES / 2];
            // SAFETY: as for `add`; the words have 256 bits.
            unsafe {
                let pairs: __m256i = transmute(_mm512_cvtneps_pbh(weights.0));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), pairs);
            }
        }

        #[inline(always)]
        fn words(positions: usize) -> usize {
            positions.div_ceil(2)
        }
    }

    /// # Safety
    /// Needs the target features.
    #[target_feature(
        enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"
    )]
    pub unsafe fn attend(args: &DenseArgs, scratch: &mut DenseScratch, out: &mut [f32]) {
        super::attend::<Avx512, Pairs>(args, scratch, out);
    }
}

#[inline(always)]
fn store_words<R: Register>(values: R, out: &mut [u32]) {
    let out = &mut out[..LANES];
    // SAFETY: the words are there, and any number is one.
    values.store(unsafe { &mut *out.as_mut_ptr().cast::<[f32; LANES]>() });
}

/// Sixteen words from `at` on.
#[inline(always)]
fn load<R: Register>(words: &[u32], at: usize) -> R {
    let words = &words[at..at + LANES];
    // SAFETY: the words are there, and any are numbers.
    R::load(unsafe { &*words.as_ptr().cast::<[f32; LANES]>() })
}

/// 1.5 · 2²³ and the bias of exponents: adding it rounds to a whole number and leaves its biased
/// exponent in the low bits.
const EXPONENT_MAGIC: f32 = 12_582_912.0 + 127.0;
/// The polynomial of (2^x - 1) / x through its Chebyshev nodes between -0.5 and 0.5, from the
/// highest power down.
const EXP2_TERMS: [f32; 5] = [
    1.338_130_2e-3,
    9.666_368e-3,
    5.550_381e-2,
    2.402_235e-1,
    6.931_472e-1,
];

/// 2^(x + raised), within 3e-7 of it, for x from `least`, at which it stays, to 0.
#[inline(always)]
fn exp2<R: Register>(x: R, least: f32, raised: f32) -> R {
    // NaN stays.
    let x = R::splat(least).larger(x);
    let magic = R::splat(EXPONENT_MAGIC + raised);
    let shifted = x.add(magic);
    let rest = x.sub(shifted.sub(magic));
    let mut p = R::splat(EXP2_TERMS[0]);
    for term in &EXP2_TERMS[1..] {
        p = p.fma(rest, R::splat(*term));
    }
    p.fma(rest, R::splat(1.0))
        .mul(shifted.low_bits_as_exponent())
}

#[inline(always)]
pub(super) fn attend<R: Register, P: DenseProduct<R>>(
    args: &DenseArgs,
    scratch: &mut DenseScratch,
    out: &mut [f32],
) {
    let layout = args.layout;
    let (rows, width) = (layout.key_rows(), layout.value_width());
    assert!(layout.products == P::PRODUCTS && args.memory.len() == layout.words());
    assert!(args.queries.len().is_multiple_of(layout.key_dim));
    let count = args.queries.len() / layout.key_dim;
    assert_eq!(out.len(), count * width);
    let grouped = count - count % R::QUERIES;
    prepare::<R, P>(args, scratch);
    out.fill(0.0);
    let mut first = 0;
    while first < layout.positions {
        let chunk = Chunk {
            layout,
            memory: args.memory,
            first,
            len: P::CHUNK.min(layout.positions - first),
            rows,
            width,
        };
        match R::QUERIES {
            6 if const { R::QUERIES >= 6 } => {
                chunk.run_groups::<R, P, 6>(0..grouped, scratch, out);
            }
            2 if const { R::QUERIES >= 2 } => {
                chunk.run_groups::<R, P, 2>(0..grouped, scratch, out);
            }
            width => assert_eq!(width, 1),
        }
        let single = if R::QUERIES == 1 { 0 } else { grouped };
        chunk.run_groups::<R, P, 1>(single..count, scratch, out);
        first += P::CHUNK;
    }
    for (softmax, out) in scratch.softmaxes.iter().zip(out.chunks_exact_mut(width)) {
        let inverse = 1.0 / softmax.total;
        out.iter_mut().for_each(|value| *value *= inverse);
    }
}

/// Stores queries as they are multiplied.
#[inline(always)]
fn prepare<R: Register, P: DenseProduct<R>>(args: &DenseArgs, scratch: &mut DenseScratch) {
    let layout = args.layout;
    let scale = args.scale * std::f32::consts::LOG2_E;
    let (rows, count) = (layout.key_rows(), args.queries.len() / layout.key_dim);
    let grouped = count - count % R::QUERIES;
    scratch.queries.clear();
    scratch.queries.resize(rows * count, 0);
    scratch.factors.clear();
    scratch.factors.resize(count, scale);
    scratch.softmaxes.clear();
    let empty = Softmax {
        max: f32::NEG_INFINITY,
        total: 0.0,
    };
    scratch.softmaxes.resize(count, empty);
    scratch.pairs.resize(layout.key_dim.div_ceil(2), 0);
    let queries = args.queries.chunks_exact(layout.key_dim);
    for (index, query) in queries.enumerate() {
        let (start, step) = if index < grouped {
            let within = index % R::QUERIES;
            ((index - within) * rows + within, R::QUERIES)
        } else {
            (index * rows, 1)
        };
        let out = scratch.queries[start..].iter_mut().step_by(step);
        if P::PRODUCTS == DenseProducts::Exact {
            out.zip(query).for_each(|(out, x)| *out = x.to_bits());
            continue;
        }
        scratch.factors[index] = round(query, &mut scratch.pairs) * scale;
        let pairs = scratch.pairs.iter();
        if P::PRODUCTS == DenseProducts::Pairs {
            out.zip(pairs).for_each(|(out, pair)| *out = *pair);
        } else {
            let halves = pairs.flat_map(|pair| [pair << 16, pair & 0xffff_0000]);
            out.zip(halves).for_each(|(out, half)| *out = half);
        }
    }
}

/// Positions that share a softmax step.
struct Chunk<'a> {
    layout: DenseLayout,
    memory: &'a [u32],
    first: usize,
    len: usize,
    /// Of a key.
    rows: usize,
    /// Of a value.
    width: usize,
}

impl Chunk<'_> {
    /// The answers of queries, `N` at a time.
    #[inline(always)]
    fn run_groups<R: Register, P: DenseProduct<R>, const N: usize>(
        &self,
        queries: Range<usize>,
        scratch: &mut DenseScratch,
        out: &mut [f32],
    ) {
        for first in queries.step_by(N) {
            let own = &scratch.queries[first * self.rows..(first + N) * self.rows];
            let factors = &scratch.factors[first..first + N];
            let softmaxes = &mut scratch.softmaxes[first..first + N];
            let mut scores = [[0.0; MAX_CHUNK]; N];
            self.score::<R, P, N>(own, factors, &mut scores);
            let mut weights = [[0; MAX_CHUNK]; N];
            let corrections = self.weigh::<R, P, N>(&mut scores, softmaxes, &mut weights);
            let out = &mut out[first * self.width..(first + N) * self.width];
            self.mix::<R, P, N>(&weights, &corrections, out);
        }
    }

    /// Each query times every key of the chunk's tiles.
    #[inline(always)]
    fn score<R: Register, P: DenseProduct<R>, const N: usize>(
        &self,
        queries: &[u32],
        factors: &[f32],
        scores: &mut [[f32; MAX_CHUNK]; N],
    ) {
        let tiles = self.first / DENSE_TILE..(self.first + self.len).div_ceil(DENSE_TILE);
        for (index, tile) in tiles.enumerate() {
            let keys = &self.memory[self.layout.tile(tile)[0].clone()];
            for at in (0..DENSE_TILE).step_by(R::SUMS * LANES) {
                let to = index * DENSE_TILE + at;
                match R::SUMS {
                    4 if const { R::SUMS >= 4 } => {
                        self.score_keys::<R, P, N, 4>((keys, at), queries, factors, (scores, to));
                    }
                    _ => self.score_keys::<R, P, N, 2>((keys, at), queries, factors, (scores, to)),
                }
            }
        }
    }

    #[inline(always)]
    fn score_keys<R: Register, P: DenseProduct<R>, const N: usize, const C: usize>(
        &self,
        (keys, at): (&[u32], usize),
        queries: &[u32],
        factors: &[f32],
        (scores, to): (&mut [[f32; MAX_CHUNK]; N], usize),
    ) {
        let mut sums = [[R::splat(0.0); C]; N];
        for row in 0..self.rows {
            let row = row ^ P::SWAP;
            let mut k = [R::splat(0.0); C];
            for (c, k) in k.iter_mut().enumerate() {
                *k = load::<R>(keys, row * DENSE_TILE + at + c * LANES);
            }
            for n in 0..N {
                let query = R::splat(f32::from_bits(queries[row * N + n]));
                for c in 0..C {
                    sums[n][c] = P::add(sums[n][c], k[c], query);
                }
            }
        }
        for n in 0..N {
            let factor = R::splat(factors[n]);
            let scores = scores[n][to..].as_chunks_mut::<LANES>().0;
            for c in 0..C {
                sums[n][c].mul(factor).store(&mut scores[c]);
            }
        }
    }

    /// Turns scores into weights under the largest so far. Returns what the sums before have to be
    /// multiplied by.
    #[inline(always)]
    fn weigh<R: Register, P: DenseProduct<R>, const N: usize>(
        &self,
        scores: &mut [[f32; MAX_CHUNK]; N],
        softmaxes: &mut [Softmax],
        weights: &mut [[u32; MAX_CHUNK]; N],
    ) -> [f32; LANES] {
        let registers = self.len.div_ceil(LANES);
        let last = self.len % LANES;
        let (mut fallen, mut sums) = ([0.0; LANES], [0.0; N]);
        for n in 0..N {
            scores[n][self.len..registers * LANES].fill(f32::NEG_INFINITY);
            let scores = &scores[n].as_chunks::<LANES>().0[..registers];
            let before = softmaxes[n].max;
            let mut max = R::splat(before);
            for scores in scores {
                max = R::load(scores).larger(max);
            }
            let max = max.fold_max();
            softmaxes[n].max = max;
            fallen[n] = before - max;
            let mut sum = R::splat(0.0);
            for (index, scores) in scores.iter().enumerate() {
                let score = R::load(scores).sub(R::splat(max));
                let mut weight = exp2(score, P::LEAST, P::RAISED);
                if last > 0 && index + 1 == registers {
                    let mut lanes = weight.array();
                    lanes[last..].fill(0.0);
                    weight = R::load(&lanes);
                }
                sum = sum.add(weight);
                P::store(weight, &mut weights[n][P::words(index * LANES)..]);
            }
            sums[n] = sum.fold();
        }
        let corrections = exp2(R::load(&fallen), P::LEAST, 0.0).array();
        for n in 0..N {
            softmaxes[n].total = softmaxes[n].total.mul_add(corrections[n], sums[n]);
        }
        corrections
    }

    /// `out = out * correction + sum of weight * value`. A sum starts at zero, not at what is in
    /// `out`, which a correction may make denormal.
    #[inline(always)]
    fn mix<R: Register, P: DenseProduct<R>, const N: usize>(
        &self,
        weights: &[[u32; MAX_CHUNK]; N],
        corrections: &[f32; LANES],
        out: &mut [f32],
    ) {
        let (mut done, registers) = (0, self.width / LANES);
        while done < registers {
            let left = registers - done;
            // Blocks of about the same size.
            let block = left.div_ceil(left.div_ceil(R::SUMS));
            let at = done * LANES;
            match block {
                4 if const { R::SUMS >= 4 } => {
                    self.mix_block::<R, P, N, 4>(weights, corrections, (out, at));
                }
                3 if const { R::SUMS >= 3 } => {
                    self.mix_block::<R, P, N, 3>(weights, corrections, (out, at));
                }
                2 => self.mix_block::<R, P, N, 2>(weights, corrections, (out, at)),
                _ => self.mix_block::<R, P, N, 1>(weights, corrections, (out, at)),
            }
            done += block;
        }
    }

    #[inline(always)]
    fn mix_block<R: Register, P: DenseProduct<R>, const N: usize, const C: usize>(
        &self,
        weights: &[[u32; MAX_CHUNK]; N],
        corrections: &[f32; LANES],
        (out, at): (&mut [f32], usize),
    ) {
        let values = self.layout.tiles() * self.layout.key_tile_words();
        let first = values + P::words(self.first) * self.width;
        let rows = P::words(self.len);
        let values = &self.memory[first..first + rows * self.width];
        let mut sums = [[R::splat(0.0); C]; N];
        for row in 0..rows {
            let row = row ^ P::SWAP;
            let mut v = [R::splat(0.0); C];
            for (c, v) in v.iter_mut().enumerate() {
                *v = load::<R>(values, row * self.width + at + c * LANES);
            }
            for n in 0..N {
                let weight = R::splat(f32::from_bits(weights[n][row]));
                for c in 0..C {
                    sums[n][c] = P::add(sums[n][c], v[c], weight);
                }
            }
        }
        for n in 0..N {
            let correction = R::splat(corrections[n]);
            let out = &mut out[n * self.width + at..][..C * LANES];
            let out = out.as_chunks_mut::<LANES>().0;
            for c in 0..C {
                R::load(&out[c])
                    .fma(correction, sums[n][c])
                    .store(&mut out[c]);
            }
        }
    }
}
