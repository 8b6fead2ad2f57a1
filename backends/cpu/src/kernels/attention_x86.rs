//! Attention over half-precision pages with AVX-512: a page that all queries see whole is widened
//! once for all of them.
//!
//! Each query's sums run in the order of [`attention::attend`], its scalar reference, so the bits
//! are the same.

use std::arch::x86_64::*;

use super::attention::{self, AttendArgs, AttendQuery, MAX_QUERIES, Softmax};
use super::float::{CHAINS, EXP_RANGE, EXP_TERMS, LN2_HIGH, LN2_LOW, ROUND_MAGIC, softcap};
use super::{Half, LANES, PAGE};

/// Longer queries than any model's go the scalar way.
const MAX_DIM: usize = 512;

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub fn attend(args: &AttendArgs<Half>, queries: &mut [AttendQuery]) {
    if queries.iter().any(|query| query.query.len() > MAX_DIM) {
        return attention::attend(args, queries);
    }
    match queries.len() {
        1 => attend_few::<1>(args, queries),
        2 => attend_few::<2>(args, queries),
        3 => attend_few::<3>(args, queries),
        4 => attend_few::<4>(args, queries),
        5 => attend_few::<5>(args, queries),
        MAX_QUERIES => attend_few::<MAX_QUERIES>(args, queries),
        _ => attention::attend(args, queries),
    }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn attend_few<const N: usize>(args: &AttendArgs<Half>, queries: &mut [AttendQuery]) {
    let Ok(queries) = <&mut [AttendQuery; N]>::try_from(queries) else {
        return;
    };
    let mut softmaxes = [Softmax::EMPTY; N];
    // The queries as `[dimension][query]`, in the order the scores want them.
    let mut turned = [[0.0; N]; MAX_DIM];
    for (i, query) in queries.iter_mut().enumerate() {
        query.out.fill(0.0);
        for (turned, value) in turned.iter_mut().zip(query.query) {
            turned[i] = *value;
        }
    }
    let turned = &turned[..queries[0].query.len()];
    let first = queries.iter().map(|query| query.start / PAGE).min();
    let end = queries.iter().map(|query| query.end.div_ceil(PAGE)).max();
    for page in first.unwrap_or(0)..end.unwrap_or(0) {
        let whole = queries.iter().all(|query| sees_all(query, page));
        if whole && args.pages.value_offset.is_some() {
            attend_whole_page(args, queries, turned, page, &mut softmaxes);
            continue;
        }
        for (query, softmax) in queries.iter_mut().zip(&mut softmaxes) {
            if sees(query, page) {
                attention::attend_page(args, query, page, softmax);
            }
        }
    }
    for (query, softmax) in queries.iter_mut().zip(softmaxes) {
        softmax.finish(query);
    }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn attend_whole_page<const N: usize>(
    args: &AttendArgs<Half>,
    queries: &mut [AttendQuery; N],
    turned: &[[f32; N]],
    page: usize,
    softmaxes: &mut [Softmax; N],
) {
    let (head_dim, value_dim) = (turned.len(), queries[0].out.len());
    // SAFETY: as in `attention::attend_page`.
    let (keys, values) = unsafe { args.pages.slices(page, head_dim, value_dim) };
    let values = values.unwrap_or(&[]);
    let scores = scores(turned, keys, args.scale);
    let mut weights = [[0.0; PAGE]; N];
    let mut corrections = [0.0; N];
    for i in 0..N {
        corrections[i] = match args.softcap {
            None => weigh(scores[i], &mut weights[i], &mut softmaxes[i]),
            Some(cap) => {
                store(scores[i][0], &mut weights[i], 0);
                store(scores[i][1], &mut weights[i], LANES);
                softcap(&mut weights[i], cap);
                softmaxes[i].weigh(&mut weights[i], 0, PAGE)
            }
        };
    }
    let mut done = 0;
    while done + CHAINS * LANES <= value_dim {
        accumulate::<N, CHAINS>(queries, &weights, &corrections, values, done);
        done += CHAINS * LANES;
    }
    while done + LANES <= value_dim {
        accumulate::<N, 1>(queries, &weights, &corrections, values, done);
        done += LANES;
    }
    for (i, query) in queries.iter_mut().enumerate() {
        attention::accumulate(&weights[i], values, corrections[i], query.out, done);
    }
}

/// Each query times every key of the page.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn scores<const N: usize>(queries: &[[f32; N]], keys: &[Half], scale: f32) -> [[__m512; 2]; N] {
    let zero = _mm512_setzero_ps();
    let mut even = [[zero; 2]; N];
    let mut odd = [[zero; 2]; N];
    let (pairs, last) = queries.as_chunks::<2>();
    let (key_pairs, last_key) = keys.as_chunks::<{ 2 * PAGE }>();
    for ([even_queries, odd_queries], keys) in pairs.iter().zip(key_pairs) {
        let (k0, k1) = (widen(keys, 0), widen(keys, LANES));
        let (k2, k3) = (widen(keys, 2 * LANES), widen(keys, 3 * LANES));
        for i in 0..N {
            let q = _mm512_set1_ps(even_queries[i]);
            even[i][0] = _mm512_fmadd_ps(q, k0, even[i][0]);
            even[i][1] = _mm512_fmadd_ps(q, k1, even[i][1]);
            let q = _mm512_set1_ps(odd_queries[i]);
            odd[i][0] = _mm512_fmadd_ps(q, k2, odd[i][0]);
            odd[i][1] = _mm512_fmadd_ps(q, k3, odd[i][1]);
        }
    }
    for queries in last {
        for i in 0..N {
            let q = _mm512_set1_ps(queries[i]);
            even[i][0] = _mm512_fmadd_ps(q, widen(last_key, 0), even[i][0]);
            even[i][1] = _mm512_fmadd_ps(q, widen(last_key, LANES), even[i][1]);
        }
    }
    let scale = _mm512_set1_ps(scale);
    for (even, odd) in even.iter_mut().zip(odd) {
        for half in 0..2 {
            even[half] = _mm512_mul_ps(_mm512_add_ps(even[half], odd[half]), scale);
        }
    }
    even
}

/// [`Softmax::weigh`] for a page that is seen whole.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn weigh(scores: [__m512; 2], weights: &mut [f32; PAGE], softmax: &mut Softmax) -> f32 {
    // Of a NaN and a number these take the second operand.
    let largest = _mm512_max_ps(scores[0], _mm512_set1_ps(softmax.max));
    let largest = _mm512_max_ps(scores[1], largest);
    let max = fold(largest, |a, b| _mm256_max_ps(b, a), |a, b| _mm_max_ps(b, a));
    let raised = scores.map(|score| exp(_mm512_sub_ps(score, _mm512_set1_ps(max))));
    store(raised[0], weights, 0);
    store(raised[1], weights, LANES);
    let sum = _mm512_add_ps(raised[0], raised[1]);
    let sum = fold(sum, |a, b| _mm256_add_ps(a, b), |a, b| _mm_add_ps(a, b));
    softmax.advance(max, sum)
}

/// `float::exp` of sixteen.
#[inline]
#[target_feature(enable = "avx512f")]
fn exp(x: __m512) -> __m512 {
    let of = |value: f32| _mm512_set1_ps(value);
    let x = _mm512_max_ps(of(EXP_RANGE.0), x);
    let x = _mm512_min_ps(of(EXP_RANGE.1), x);
    let shifted = _mm512_fmadd_ps(x, of(std::f32::consts::LOG2_E), of(ROUND_MAGIC));
    let n = _mm512_sub_ps(shifted, of(ROUND_MAGIC));
    let r = _mm512_fmadd_ps(n, of(-LN2_HIGH), x);
    let r = _mm512_fmadd_ps(n, of(-LN2_LOW), r);
    let mut p = of(EXP_TERMS[0]);
    for term in &EXP_TERMS[1..] {
        p = _mm512_fmadd_ps(p, r, of(*term));
    }
    let p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), of(1.0));
    let magic = _mm512_set1_epi32(ROUND_MAGIC.to_bits() as i32);
    let power = _mm512_sub_epi32(_mm512_castps_si512(shifted), magic);
    let half = _mm512_srai_epi32::<1>(power);
    let scale = |n| {
        let biased = _mm512_add_epi32(n, _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
    };
    let p = _mm512_mul_ps(p, scale(half));
    _mm512_mul_ps(p, scale(_mm512_sub_epi32(power, half)))
}

/// Sixteen lanes to one, halves onto halves.
#[inline(always)]
fn fold(
    lanes: __m512,
    of_eight: impl Fn(__m256, __m256) -> __m256,
    of_four: impl Fn(__m128, __m128) -> __m128,
) -> f32 {
    // SAFETY: only kernels that are built for AVX-512 call this.
    unsafe {
        let eight = of_eight(
            _mm512_castps512_ps256(lanes),
            _mm512_extractf32x8_ps::<1>(lanes),
        );
        let four = of_four(
            _mm256_castps256_ps128(eight),
            _mm256_extractf128_ps::<1>(eight),
        );
        let two = of_four(four, _mm_movehl_ps(four, four));
        let one = of_four(two, _mm_shuffle_ps::<1>(two, two));
        _mm_cvtss_f32(one)
    }
}

/// `out = out * correction + Σ weight · value`, token after token, for `R` registers of the
/// values' dimensions from `at` on.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn accumulate<const N: usize, const R: usize>(
    queries: &mut [AttendQuery; N],
    weights: &[[f32; PAGE]; N],
    corrections: &[f32; N],
    values: &[Half],
    at: usize,
) {
    let value_dim = queries[0].out.len();
    let mut sums = [[_mm512_setzero_ps(); R]; N];
    for ((sums, query), correction) in sums.iter_mut().zip(&*queries).zip(corrections) {
        let correction = _mm512_set1_ps(*correction);
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_mul_ps(load(query.out, at + r * LANES), correction);
        }
    }
    for (token, row) in values.chunks_exact(value_dim).enumerate().take(PAGE) {
        let row = &row[at..at + R * LANES];
        let mut value = [_mm512_setzero_ps(); R];
        for (r, value) in value.iter_mut().enumerate() {
            *value = widen(row, r * LANES);
        }
        for (sums, weights) in sums.iter_mut().zip(weights) {
            let weight = _mm512_set1_ps(weights[token]);
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum = _mm512_fmadd_ps(weight, value, *sum);
            }
        }
    }
    for (query, sums) in queries.iter_mut().zip(sums) {
        for (r, sum) in sums.into_iter().enumerate() {
            store(sum, query.out, at + r * LANES);
        }
    }
}

/// Whether the query sees any of the page.
fn sees(query: &AttendQuery, page: usize) -> bool {
    query.start < (page + 1) * PAGE && page * PAGE < query.end
}

fn sees_all(query: &AttendQuery, page: usize) -> bool {
    query.start <= page * PAGE && (page + 1) * PAGE <= query.end
}

/// A register of halves from `at` on, exactly.
#[inline]
#[target_feature(enable = "avx512f")]
fn widen(values: &[Half], at: usize) -> __m512 {
    let values = &values[at..at + LANES];
    // SAFETY: the slice has sixteen halves, which are plain bits.
    let halves = unsafe { _mm256_loadu_si256(values.as_ptr().cast()) };
    _mm512_cvtph_ps(halves)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(values: &[f32], at: usize) -> __m512 {
    let values = &values[at..at + LANES];
    // SAFETY: the slice has sixteen values.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(register: __m512, values: &mut [f32], at: usize) {
    let values = &mut values[at..at + LANES];
    // SAFETY: the slice has sixteen values.
    unsafe { _mm512_storeu_ps(values.as_mut_ptr(), register) }
}
