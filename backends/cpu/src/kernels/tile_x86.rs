//! Integer tiles for x86-64: AVX-512 VNNI takes four products a lane at once, AVX2 widens to
//! sixteen bits first. Both follow [`super::tile::portable`] step by step.

use std::arch::x86_64::*;

use super::tile::Scales;
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

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
    // SAFETY: as the caller's; lengths were checked, and with them that mins come with groups
    // of 32.
    unsafe {
        match (tile.four_bit, tile.group, tile.mins.is_some()) {
            (true, _, true) => avx512_block::<N, true, 8, true>(tile, input, token, out, stride),
            (true, _, false) => avx512_block::<N, true, 8, false>(tile, input, token, out, stride),
            (false, GROUP, true) => {
                avx512_block::<N, false, 8, true>(tile, input, token, out, stride)
            }
            (false, GROUP, false) => {
                avx512_block::<N, false, 8, false>(tile, input, token, out, stride)
            }
            (false, _, _) => avx512_block::<N, false, 4, false>(tile, input, token, out, stride),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_block<
    const N: usize,
    const FOUR_BIT: bool,
    const QUADS: usize,
    const MINS: bool,
>(
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
        // SAFETY: `check` gave every group its whole run of code bytes and sixteen scales, and
        // every token its codes, scales and sums.
        unsafe {
            let line = |line: usize| _mm512_loadu_si512(tile.codes.as_ptr().add(line * 64).cast());
            let weights: [__m512i; QUADS] = std::array::from_fn(|c| {
                if !FOUR_BIT {
                    line(group * QUADS + c)
                } else if c < QUADS / 2 {
                    _mm512_and_si512(line(group * QUADS / 2 + c), low)
                } else {
                    let both = line(group * QUADS / 2 + c - QUADS / 2);
                    _mm512_and_si512(_mm512_srli_epi16::<4>(both), low)
                }
            });
            let scales = avx512_scales(&tile.scales, group);
            let mins = match &tile.mins {
                Some(mins) if MINS => avx512_scales(mins, group),
                _ => _mm512_setzero_ps(),
            };
            // Tokens outside, quads inside: each activation is read once, straight into its
            // product, and the tokens' chains overlap.
            for (n, total) in totals.iter_mut().enumerate() {
                let first = (token + n) * input.cols + group * QUADS * 4;
                let mut dots = [_mm512_setzero_si512(); 2];
                if !MINS {
                    let sums = input.sums.as_ptr().add(first / SUM_GROUP);
                    let sum = if QUADS * 4 == GROUP {
                        *sums + *sums.add(1)
                    } else {
                        *sums
                    };
                    dots[1] = _mm512_set1_epi32(-tile.zero * sum);
                }
                let codes = input.codes.as_ptr().add(first).cast::<i32>();
                for (c, weights) in weights.iter().enumerate() {
                    let quad = _mm512_set1_epi32(codes.add(c).read_unaligned());
                    dots[c % 2] = _mm512_dpbusd_epi32(dots[c % 2], *weights, quad);
                }
                let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0], dots[1]));
                let scale = _mm512_set1_ps(*input.scales.as_ptr().add(first / GROUP));
                *total = _mm512_fmadd_ps(dot, _mm512_mul_ps(scales, scale), *total);
                if MINS {
                    let sum = _mm512_set1_ps(*input.scaled_sums.as_ptr().add(first / GROUP));
                    *total = _mm512_fmadd_ps(mins, sum, *total);
                }
            }
        }
    }
    for (n, total) in totals.iter().enumerate() {
        // SAFETY: the caller promises sixteen writable values at every token's place.
        unsafe { _mm512_storeu_ps(out.add((token + n) * stride), *total) };
    }
}

/// # Safety
/// `scales` must hold sixteen values for `group`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_scales(scales: &Scales, group: usize) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match scales {
            Scales::F16(values) => {
                let at = values.as_ptr().add(group * TILE_ROWS);
                _mm512_cvtph_ps(_mm256_loadu_si256(at.cast()))
            }
            Scales::F32(values) => _mm512_loadu_ps(values.as_ptr().add(group * TILE_ROWS)),
        }
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
            let first = (token + n) * input.cols + group * QUADS * 4;
            let sum = match QUADS * 4 {
                GROUP => input.sums[first / SUM_GROUP] + input.sums[first / SUM_GROUP + 1],
                _ => input.sums[first / SUM_GROUP],
            };
            let dot = _mm256_hadd_epi32(sums[n][0], sums[n][1]);
            let signed = _mm256_sub_epi32(dot, _mm256_set1_epi32(tile.zero * sum));
            let factor = _mm256_mul_ps(scales, _mm256_set1_ps(input.scales[first / GROUP]));
            *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(signed), factor, *total);
            if let Some(mins) = mins {
                let sum = _mm256_set1_ps(input.scaled_sums[first / GROUP]);
                *total = _mm256_fmadd_ps(mins, sum, *total);
            }
        }
    }
    for (n, total) in totals.iter().enumerate() {
        // SAFETY: the caller promises sixteen writable values at every token's place.
        unsafe { _mm256_storeu_ps(out.add((token + n) * stride + half * ROWS), *total) };
    }
}
