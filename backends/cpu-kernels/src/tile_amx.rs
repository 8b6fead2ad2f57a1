//! Integer tiles with AMX, sixteen tokens at a time; fewer, and what is left of many, go to
//! [`super::tile_avx512`]. Follows [`super::tile::portable`] step by step.

use std::arch::x86_64::*;

use super::amx::{Dots, Multiply, Operands, TOKENS, Unit};
use super::tile::Block;
use super::tile_avx512::{self, load_elements, times_sub_scales, unpack};
use super::{ActivationBlock, GROUP, TILE_ROWS, Tile, TileFormat, TileInput};

/// Blocks of columns that are unpacked together: 22 KiB, which stay in the L1 or L2 cache for
/// all tokens.
const CHUNK: usize = 32;

/// A block as the unit reads it: a line of codes in each row of a tile.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Unpacked {
    codes: Block,
    /// Of each half; only the first is used if the block is one group.
    scales: [__m512; 2],
    /// Read only if the format has minimums.
    mins: __m512,
}

impl Unpacked {
    #[target_feature(enable = "avx512f")]
    fn zero() -> Self {
        Self {
            codes: [0; GROUP * TILE_ROWS],
            scales: [_mm512_setzero_ps(); 2],
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
    let unit = || unsafe { Unit::new(tile.form.group) };
    // SAFETY: the caller's promises.
    unsafe { all_tokens(unit, tile, input, out, stride) };
}

/// # Safety
/// As for [`tile`]; `unit` must multiply groups of the format's size.
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
            tile_avx512::tile(tile, &input.after(whole), out, stride);
        }
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
    let mut stream = Stream::new(tile);
    let mut unpacked = [Unpacked::zero(); CHUNK];
    let blocks = input.cols / GROUP;
    for first in (0..blocks).step_by(CHUNK) {
        let unpacked = &mut unpacked[..CHUNK.min(blocks - first)];
        for block in unpacked.iter_mut() {
            // SAFETY: `check` has given the tile all its blocks.
            unsafe { stream.next(block) };
        }
        for token in (0..input.tokens / TOKENS * TOKENS).step_by(TOKENS) {
            let chunk = Chunk {
                form: &tile.form,
                input,
                blocks: unpacked,
                first,
                token,
            };
            // SAFETY: the caller vouches for `out` at all these tokens.
            unsafe { chunk.run(unit, out.add(token * stride), stride) };
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
        // SAFETY: the caller's promises; `out` has a line for every quad.
        unsafe {
            if self.left_in_run == 0 {
                self.begin_run();
            }
            self.left_in_run -= 1;
            for (c, quad) in unpack(form.codes, self.at).into_iter().enumerate() {
                _mm512_store_si512(out.codes.as_mut_ptr().cast::<__m512i>().add(c), quad);
            }
            self.at = self.at.add(lines + planes);
            for (half, scales) in out.scales[..GROUP / form.group].iter_mut().enumerate() {
                // Beyond the tile's end if there are no sub-scales, and then not read.
                let sub_scales = self.at.wrapping_add(half * TILE_ROWS);
                *scales = times_sub_scales(self.elements[0], form.sub_scales, sub_scales);
            }
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
    form: &'a TileFormat,
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
    /// `out` must be valid for reads and writes of `TILE_ROWS` values at every `n * stride`;
    /// `unit` must multiply groups of the form's size, and lengths must have been checked.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn run<M: Multiply>(&self, unit: &M, out: *mut f32, stride: usize) {
        let group = self.form.group;
        let mut totals = [_mm512_setzero_ps(); TOKENS];
        if self.first > 0 {
            for (n, total) in totals.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                *total = unsafe { _mm512_loadu_ps(out.add(n * stride)) };
            }
        }
        let mut dots = [Dots::ZERO; 2];
        let mut parity = 0;
        for (i, block) in self.blocks.iter().enumerate() {
            for (half, lines) in block.codes.chunks_exact(group * TILE_ROWS).enumerate() {
                // SAFETY: every token has all its blocks, which begin with their codes.
                let codes = unsafe { self.input.block(self.token, self.first + i) }.cast::<i8>();
                let operands = Operands {
                    activations: codes.wrapping_add(half * group),
                    stride: size_of::<ActivationBlock>(),
                    lines: lines.as_ptr(),
                };
                let dots = &mut dots[parity];
                // SAFETY: every token has all its columns, and `lines` are the group's.
                unsafe {
                    unit.product(parity, operands, dots);
                    self.weigh(dots, (block, half), self.first + i, &mut totals);
                }
                parity ^= 1;
            }
        }
        for (n, total) in totals.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(out.add(n * stride), *total) };
        }
    }

    /// Adds the products of a group, the `half` of block `index`, times their scales.
    ///
    /// # Safety
    /// Lengths must have been checked, and the block must exist.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn weigh(
        &self,
        dots: &Dots,
        (block, half): (&Unpacked, usize),
        index: usize,
        totals: &mut [__m512; TOKENS],
    ) {
        let Chunk { form, input, .. } = self;
        for (n, (dots, total)) in dots.0.iter().zip(totals).enumerate() {
            // SAFETY: the caller's promise; a row of dots is a register.
            unsafe {
                let x = &*input.block(self.token + n, index);
                let negated = if form.group == GROUP {
                    x.negated_sum
                } else {
                    x.negated_sums[half]
                };
                let zeros = _mm512_set1_epi32(form.zero() * negated);
                let signed = _mm512_add_epi32(_mm512_load_si512(dots.as_ptr().cast()), zeros);
                let scale = _mm512_set1_ps(x.scale);
                let scale = _mm512_mul_ps(block.scales[half], scale);
                *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(signed), scale, *total);
                if form.min.is_some() {
                    let sum = _mm512_set1_ps(x.scaled_sum);
                    *total = _mm512_fmadd_ps(block.mins, sum, *total);
                }
            }
        }
    }
}
