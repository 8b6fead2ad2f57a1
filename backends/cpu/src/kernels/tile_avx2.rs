//! Integer tiles with AVX2, which has no products of bytes that are exact for all codes: they are
//! widened to sixteen bits. Follows [`super::tile::portable`] step by step.

use std::arch::x86_64::*;

use super::tile::{Block, LINE, Scales};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Rows in a register.
const ROWS: usize = TILE_ROWS / 2;

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    let mut token = 0;
    // SAFETY: `check` has matched every length; the caller vouches for `out`.
    unsafe {
        while token + 4 <= input.tokens {
            tokens::<4>(tile, input, token, out, stride);
            token += 4;
        }
        while token < input.tokens {
            tokens::<1>(tile, input, token, out, stride);
            token += 1;
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tokens<const N: usize>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    out: *mut f32,
    stride: usize,
) {
    let mut totals = [[_mm256_setzero_ps(); 2]; N];
    let mut codes: Block = [0; GROUP * TILE_ROWS];
    for block in 0..input.cols / GROUP {
        tile.unpack(block, &mut codes);
        for first in (0..GROUP).step_by(tile.group) {
            let col = block * GROUP + first;
            for half in 0..2 {
                let load = |scales: &Scales| {
                    let row = |i| scales.value(half * ROWS + i, col, tile.group);
                    let values: [f32; ROWS] = std::array::from_fn(row);
                    // SAFETY: the array holds eight values.
                    unsafe { _mm256_loadu_ps(values.as_ptr()) }
                };
                let (scales, mins) = (load(&tile.scales), tile.mins.as_ref().map(load));
                for (n, totals) in totals.iter_mut().enumerate() {
                    let total = &mut totals[half];
                    let at = (token + n) * input.cols + col;
                    let x = &input.codes[at..at + tile.group];
                    let dot = dot(&codes[first * TILE_ROWS..], half, x);
                    let sums = at / SUM_GROUP..(at + tile.group) / SUM_GROUP;
                    let zeros = tile.zero * input.sums[sums].iter().sum::<i32>();
                    let signed = _mm256_sub_epi32(dot, _mm256_set1_epi32(zeros));
                    let factor = _mm256_mul_ps(scales, _mm256_set1_ps(input.scales[at / GROUP]));
                    *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(signed), factor, *total);
                    if let Some(mins) = mins {
                        let sum = _mm256_set1_ps(input.scaled_sums[at / GROUP]);
                        *total = _mm256_fmadd_ps(mins, sum, *total);
                    }
                }
            }
        }
    }
    for (n, totals) in totals.iter().enumerate() {
        for (half, total) in totals.iter().enumerate() {
            // SAFETY: the caller promises sixteen writable values at every token's place.
            unsafe { _mm256_storeu_ps(out.add((token + n) * stride + half * ROWS), *total) };
        }
    }
}

/// Eight rows' codes times a group of activations.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn dot(codes: &[u8], half: usize, x: &[i8]) -> __m256i {
    let zero = _mm256_setzero_si256();
    // Pairs of products of rows 0, 1, 4, 5 and of rows 2, 3, 6, 7.
    let (mut a, mut b) = (zero, zero);
    let lines = codes.as_chunks::<LINE>().0.iter();
    for (line, quad) in lines.zip(x.as_chunks::<4>().0) {
        // SAFETY: half a line is 32 bytes.
        let codes = unsafe { _mm256_loadu_si256(line.as_ptr().add(half * LINE / 2).cast()) };
        let quad = _mm_cvtsi32_si128(i32::from_le_bytes(quad.map(|x| x as u8)));
        let x = _mm256_set1_epi64x(_mm_cvtsi128_si64(_mm_cvtepi8_epi16(quad)));
        a = _mm256_add_epi32(a, _mm256_madd_epi16(_mm256_unpacklo_epi8(codes, zero), x));
        b = _mm256_add_epi32(b, _mm256_madd_epi16(_mm256_unpackhi_epi8(codes, zero), x));
    }
    _mm256_hadd_epi32(a, b)
}
