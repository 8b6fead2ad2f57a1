//! Integer tiles with AMX, sixteen tokens at a time; fewer, and what is left of many, go to
//! [`super::tile_avx512`]. Follows [`super::tile::portable`] step by step, as that does.

use std::arch::x86_64::*;

use super::amx::{Dots, Multiply, Operands, TOKENS, Unit};
use super::tile_avx512::{self, avx512_scales, unpack};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Blocks of columns that are unpacked together: 16 KiB, which stay in the nearest cache while
/// all tokens pass by.
const CHUNK: usize = 32;

/// The codes of a block of columns, a line for each quad.
type Block = [u8; GROUP * TILE_ROWS];

/// Codes as the unit reads them, a line in each row of a tile.
#[repr(C, align(64))]
struct Unpacked([Block; CHUNK]);

/// # Safety
/// Needs the target features and [`super::amx::available`], and `out` valid for writes of
/// `TILE_ROWS` values at every `token * stride`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises; no other unit is alive on this thread, as none outlives
    // this call.
    let unit = || unsafe { Unit::new(tile.group) };
    // SAFETY: the caller's promises.
    unsafe { all_tokens(unit, tile, input, out, stride) };
}

/// # Safety
/// As for [`tile`]; `unit` must give one that multiplies groups of `tile.group`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn all_tokens<M: Multiply>(
    unit: impl FnOnce() -> M,
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    let whole = input.tokens / TOKENS * TOKENS;
    // SAFETY: the caller's promises.
    unsafe {
        if whole > 0 {
            whole_tiles(&unit(), tile, input, out, stride);
        }
        if whole < input.tokens {
            let out = out.wrapping_add(whole * stride);
            tile_avx512::tile(tile, &after(input, whole), out, stride);
        }
    }
}

/// What is left of `input` once the first `tokens` are done.
fn after<'a>(input: &TileInput<'a>, tokens: usize) -> TileInput<'a> {
    let done = tokens * input.cols;
    TileInput {
        tokens: input.tokens - tokens,
        cols: input.cols,
        codes: &input.codes[done..],
        scales: &input.scales[done / GROUP..],
        sums: &input.sums[done / SUM_GROUP..],
        scaled_sums: &input.scaled_sums[done / GROUP..],
    }
}

/// All tokens but the last `input.tokens % TOKENS`.
///
/// # Safety
/// As for [`all_tokens`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn whole_tiles<M: Multiply>(
    unit: &M,
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    input.check(tile);
    let mut codes = Unpacked([[0; GROUP * TILE_ROWS]; CHUNK]);
    let blocks = input.cols / GROUP;
    for first in (0..blocks).step_by(CHUNK) {
        let count = CHUNK.min(blocks - first);
        for (i, codes) in codes.0[..count].iter_mut().enumerate() {
            // SAFETY: `check` has given the tile all its blocks; a block is eight lines.
            unsafe {
                for (c, quad) in unpack(tile, first + i).into_iter().enumerate() {
                    _mm512_store_si512(codes.as_mut_ptr().cast::<__m512i>().add(c), quad);
                }
            }
        }
        for token in (0..input.tokens / TOKENS * TOKENS).step_by(TOKENS) {
            let chunk = Chunk {
                tile,
                input,
                codes: &codes.0[..count],
                first,
                token,
            };
            // SAFETY: the caller vouches for `out` at all these tokens.
            unsafe { chunk.run(unit, out.add(token * stride), stride) };
        }
    }
}

/// Some blocks of columns, for [`TOKENS`] tokens.
struct Chunk<'a> {
    tile: &'a Tile<'a>,
    input: &'a TileInput<'a>,
    codes: &'a [Block],
    /// The first block.
    first: usize,
    /// The first token.
    token: usize,
}

impl Chunk<'_> {
    /// Goes on from the totals in `out`, unless these are the first columns.
    ///
    /// # Safety
    /// `out` must be valid for reads and writes of `TILE_ROWS` values at every `n * stride`;
    /// `unit` must multiply groups of `tile.group`, and lengths must have been checked.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn run<M: Multiply>(&self, unit: &M, out: *mut f32, stride: usize) {
        let group = self.tile.group;
        let mut totals = [_mm512_setzero_ps(); TOKENS];
        if self.first > 0 {
            for (n, total) in totals.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *total = unsafe { _mm512_loadu_ps(out.add(n * stride)) };
            }
        }
        let mut dots = [Dots::ZERO; 2];
        let groups = self.codes.as_flattened().chunks_exact(group * TILE_ROWS);
        for (i, lines) in groups.enumerate() {
            let col = self.first * GROUP + i * group;
            let operands = Operands {
                activations: self.input.codes[self.token * self.input.cols + col..].as_ptr(),
                stride: self.input.cols,
                lines: lines.as_ptr(),
            };
            let dots = &mut dots[i % 2];
            // SAFETY: every token has all its columns, and `lines` are the group's.
            unsafe {
                unit.product(i % 2, operands, dots);
                self.weigh(dots, col, &mut totals);
            }
        }
        for (n, total) in totals.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(out.add(n * stride), *total) };
        }
    }

    /// Adds a group's products, times their scales.
    ///
    /// # Safety
    /// Lengths must have been checked, and `col` must be a column of theirs.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn weigh(&self, dots: &Dots, col: usize, totals: &mut [__m512; TOKENS]) {
        let Chunk { tile, input, .. } = self;
        // SAFETY: the caller's promise.
        let scales = unsafe { avx512_scales(&tile.scales, col, tile.group) };
        let load_mins = |mins: &_| {
            // SAFETY: the caller's promise.
            unsafe { avx512_scales(mins, col, tile.group) }
        };
        let mins = tile.mins.as_ref().map(load_mins);
        for (n, (dots, total)) in dots.0.iter().zip(totals).enumerate() {
            let at = (self.token + n) * input.cols + col;
            // SAFETY: the caller's promise; a row of dots is a register.
            unsafe {
                let sums = input.sums.as_ptr().add(at / SUM_GROUP);
                let sum = if tile.group == GROUP {
                    *sums + *sums.add(1)
                } else {
                    *sums
                };
                let zeros = _mm512_set1_epi32(tile.zero * sum);
                let signed = _mm512_sub_epi32(_mm512_load_si512(dots.as_ptr().cast()), zeros);
                let scale = _mm512_set1_ps(*input.scales.as_ptr().add(at / GROUP));
                let scale = _mm512_mul_ps(scales, scale);
                *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(signed), scale, *total);
                if let Some(mins) = mins {
                    let sum = _mm512_set1_ps(*input.scaled_sums.as_ptr().add(at / GROUP));
                    *total = _mm512_fmadd_ps(mins, sum, *total);
                }
            }
        }
    }
}
