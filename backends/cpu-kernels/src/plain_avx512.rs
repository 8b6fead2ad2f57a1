//! Plain weights times activations with AVX-512, and with its dot product of bf16 pairs.
//!
//! Each sum runs as in [`super::plain`], the reference, so the bits are the same.

use std::arch::x86_64::*;

use super::LANES;
use super::plain::{Format, PlainOut, PlainRows, Rounded};

/// Sums of a block in registers: 24 of 32, with four rows' weights and a token's activations.
const ROWS: usize = 4;
const TOKENS: usize = 6;
/// How far ahead to prefetch when a block reads several rows side by side. Prefetching in address
/// order gives the best bandwidth, and the hardware does not detect that order.
const AHEAD: usize = 4096;

/// Kinds of step: how weights and activations become products.
type Kind = u8;
const F32: Kind = 0;
const F16: Kind = 1;
const BF16: Kind = 2;
/// Pairs of bf16, widened to `f32`.
const WIDE_PAIRS: Kind = 3;
/// Pairs of bf16 by the instruction for them.
const PAIRS: Kind = 4;

const fn step_bytes(kind: Kind) -> usize {
    match kind {
        F16 | BF16 => 2 * LANES,
        _ => 4 * LANES,
    }
}

/// What all blocks of a call share.
struct Work {
    weights: *const u8,
    row_bytes: usize,
    rows: usize,
    /// Thirty-two bits for each lane of each step, whatever the kind.
    x: *const u32,
    /// From one token's activations to the next's.
    width: usize,
    tokens: usize,
    /// What each token's sums are multiplied by; null for nothing.
    factors: *const f32,
    out: PlainOut,
}

/// # Safety
/// Needs the target features, and `out` valid for writes of every row of every token.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn exact(rows: &PlainRows, x: &[f32], out: PlainOut) {
    let work = Work {
        weights: rows.bytes.as_ptr(),
        row_bytes: rows.row_bytes(),
        rows: rows.count(),
        x: x.as_ptr().cast(),
        width: rows.cols,
        tokens: rows.tokens_of(x),
        factors: std::ptr::null(),
        out,
    };
    // SAFETY: the lengths were checked by `count` and `tokens_of`; the caller vouches for `out`.
    unsafe {
        match rows.format {
            Format::F32 => wide::run::<F32>(&work),
            Format::F16 => wide::run::<F16>(&work),
            Format::Bf16 => wide::run::<BF16>(&work),
        }
    }
}

/// # Safety
/// Needs the target features, and `out` valid for writes of every row of every token.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn rounded(rows: &PlainRows, x: &Rounded, out: PlainOut) {
    // SAFETY: the lengths were checked by `rounded_work`; the caller vouches for `out`.
    unsafe { wide::run::<WIDE_PAIRS>(&rounded_work(rows, x, out)) }
}

/// # Safety
/// Needs the target features, and `out` valid for writes of every row of every token.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub unsafe fn rounded_native(rows: &PlainRows, x: &Rounded, out: PlainOut) {
    // SAFETY: the lengths were checked by `rounded_work`; the caller vouches for `out`.
    unsafe { native::run::<PAIRS>(&rounded_work(rows, x, out)) }
}

fn rounded_work(rows: &PlainRows, x: &Rounded, out: PlainOut) -> Work {
    Work {
        weights: rows.bytes.as_ptr(),
        row_bytes: rows.row_bytes(),
        rows: rows.count(),
        x: x.pairs.as_ptr(),
        width: rows.cols.div_ceil(2),
        tokens: rows.tokens_of_rounded(x),
        factors: x.factors.as_ptr(),
        out,
    }
}

/// The loops over blocks, for one set of target features.
macro_rules! build {
    ($module:ident, $features:literal) => {
        mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            pub unsafe fn run<const K: Kind>(work: &Work) {
                let mut token = 0;
                while token < work.tokens {
                    let tokens = TOKENS.min(work.tokens - token);
                    // SAFETY: as the caller's.
                    unsafe {
                        match tokens {
                            1 => rows::<K, 1>(work, token),
                            2 => rows::<K, 2>(work, token),
                            3 => rows::<K, 3>(work, token),
                            4 => rows::<K, 4>(work, token),
                            5 => rows::<K, 5>(work, token),
                            _ => rows::<K, TOKENS>(work, token),
                        }
                    }
                    token += tokens;
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn rows<const K: Kind, const T: usize>(work: &Work, token: usize) {
                let mut row = 0;
                // SAFETY: as the caller's.
                unsafe {
                    while row + ROWS <= work.rows {
                        block::<K, ROWS, T>(work, row, token);
                        row += ROWS;
                    }
                    while row < work.rows {
                        block::<K, 1, T>(work, row, token);
                        row += 1;
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn block<const K: Kind, const R: usize, const T: usize>(
                work: &Work,
                row: usize,
                token: usize,
            ) {
                let mut sums = [[_mm512_setzero_ps(); ROWS]; T];
                let row_bytes = work.row_bytes;
                // SAFETY: the caller vouches for `row + R` rows of weights and `token + T` of
                // activations and of results. Nothing is read past a row's end: the last step's
                // loads are masked. Prefetching may name any address.
                unsafe {
                    let weights = work.weights.add(row * row_bytes);
                    let x = work.x.add(token * work.width);
                    let steps = row_bytes / step_bytes(K);
                    if T == 1 {
                        // Bound by memory, which is fastest when read sequentially.
                        for r in 0..R {
                            for step in 0..steps {
                                let at = weights.add(r * row_bytes + step * step_bytes(K));
                                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD).cast());
                                let x = _mm512_loadu_si512(x.add(step * LANES).cast());
                                sums[0][r] = add::<K>(sums[0][r], load::<K>(at), x);
                            }
                        }
                    } else {
                        for step in 0..steps {
                            let mut w = [_mm512_setzero_si512(); R];
                            for r in 0..R {
                                let later = (step * R + r) * step_bytes(K) + AHEAD;
                                _mm_prefetch::<_MM_HINT_T0>(weights.wrapping_add(later).cast());
                                w[r] = load::<K>(weights.add(r * row_bytes + step * step_bytes(K)));
                            }
                            for t in 0..T {
                                let x = x.add(t * work.width + step * LANES);
                                let x = _mm512_loadu_si512(x.cast());
                                for r in 0..R {
                                    sums[t][r] = add::<K>(sums[t][r], w[r], x);
                                }
                            }
                        }
                    }
                    let left = row_bytes % step_bytes(K);
                    if left > 0 {
                        let lanes = work.width - steps * LANES;
                        let mask = ((1u32 << lanes) - 1) as u16;
                        for r in 0..R {
                            let at = weights.add(r * row_bytes + steps * step_bytes(K));
                            let w = load_some::<K>(at, left);
                            for t in 0..T {
                                let x = x.add(t * work.width + steps * LANES);
                                let x = _mm512_maskz_loadu_epi32(mask, x.cast());
                                sums[t][r] = add::<K>(sums[t][r], w, x);
                            }
                        }
                    }
                    for t in 0..T {
                        let mut sum = fold(sums[t]);
                        if !work.factors.is_null() {
                            sum = _mm_mul_ps(sum, _mm_set1_ps(*work.factors.add(token + t)));
                        }
                        let out = work.out.start.add((token + t) * work.out.stride + row);
                        _mm_mask_storeu_ps(out, (1 << R) - 1, sum);
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn add<const K: Kind>(sums: __m512, w: __m512i, x: __m512i) -> __m512 {
                match K {
                    // SAFETY: a kind of this module's features; both are 512 bits of pairs.
                    PAIRS => unsafe {
                        let pairs = |all| std::mem::transmute::<__m512i, __m512bh>(all);
                        _mm512_dpbf16_ps(sums, pairs(w), pairs(x))
                    },
                    WIDE_PAIRS => add_pairs(sums, w, x),
                    _ => {
                        let (w, x) = (_mm512_castsi512_ps(w), _mm512_castsi512_ps(x));
                        _mm512_fmadd_ps(w, x, sums)
                    }
                }
            }
        }
    };
}

build!(
    wide,
    "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
);
build!(
    native,
    "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16"
);

/// A step's weights of one row.
///
/// # Safety
/// `at` must be valid for reads of [`step_bytes`].
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn load<const K: Kind>(at: *const u8) -> __m512i {
    // SAFETY: as the caller's.
    unsafe {
        match K {
            F16 | BF16 => widen::<K>(_mm256_loadu_si256(at.cast())),
            _ => _mm512_loadu_si512(at.cast()),
        }
    }
}

/// The first `bytes` of a step, the rest as zeros.
///
/// # Safety
/// `at` must be valid for reads of `bytes`.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn load_some<const K: Kind>(at: *const u8, bytes: usize) -> __m512i {
    let halves = (1u64 << (bytes / 2)) - 1;
    // SAFETY: as the caller's; masked lanes are not read.
    unsafe {
        match K {
            F16 | BF16 => widen::<K>(_mm256_maskz_loadu_epi16(halves as u16, at.cast())),
            _ => _mm512_maskz_loadu_epi16(halves as u32, at.cast()),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn widen<const K: Kind>(halves: __m256i) -> __m512i {
    match K {
        F16 => _mm512_castps_si512(_mm512_cvtph_ps(halves)),
        _ => _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)),
    }
}

/// What the instruction does for numbers that are not denormal; denormal weights count as zero.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn add_pairs(sums: __m512, w: __m512i, x: __m512i) -> __m512 {
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let normal = |bits: i32| _mm512_test_epi32_mask(w, _mm512_set1_epi32(bits));
    let odd = _mm512_maskz_and_epi32(normal(0x7f80_0000), w, high);
    let even = _mm512_maskz_slli_epi32::<16>(normal(0x7f80), w);
    let (odd, even) = (_mm512_castsi512_ps(odd), _mm512_castsi512_ps(even));
    let odd_x = _mm512_castsi512_ps(_mm512_and_si512(x, high));
    let even_x = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
    _mm512_fmadd_ps(even, even_x, _mm512_fmadd_ps(odd, odd_x, sums))
}

/// Each sum's lanes, halves onto halves.
#[inline]
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn fold([a, b, c, d]: [__m512; ROWS]) -> __m128 {
    /// Even and odd quarters of two registers.
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    let halves = |a, b| {
        let low = _mm512_shuffle_f32x4::<LOW>(a, b);
        _mm512_add_ps(low, _mm512_shuffle_f32x4::<HIGH>(a, b))
    };
    let (ab, cd) = (halves(a, b), halves(c, d));
    let quarters = _mm512_add_ps(
        _mm512_shuffle_f32x4::<EVEN>(ab, cd),
        _mm512_shuffle_f32x4::<ODD>(ab, cd),
    );
    let pairs = _mm512_add_ps(quarters, _mm512_permute_ps::<0b01_00_11_10>(quarters));
    let ones = _mm512_add_ps(pairs, _mm512_permute_ps::<0b10_11_00_01>(pairs));
    _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, ones))
}
