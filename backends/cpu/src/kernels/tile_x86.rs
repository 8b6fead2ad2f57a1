//! Integer tiles for x86-64: AVX-512 VNNI takes four products a lane at once, AVX2 widens to
//! sixteen bits first. Both follow [`super::tile::portable`] step by step.

use std::arch::x86_64::*;

use super::tile::Scales;
use super::{GROUP, TILE_ROWS, Tile, TileInput};

/// Tokens whose sums stay in registers together; each weight is unpacked once for all.
const BLOCK: usize = 8;

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn avx512_vnni(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    let mut token = 0;
    // SAFETY: `check` has matched every length; the caller vouches for `out`.
    unsafe {
        while token + BLOCK <= input.tokens {
            avx512_shape::<BLOCK>(tile, input, token, out, stride);
            token += BLOCK;
        }
        while token + 4 <= input.tokens {
            avx512_shape::<4>(tile, input, token, out, stride);
            token += 4;
        }
        while token < input.tokens {
            avx512_shape::<1>(tile, input, token, out, stride);
            token += 1;
        }
    }
}

/// Picks the build for the tile's shape, so that the inner loop has no branch.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_shape<const N: usize>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: as the caller's; lengths were checked.
    unsafe {
        match (tile.four_bit, tile.group) {
            (true, _) => avx512_block::<N, true, 8>(tile, input, token, out, stride),
            (false, GROUP) => avx512_block::<N, false, 8>(tile, input, token, out, stride),
            (false, _) => avx512_block::<N, false, 4>(tile, input, token, out, stride),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_block<const N: usize, const FOUR_BIT: bool, const QUADS: usize>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    out: *mut f32,
    stride: usize,
) {
    let groups = input.cols / (QUADS * 4);
    let mut totals = [_mm512_setzero_ps(); N];
    let low = _mm512_set1_epi8(15);
    for group in 0..groups {
        let mut dots = [_mm512_setzero_si512(); N];
        // SAFETY: `check` gave every group its whole run of code bytes, and every token its
        // `cols` activation codes.
        unsafe {
            let quad = |n: usize, quad: usize| {
                let at = (token + n) * input.cols + (group * QUADS + quad) * 4;
                let bytes = input.codes.as_ptr().add(at).cast::<i32>().read_unaligned();
                _mm512_set1_epi32(bytes)
            };
            if FOUR_BIT {
                for c in 0..QUADS / 2 {
                    let at = tile.codes.as_ptr().add((group * QUADS / 2 + c) * 64);
                    let both = _mm512_loadu_si512(at.cast());
                    let first = _mm512_and_si512(both, low);
                    let second = _mm512_and_si512(_mm512_srli_epi16::<4>(both), low);
                    for (n, dot) in dots.iter_mut().enumerate() {
                        *dot = _mm512_dpbusd_epi32(*dot, first, quad(n, c));
                        *dot = _mm512_dpbusd_epi32(*dot, second, quad(n, c + QUADS / 2));
                    }
                }
            } else {
                for c in 0..QUADS {
                    let at = tile.codes.as_ptr().add((group * QUADS + c) * 64);
                    let codes = _mm512_loadu_si512(at.cast());
                    for (n, dot) in dots.iter_mut().enumerate() {
                        *dot = _mm512_dpbusd_epi32(*dot, codes, quad(n, c));
                    }
                }
            }
        }
        // SAFETY: `check` gave every group sixteen scales, and mins where there are any.
        let (scales, mins) = unsafe {
            let load = |scales: &Scales| match scales {
                Scales::F16(values) => {
                    let at = values.as_ptr().add(group * TILE_ROWS);
                    _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))
                }
                Scales::F32(values) => _mm512_loadu_ps(values.as_ptr().add(group * TILE_ROWS)),
            };
            (load(&tile.scales), tile.mins.as_ref().map(load))
        };
        for (n, total) in totals.iter_mut().enumerate() {
            let sum = input.sum(token + n, group, QUADS * 4);
            let scale = input.scale(token + n, group, QUADS * 4);
            let signed = _mm512_sub_epi32(dots[n], _mm512_set1_epi32(tile.zero * sum));
            let factor = _mm512_mul_ps(scales, _mm512_set1_ps(scale));
            *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(signed), factor, *total);
            if let Some(mins) = mins {
                *total = _mm512_fmadd_ps(mins, _mm512_set1_ps(scale * sum as f32), *total);
            }
        }
    }
    for (n, total) in totals.iter().enumerate() {
        // SAFETY: the caller promises sixteen writable values at every token's place.
        unsafe { _mm512_storeu_ps(out.add((token + n) * stride), *total) };
    }
}

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn avx2(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    let mut token = 0;
    // SAFETY: `check` has matched every length; the caller vouches for `out`.
    unsafe {
        while token + 2 <= input.tokens {
            avx2_shape::<2>(tile, input, token, out, stride);
            token += 2;
        }
        if token < input.tokens {
            avx2_shape::<1>(tile, input, token, out, stride);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_shape<const N: usize>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    out: *mut f32,
    stride: usize,
) {
    for half in 0..2 {
        // SAFETY: as the caller's; lengths were checked.
        unsafe {
            match (tile.four_bit, tile.group) {
                (true, _) => avx2_half::<N, true, 8>(tile, input, token, half, out, stride),
                (false, GROUP) => avx2_half::<N, false, 8>(tile, input, token, half, out, stride),
                (false, _) => avx2_half::<N, false, 4>(tile, input, token, half, out, stride),
            }
        }
    }
}

/// Eight of the sixteen rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_half<const N: usize, const FOUR_BIT: bool, const QUADS: usize>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    half: usize,
    out: *mut f32,
    stride: usize,
) {
    const ROWS: usize = TILE_ROWS / 2;
    let groups = input.cols / (QUADS * 4);
    let low = _mm256_set1_epi8(15);
    let mut totals = [_mm256_setzero_ps(); N];
    for group in 0..groups {
        // Pairs of products of rows 0, 1, 4, 5 and of rows 2, 3, 6, 7.
        let mut sums = [[_mm256_setzero_si256(); 2]; N];
        for c in 0..QUADS {
            // SAFETY: `check` gave every group its whole run of code bytes, and every token its
            // `cols` activation codes.
            unsafe {
                let codes = if FOUR_BIT {
                    let at = (group * QUADS / 2 + c % (QUADS / 2)) * 64 + half * 32;
                    let both = _mm256_loadu_si256(tile.codes.as_ptr().add(at).cast());
                    let shifted = if c < QUADS / 2 {
                        both
                    } else {
                        _mm256_srli_epi16::<4>(both)
                    };
                    _mm256_and_si256(shifted, low)
                } else {
                    let at = (group * QUADS + c) * 64 + half * 32;
                    _mm256_loadu_si256(tile.codes.as_ptr().add(at).cast())
                };
                let zero = _mm256_setzero_si256();
                let first = _mm256_unpacklo_epi8(codes, zero);
                let second = _mm256_unpackhi_epi8(codes, zero);
                for (n, [a, b]) in sums.iter_mut().enumerate() {
                    let at = (token + n) * input.cols + (group * QUADS + c) * 4;
                    let bytes = input.codes.as_ptr().add(at).cast::<i32>().read_unaligned();
                    let wide = _mm_cvtsi128_si64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(bytes)));
                    let x = _mm256_set1_epi64x(wide);
                    *a = _mm256_add_epi32(*a, _mm256_madd_epi16(first, x));
                    *b = _mm256_add_epi32(*b, _mm256_madd_epi16(second, x));
                }
            }
        }
        let load = |scales: &Scales| {
            let at = group * TILE_ROWS + half * ROWS;
            let values: [f32; ROWS] = std::array::from_fn(|i| scales.get(at + i));
            // SAFETY: the array holds eight values.
            unsafe { _mm256_loadu_ps(values.as_ptr()) }
        };
        let (scales, mins) = (load(&tile.scales), tile.mins.as_ref().map(load));
        for (n, total) in totals.iter_mut().enumerate() {
            let sum = input.sum(token + n, group, QUADS * 4);
            let scale = input.scale(token + n, group, QUADS * 4);
            let dot = _mm256_hadd_epi32(sums[n][0], sums[n][1]);
            let signed = _mm256_sub_epi32(dot, _mm256_set1_epi32(tile.zero * sum));
            let factor = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
            *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(signed), factor, *total);
            if let Some(mins) = mins {
                *total = _mm256_fmadd_ps(mins, _mm256_set1_ps(scale * sum as f32), *total);
            }
        }
    }
    for (n, total) in totals.iter().enumerate() {
        // SAFETY: the caller promises sixteen writable values at every token's place.
        unsafe { _mm256_storeu_ps(out.add((token + n) * stride + half * ROWS), *total) };
    }
}
