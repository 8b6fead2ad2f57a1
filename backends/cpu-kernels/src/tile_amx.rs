//! Integer tiles with AMX, sixteen tokens at a time; what is left of them, and formats with groups
//! of half a block, go to [`super::tile_avx512`]. Follows [`super::tile::portable`] step by step.
//!
//! The unit multiplies; vector instructions scale its whole numbers and add them up, which takes
//! longer. Hence codes are stored for the unit less their zero, so that its products are final.

use std::arch::x86_64::*;

use super::amx::{Dots, Multiply, Operands, TOKENS, Unit};
use super::tile::Block;
use super::tile_avx512::{self, load_elements, times_sub_scales, unpack};
use super::{ActivationBlock, GROUP, TILE_ROWS, Tile, TileFormat, TileInput};

/// Blocks of columns that are unpacked together: 11 KiB, which stay in the L1 cache for all
/// tokens, beside 16 KiB of activations.
const CHUNK: usize = 16;

/// A block as the unit reads it: a line of codes in each row of a tile.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Unpacked {
    /// Less their zero, and then signed, if the format has no minimums.
    codes: Block,
    scales: __m512,
    /// Read only if the format has minimums.
    mins: __m512,
}

impl Unpacked {
    #[target_feature(enable = "avx512f")]
    fn zero() -> Self {
        Self {
            codes: [0; GROUP * TILE_ROWS],
            scales: _mm512_setzero_ps(),
            mins: _mm512_setzero_ps(),
        }
    }
}

/// # Safety
/// Needs the target features and [`super::amx::available`], and `out` valid for writes of
/// `TILE_ROWS` values at every `token * stride`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises; no other unit is alive on this thread, as none outlives
    // this call.
    unsafe { tiles(|| Unit::new(), &[*tile], input, out, stride) };
}

/// Two neighbouring tiles.
///
/// # Safety
/// As for [`tile`], with `2 * TILE_ROWS` values.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tile_pair(pair: &[Tile; 2], input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: as in `tile`.
    unsafe { tiles(|| Unit::new(), pair, input, out, stride) };
}

/// # Safety
/// As for [`tile`], with values for all of the tiles.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tiles<const T: usize, M: Multiply>(
    new_unit: impl FnOnce() -> M,
    tiles: &[Tile; T],
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    for tile in tiles {
        input.check(tile);
    }
    let whole = if tiles.iter().all(|tile| tile.form.group == GROUP) {
        input.tokens / TOKENS * TOKENS
    } else {
        0
    };
    // SAFETY: the caller's promises; lengths are checked.
    unsafe {
        if whole > 0 {
            let unit = new_unit();
            let input = TileInput {
                tokens: whole,
                ..*input
            };
            for (t, tile) in tiles.iter().enumerate() {
                let out = out.add(t * TILE_ROWS);
                if tile.form.min.is_some() {
                    whole_tiles::<M, true>(&unit, tile, &input, out, stride);
                } else {
                    whole_tiles::<M, false>(&unit, tile, &input, out, stride);
                }
            }
        }
        if whole < input.tokens {
            let out = out.add(whole * stride);
            tile_avx512::tiles(tiles, &input.after(whole), out, stride);
        }
    }
}

/// # Safety
/// As for [`tile`]. Lengths must have been checked, and `input.tokens` be a multiple of
/// [`TOKENS`]. Formats with `MINS` have minimums.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn whole_tiles<M: Multiply, const MINS: bool>(
    unit: &M,
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    let mut stream = Stream::new(tile);
    let mut unpacked = [Unpacked::zero(); CHUNK];
    let blocks = input.cols / GROUP;
    for first in (0..blocks).step_by(CHUNK) {
        let unpacked = &mut unpacked[..CHUNK.min(blocks - first)];
        for block in unpacked.iter_mut() {
            // SAFETY: the tile has all its blocks.
            unsafe { stream.next(block) };
        }
        for token in (0..input.tokens).step_by(TOKENS) {
            let chunk = Chunk {
                input,
                blocks: unpacked,
                first,
                token,
            };
            // SAFETY: the caller vouches for `out` at all these tokens.
            unsafe { chunk.run::<M, MINS>(unit, out.add(token * stride), stride) };
        }
    }
}

/// A tile's blocks, one after the other.
struct Stream<'a> {
    form: &'a TileFormat,
    at: *const u8,
    left_in_run: usize,
    /// The run's, of scales and of minimums.
    elements: [__m512; 2],
}

impl<'a> Stream<'a> {
    #[target_feature(enable = "avx512f")]
    fn new(tile: &'a Tile) -> Self {
        Self {
            form: &tile.form,
            at: tile.bytes.as_ptr(),
            left_in_run: 0,
            elements: [_mm512_setzero_ps(); 2],
        }
    }

    /// # Safety
    /// There must be another block, and the tile must have its format's length.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn next(&mut self, out: &mut Unpacked) {
        let form = self.form;
        let (lines, planes) = form.codes.block_bytes();
        let sub_scale_bytes = form.sub_scale_bytes();
        let zeros = _mm512_set1_epi8(form.zero() as u8 as i8);
        // SAFETY: the caller's promises; `out` has a line for every quad.
        unsafe {
            if self.left_in_run == 0 {
                self.begin_run();
            }
            self.left_in_run -= 1;
            for (c, quad) in unpack(form.codes, self.at).into_iter().enumerate() {
                let quad = _mm512_sub_epi8(quad, zeros);
                _mm512_store_si512(out.codes.as_mut_ptr().cast::<__m512i>().add(c), quad);
            }
            self.at = self.at.add(lines + planes);
            // Beyond the tile's end if there are no sub-scales, and then not read.
            out.scales = times_sub_scales(self.elements[0], form.sub_scales, self.at);
            self.at = self.at.add(sub_scale_bytes);
            if form.min.is_some() {
                out.mins = times_sub_scales(self.elements[1], form.sub_scales, self.at);
                self.at = self.at.add(sub_scale_bytes);
            }
        }
    }

    /// # Safety
    /// A run must begin at the stream's position.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn begin_run(&mut self) {
        let form = self.form;
        let (scale_bytes, min_bytes) = form.element_bytes();
        // SAFETY: the caller's promise.
        unsafe {
            self.elements[0] = load_elements(form.scale, self.at);
            if let Some(min) = form.min {
                self.elements[1] = load_elements(min, self.at.add(scale_bytes));
            }
            self.at = self.at.add(scale_bytes + min_bytes);
        }
        self.left_in_run = form.run;
    }
}

/// Some blocks of columns, for [`TOKENS`] tokens.
struct Chunk<'a> {
    input: &'a TileInput<'a>,
    blocks: &'a [Unpacked],
    /// The first block.
    first: usize,
    /// The first token.
    token: usize,
}

impl Chunk<'_> {
    /// Goes on from the totals in `out`, unless these are the first columns.
    ///
    /// # Safety
    /// `out` must be valid for reads and writes of `TILE_ROWS` values at every `n * stride`, and
    /// lengths must have been checked.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn run<M: Multiply, const MINS: bool>(&self, unit: &M, out: *mut f32, stride: usize) {
        let mut totals = [_mm512_setzero_ps(); TOKENS];
        if self.first > 0 {
            for (n, total) in totals.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *total = unsafe { _mm512_loadu_ps(out.add(n * stride)) };
            }
        }
        // A block is scaled while the next one is multiplied.
        let mut dots = [Dots::ZERO; 2];
        let [mut current, mut next] = dots.each_mut();
        let mut parity = 0;
        // SAFETY: the caller's promises.
        unsafe {
            self.multiply::<M, MINS>(unit, (0, parity), current);
            for block in 0..self.blocks.len() {
                parity ^= 1;
                if block + 1 < self.blocks.len() {
                    self.multiply::<M, MINS>(unit, (block + 1, parity), next);
                }
                self.scale::<MINS>(block, current, &mut totals);
                (current, next) = (next, current);
            }
        }
        for (n, total) in totals.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(out.add(n * stride), *total) };
        }
    }

    /// # Safety
    /// Lengths must have been checked, and the block must exist.
    #[inline(always)]
    unsafe fn multiply<M: Multiply, const MINS: bool>(
        &self,
        unit: &M,
        (block, parity): (usize, usize),
        dots: &mut Dots,
    ) {
        // SAFETY: every token has all its blocks, which begin with their codes. Codes are signed
        // without minimums.
        unsafe {
            let operands = Operands {
                activations: self.input.block(self.token, self.first + block).cast(),
                stride: size_of::<ActivationBlock>(),
                lines: self.blocks[block].codes.as_ptr(),
            };
            if MINS {
                unit.product::<false>(parity, operands, dots);
            } else {
                unit.product::<true>(parity, operands, dots);
            }
        }
    }

    /// Adds the products of a block times their scales.
    ///
    /// # Safety
    /// As for [`Self::multiply`]; needs the target features.
    #[inline(always)]
    unsafe fn scale<const MINS: bool>(
        &self,
        block: usize,
        dots: &Dots,
        totals: &mut [__m512; TOKENS],
    ) {
        let weights = &self.blocks[block];
        // SAFETY: the caller's promises. A row of dots is a register.
        unsafe {
            let activations = self.input.block(self.token, self.first + block);
            for (n, total) in totals.iter_mut().enumerate() {
                let x = &*activations.add(n);
                let dots = _mm512_load_si512(dots.0[n].as_ptr().cast());
                let scale = _mm512_mul_ps(weights.scales, _mm512_set1_ps(x.scale));
                *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, *total);
                if MINS {
                    let sum = _mm512_set1_ps(x.scaled_sum);
                    *total = _mm512_fmadd_ps(weights.mins, sum, *total);
                }
            }
        }
    }
}
