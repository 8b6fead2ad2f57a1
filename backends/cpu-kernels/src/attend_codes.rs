//! Attention over pages of codes ([`super::kv_codes`]).
//!
//! Queries and softmax weights are rounded to whole numbers of 15 and 14 bits, in two bytes each,
//! so that all products are exact sums of products of bytes. A query is rounded once per call, the
//! weights of a page under the largest of them. Keys with centroids are multiplied by the query's
//! upper byte only: their own error is many times larger than that of the rest.

use super::attention::{PageStep, Softmax, prefetch};
use super::code_register::{CodeRegister, WeightCodes, round};
use super::kv_codes::{CodeFormat, FACTOR_SCALE, KEY_GROUP, TILE, UNIT};
use super::{LANES, PAGE};

/// The whole number that the largest channel of a query becomes.
const QUERY_MAX: f32 = 16256.0;
/// Below this the inverse of a largest weight could overflow.
const VANISHING: f32 = 1e-30;
/// Units of a tile.
const UNITS: usize = 8;

/// The channels of a query that meet a tile: `high * 128 + low`.
#[derive(Clone, Copy, Default)]
pub struct QueryTile {
    high: [i8; TILE],
    low: [i8; TILE],
    /// The sums of both.
    totals: [i32; 2],
}

/// A query in whole numbers.
#[derive(Clone, Copy)]
pub struct CodedQuery<'a> {
    tiles: &'a [QueryTile],
    factor: f32,
}

/// Rounds queries, all of the same length.
#[inline(always)]
pub(super) fn prepare<'a, const N: usize>(
    queries: [&[f32]; N],
    room: &'a mut Vec<QueryTile>,
) -> [CodedQuery<'a>; N] {
    let tiles = queries[0].len().div_ceil(TILE);
    room.clear();
    room.resize(N * tiles, QueryTile::default());
    let mut factors = [0.0; N];
    for (i, tiles) in room.chunks_exact_mut(tiles.max(1)).enumerate() {
        factors[i] = round_query(queries[i], tiles);
    }
    let mut tiles = room.chunks_exact(tiles.max(1));
    std::array::from_fn(|i| CodedQuery {
        tiles: tiles.next().unwrap_or_default(),
        factor: factors[i],
    })
}

/// Returns the factor. NaN stays visible in it.
#[inline(always)]
fn round_query(query: &[f32], tiles: &mut [QueryTile]) -> f32 {
    let mut largest = 0;
    for value in query {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let nothing = largest < VANISHING;
    let inverse = if nothing { 0.0 } else { QUERY_MAX / largest };
    for (tile, values) in tiles.iter_mut().zip(query.chunks(TILE)) {
        let mut padded = [0.0; TILE];
        padded[..values.len()].copy_from_slice(values);
        let [mut high_total, mut low_total] = [0; 2];
        for (i, value) in padded.into_iter().enumerate() {
            let whole = round(value * inverse);
            let high = ((whole + 64) >> 7).clamp(-127, 127) as i8;
            let low = (whole - (i32::from(high) << 7)).clamp(-127, 127) as i8;
            (tile.high[i], tile.low[i]) = (high, low);
            high_total += i32::from(high);
            low_total += i32::from(low);
        }
        tile.totals = [high_total, low_total];
    }
    if nothing { 0.0 } else { largest / QUERY_MAX }
}

#[inline(always)]
pub(super) fn attend_page<R: CodeRegister, const N: usize>(
    step: &PageStep<u8, N>,
    softmaxes: &mut [Softmax; N],
    outs: &mut [&mut [f32]; N],
) {
    let (args, pages) = (step.args, &step.args.pages);
    let Some(codes) = &pages.layout.codes else {
        return;
    };
    let next = (step.page + 1).min(pages.pages.len() - 1);
    let [page, next] = [step.page, next].map(|page| pages.pages[page]);
    // SAFETY: as for pages of floats: written before any thread attends, and inside the layout.
    let [keys, next_keys] =
        [page, next].map(|page| unsafe { page.slice(codes.key.at, codes.key.page_bytes()) });
    let span = KeySpan {
        keys,
        next: next_keys,
        code_bytes: codes.key.code_bytes(),
        scale: args.scale,
    };
    let scores = match codes.key.format {
        CodeFormat::Q8 => span.scores::<R, 8, N>(&step.queries),
        CodeFormat::Turbo4 => span.scores::<R, 4, N>(&step.queries),
        CodeFormat::Turbo3 => span.scores::<R, 3, N>(&step.queries),
        CodeFormat::Turbo2 => span.scores::<R, 2, N>(&step.queries),
    };
    let (mut weights, corrections) = step.weigh::<R>(scores, softmaxes);
    if codes.skip_below > 0.0 {
        for weight in weights.as_flattened_mut() {
            *weight = if *weight < codes.skip_below {
                0.0
            } else {
                *weight
            };
        }
    }
    // SAFETY: as above.
    let [values, next_values] =
        [page, next].map(|page| unsafe { page.slice(codes.value.at, codes.value.page_bytes()) });
    let mix = CodeMix {
        weights: &weights,
        corrections,
        seen: step.seen.clone(),
        values,
        next: next_values,
        code_bytes: codes.value.code_bytes(),
    };
    match codes.value.format {
        CodeFormat::Q8 => mix.run::<R, 8>(outs),
        CodeFormat::Turbo4 => mix.run::<R, 4>(outs),
        CodeFormat::Turbo3 => mix.run::<R, 3>(outs),
        CodeFormat::Turbo2 => mix.run::<R, 2>(outs),
    }
}

/// Runs a statement for every unit of a tile, with its number as a constant.
macro_rules! for_units {
    ($unit:ident, $body:block) => {
        for_units!(@ $unit, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $name:ident, $body:block, $($unit:literal)*) => {
        $({
            const $name: usize = $unit;
            $body
        })*
    };
}

/// Four neighbouring bytes.
#[inline(always)]
fn four(bytes: &[i8], index: usize) -> i32 {
    let bytes = bytes.as_chunks::<4>().0[index];
    i32::from_le_bytes(bytes.map(|byte| byte as u8))
}

/// The factors of half a page's tokens.
#[inline(always)]
fn factors<R: CodeRegister>(bytes: &[u8], half: usize) -> R {
    let bytes = &bytes.as_chunks::<2>().0[half * LANES..][..LANES];
    R::from_f16(&std::array::from_fn(|i| u16::from_le_bytes(bytes[i])))
}

/// Tiles of keys that share factors; all of them if the format has one factor for each token.
const fn group_tiles(bits: usize) -> usize {
    if bits == 8 {
        KEY_GROUP / TILE
    } else {
        usize::MAX
    }
}

/// A head's keys in a page.
struct KeySpan<'a> {
    keys: &'a [u8],
    /// The keys to prefetch.
    next: &'a [u8],
    /// Bytes of the codes.
    code_bytes: usize,
    scale: f32,
}

impl KeySpan<'_> {
    /// Each query times every key of the page, masked ones included.
    #[inline(always)]
    fn scores<R: CodeRegister, const BITS: usize, const N: usize>(
        &self,
        queries: &[CodedQuery; N],
    ) -> [[R; 2]; N] {
        let (codes, all_factors) = self.keys.split_at(self.code_bytes);
        let group = group_tiles(BITS).min(codes.len() / (BITS * UNIT));
        let groups = codes.chunks(group * BITS * UNIT);
        let groups = groups.zip(self.next.chunks(group * BITS * UNIT));
        let mut scores = [[R::splat(0.0); 2]; N];
        for (index, ((codes, next), bytes)) in
            groups.zip(all_factors.chunks_exact(2 * PAGE)).enumerate()
        {
            let mut tiles: [&[QueryTile]; N] = [&[]; N];
            for i in 0..N {
                tiles[i] = &queries[i].tiles[index * group..][..codes.len() / (BITS * UNIT)];
            }
            let dots = dots::<R, BITS, N>(tiles, codes, next);
            let factors = [factors::<R>(bytes, 0), factors::<R>(bytes, 1)];
            for i in 0..N {
                scores[i] = [
                    dots[i][0].fma(factors[0], scores[i][0]),
                    dots[i][1].fma(factors[1], scores[i][1]),
                ];
            }
        }
        for i in 0..N {
            let whole = if BITS == 8 { 1.0 } else { 128.0 };
            let scale = R::splat(queries[i].factor * (whole / FACTOR_SCALE) * self.scale);
            scores[i] = [scores[i][0].mul(scale), scores[i][1].mul(scale)];
        }
        scores
    }
}

/// Whole products of queries with the page's keys, of tiles that share factors.
#[inline(always)]
fn dots<R: CodeRegister, const BITS: usize, const N: usize>(
    queries: [&[QueryTile]; N],
    codes: &[u8],
    next: &[u8],
) -> [[R; 2]; N] {
    let mut high = [[R::start(0); 2]; N];
    let mut low = high;
    for i in 0..N {
        let mut totals = [0; 2];
        for tile in queries[i] {
            totals = [totals[0] + tile.totals[0], totals[1] + tile.totals[1]];
        }
        high[i] = [R::start(totals[0]); 2];
        low[i] = [R::start(totals[1]); 2];
    }
    let tiles = codes.chunks_exact(BITS * UNIT);
    for (tile, (codes, next)) in tiles.zip(next.chunks_exact(BITS * UNIT)).enumerate() {
        prefetch(next);
        for_units!(U, {
            let codes = R::unit::<BITS, U>(codes);
            for i in 0..N {
                let query = &queries[i][tile];
                high[i][U % 2] = R::dot(high[i][U % 2], codes, four(&query.high, U / 2));
                if BITS == 8 {
                    low[i][U % 2] = R::dot(low[i][U % 2], codes, four(&query.low, U / 2));
                }
            }
        });
    }
    let mut dots = [[R::splat(0.0); 2]; N];
    for i in 0..N {
        for half in 0..2 {
            dots[i][half] = if BITS == 8 {
                R::joined(high[i][half], low[i][half])
            } else {
                R::floats(high[i][half])
            };
        }
    }
    dots
}

/// Weights times their values' factors, as whole numbers. NaN stays visible.
#[inline(always)]
fn scaled_weights<R: CodeRegister>(weights: &[f32; PAGE], factors: [R; 2]) -> WeightCodes {
    let halves = weights.as_chunks::<LANES>().0;
    let products = [
        R::load(&halves[0]).mul(factors[0]),
        R::load(&halves[1]).mul(factors[1]),
    ];
    let largest = products[0].larger(products[1]).fold_max();
    // The maximum loses NaN, the sum keeps it.
    let sum = products[0].add(products[1]).fold();
    if largest < VANISHING && sum < f32::INFINITY {
        return WeightCodes::ZERO;
    }
    let largest = if sum < f32::INFINITY {
        largest
    } else {
        f32::NAN
    };
    R::round_weights(products, largest)
}

/// `out = out * correction + Σ weight · value`
struct CodeMix<'a, const N: usize> {
    weights: &'a [[f32; PAGE]; N],
    corrections: [f32; N],
    seen: std::ops::Range<usize>,
    values: &'a [u8],
    /// The values to prefetch.
    next: &'a [u8],
    /// Bytes of the codes.
    code_bytes: usize,
}

impl<const N: usize> CodeMix<'_, N> {
    #[inline(always)]
    fn run<R: CodeRegister, const BITS: usize>(&self, outs: &mut [&mut [f32]; N]) {
        let (codes, factor_bytes) = self.values.split_at(self.code_bytes);
        let scale = R::splat(1.0 / FACTOR_SCALE);
        let mut known = [
            factors::<R>(factor_bytes, 0).mul(scale),
            factors::<R>(factor_bytes, 1).mul(scale),
        ];
        // Slots beyond the sequence's end may hold anything, including NaN.
        if self.seen.len() < PAGE {
            for (half, known) in known.iter_mut().enumerate() {
                let mut factors = known.array();
                for (i, factor) in factors.iter_mut().enumerate() {
                    let seen = self.seen.contains(&(half * LANES + i));
                    *factor = if seen { *factor } else { 0.0 };
                }
                *known = R::load(&factors);
            }
        }
        let mut weights = [WeightCodes::ZERO; N];
        let mut nothing = true;
        for (codes, weights) in weights.iter_mut().zip(self.weights) {
            *codes = scaled_weights(weights, known);
            nothing &= codes.factor == 0.0;
        }
        for tile in 0..codes.len() / (BITS * UNIT) {
            if nothing {
                self.correct(outs, tile);
            } else {
                self.tile::<R, BITS>(outs, tile, &weights);
            }
        }
    }

    /// A tile of a page whose values do not count.
    #[inline(always)]
    fn correct(&self, outs: &mut [&mut [f32]; N], tile: usize) {
        for (out, correction) in outs.iter_mut().zip(self.corrections) {
            let end = out.len().min((tile + 1) * TILE);
            for value in &mut out[tile * TILE..end] {
                *value *= correction;
            }
        }
    }

    #[inline(always)]
    fn tile<R: CodeRegister, const BITS: usize>(
        &self,
        outs: &mut [&mut [f32]; N],
        tile: usize,
        weights: &[WeightCodes; N],
    ) {
        let bytes = tile * BITS * UNIT..(tile + 1) * BITS * UNIT;
        prefetch(&self.next[bytes.clone()]);
        let codes = &self.values[bytes];
        let mut high = [R::start(0); N];
        let mut low = high;
        for i in 0..N {
            high[i] = R::start(weights[i].totals[0]);
            low[i] = R::start(weights[i].totals[1]);
        }
        for_units!(U, {
            let codes = R::unit::<BITS, U>(codes);
            for i in 0..N {
                high[i] = R::dot_positive(high[i], codes, four(&weights[i].high, U));
                low[i] = R::dot_positive(low[i], codes, four(&weights[i].low, U));
            }
        });
        for i in 0..N {
            let mixed = R::joined(high[i], low[i]);
            let (correction, factor) = (self.corrections[i], weights[i].factor);
            let out = &mut outs[i][tile * TILE..];
            if let Some(out) = out.first_chunk_mut::<TILE>() {
                let corrected = R::load(out).mul(R::splat(correction));
                // Weights that are all zero leave the sign of a zero, as if skipped.
                let sum = if factor == 0.0 {
                    corrected
                } else {
                    mixed.fma(R::splat(factor), corrected)
                };
                sum.store(out);
            } else {
                for (out, mixed) in out.iter_mut().zip(mixed.array()) {
                    let corrected = *out * correction;
                    *out = if factor == 0.0 {
                        corrected
                    } else {
                        mixed.mul_add(factor, corrected)
                    };
                }
            }
        }
    }
}

const _: () = assert!(TILE == LANES && UNITS * UNIT == TILE * PAGE);
