//! The walk over a tile with registers of eight rows, sixteen of them in all: AVX2 and AVX-VNNI.
//! Follows [`super::tile::portable`] step by step.
//!
//! One or two tokens multiply codes as they are unpacked. For more, the codes, scales and minimums
//! of a panel of blocks are unpacked once into a buffer that stays in the first-level cache. Two
//! registers of codes and up to [`MAX_TOKENS`] tokens are multiplied together, so that each
//! register of codes serves every token and each activation both registers.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::tile::{ActivationBlock, LINE, TileFormat};
use super::tile_avx2::{self, Unpack};
use super::tile_walk::opaque;
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Rows in a register.
pub const ROWS: usize = TILE_ROWS / 2;
/// Bytes of a register.
pub const REGISTER: usize = 32;
/// Quads in a block and in a [`SUM_GROUP`].
pub const BLOCK_QUADS: usize = GROUP / 4;
pub const HALF_QUADS: usize = SUM_GROUP / 4;
/// Tokens multiplied together: two registers of sums for each, and the operands fit into sixteen.
const MAX_TOKENS: usize = 4;
/// Half of the first-level cache of most processors.
const PANEL_BYTES: usize = 16 << 10;
const MAX_PANEL_BLOCKS: usize = PANEL_BYTES / (BLOCK_QUADS * LINE);

/// How an instruction set multiplies codes of one kind.
///
/// # Safety
/// Every method needs the target features of the instruction set.
pub trait Products {
    /// Registers that a quad of eight rows takes: one, or two if its codes are split.
    const PARTS: usize;
    /// Quads whose products can be summed at once: [`BLOCK_QUADS`] or [`HALF_QUADS`].
    const QUADS: usize;

    /// What the products of `GROUPS` [`SUM_GROUP`]s start from, whose pair sums must be at `pairs`.
    /// `MINS`: the format has minimums, so no zero is subtracted from its codes.
    unsafe fn start<const GROUPS: usize, const MINS: bool>(pairs: *const [i16; 2]) -> __m256i;

    /// The part of a quad's codes.
    unsafe fn part(codes: __m256i, part: usize) -> __m256i;

    /// The two sums that are computed together, before any product is added.
    unsafe fn begin<const MINS: bool>(start: __m256i) -> [__m256i; 2];

    /// `sum` and the products of a quad.
    unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i;

    /// The whole sums: of both slices, or in the first place of the one whose parts these are.
    unsafe fn finish<const MINS: bool>(sums: [__m256i; 2], start: __m256i) -> [__m256i; 2];
}

/// Where a kernel finds the codes of a block: unpacked in a panel, or in the tile.
trait CodeSource {
    /// Whether quads are better multiplied one after the other than all at once.
    const IN_ORDER: bool;

    /// The `index`-th of the two registers of quad `quad` that are multiplied together: of both
    /// slices, or of both parts of slice `slice`.
    ///
    /// # Safety
    /// Needs the target features, and a whole block.
    unsafe fn register(&self, slice: usize, quad: usize, index: usize) -> __m256i;
}

struct Unpacked<P> {
    at: *const u8,
    products: PhantomData<P>,
}

impl<P: Products> CodeSource for Unpacked<P> {
    const IN_ORDER: bool = true;

    #[inline(always)]
    unsafe fn register(&self, slice: usize, quad: usize, index: usize) -> __m256i {
        // SAFETY: the caller's promises; a block has a pair of registers for each quad, twice if
        // its codes have two parts.
        unsafe {
            let pair = slice * BLOCK_QUADS + quad;
            _mm256_load_si256(self.at.add((pair * 2 + index) * REGISTER).cast())
        }
    }
}

struct InTile<U, P> {
    at: *const u8,
    kinds: PhantomData<(U, P)>,
}

impl<U: Unpack, P: Products> CodeSource for InTile<U, P> {
    /// What to do with codes depends on the quad.
    const IN_ORDER: bool = false;

    #[inline(always)]
    unsafe fn register(&self, slice: usize, quad: usize, index: usize) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            if P::PARTS == 1 {
                P::part(U::quad(self.at, quad, index), 0)
            } else {
                P::part(U::quad(self.at, quad, slice), index)
            }
        }
    }
}

/// # Safety
/// Needs the target features of `P`, whose products must be exact for `U`'s codes, which must be
/// the tile's; `out` must be valid for writes of `TILE_ROWS` values at every `token * stride`.
#[inline(always)]
pub unsafe fn tile<U: Unpack, P: Products>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    input.check(tile);
    // SAFETY: `check` has matched every length; the caller vouches for the rest.
    unsafe {
        match (tile.form.group, tile.form.min.is_some()) {
            (GROUP, true) => shaped::<U, P, false, true>(tile, input, out, stride),
            (GROUP, false) => shaped::<U, P, false, false>(tile, input, out, stride),
            _ => shaped::<U, P, true, false>(tile, input, out, stride),
        }
    }
}

/// `SPLIT`: each half of a block has its own scale.
///
/// # Safety
/// As for [`tile`], once lengths have been checked.
#[inline(always)]
unsafe fn shaped<U: Unpack, P: Products, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promises.
    unsafe {
        match input.tokens {
            0 => {}
            1 => few_tokens::<1, U, P, SPLIT, MINS>(tile, input, out, stride),
            2 => few_tokens::<2, U, P, SPLIT, MINS>(tile, input, out, stride),
            _ => panels::<U, P, SPLIT, MINS>(tile, input, out, stride),
        }
    }
}

/// Multiplies codes as they are unpacked.
///
/// # Safety
/// As for [`shaped`]; there must be `N` tokens.
#[inline(always)]
unsafe fn few_tokens<const N: usize, U, P, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) where
    U: Unpack,
    P: Products,
{
    let mut reader = FactorReader::new(tile);
    // SAFETY: the reader walks over the tile, whose length was checked.
    unsafe {
        let mut totals = [[_mm256_setzero_ps(); 2]; N];
        for block in 0..input.cols / GROUP {
            let (at, factors) = reader.next::<SPLIT, MINS>();
            tile_avx2::prefetch_ahead(at, reader.at);
            let codes = InTile::<U, P> {
                at,
                kinds: PhantomData,
            };
            add_block::<N, P, _, SPLIT, MINS>(input, (0, block), &codes, &factors, &mut totals);
        }
        store(&totals, out, stride);
    }
}

/// The scales and minimums of a block, for each slice.
#[derive(Clone, Copy)]
struct Factors {
    /// Of each half of the block; the second is not used if they share it.
    scales: [[__m256; 2]; 2],
    mins: [__m256; 2],
}

/// Reads a tile's scales and minimums, block by block.
struct FactorReader<'a> {
    form: &'a TileFormat,
    /// Where the next run or block begins.
    at: *const u8,
    left_in_run: usize,
    /// The elements of the current run's scales and minimums, for each slice.
    elements: [[__m256; 2]; 2],
}

impl<'a> FactorReader<'a> {
    #[inline(always)]
    fn new(tile: &'a Tile) -> Self {
        Self {
            form: &tile.form,
            at: tile.bytes.as_ptr(),
            left_in_run: 0,
            // SAFETY: zero bytes are numbers.
            elements: unsafe { MaybeUninit::zeroed().assume_init() },
        }
    }

    /// Where the next block's codes are, and its factors.
    ///
    /// # Safety
    /// Needs the target features, and one more block in the tile.
    #[inline(always)]
    unsafe fn next<const SPLIT: bool, const MINS: bool>(&mut self) -> (*const u8, Factors) {
        let form = self.form;
        let (lines, planes) = form.codes.block_bytes();
        let sub_scale_bytes = form.sub_scale_bytes();
        // SAFETY: the caller's promises: a run begins with its elements, a block has its codes and
        // then its sub-scales, which are not read if the format has none.
        unsafe {
            if self.left_in_run == 0 {
                self.left_in_run = form.run;
                let (scale_bytes, min_bytes) = form.element_bytes();
                for slice in 0..2 {
                    let scales = tile_avx2::load_elements(form.scale, self.at, slice);
                    let mins = match form.min {
                        Some(min) if MINS => {
                            tile_avx2::load_elements(min, self.at.add(scale_bytes), slice)
                        }
                        _ => scales,
                    };
                    self.elements[slice] = [scales, mins];
                }
                self.at = self.at.add(scale_bytes + min_bytes);
            }
            self.left_in_run -= 1;
            let codes = self.at;
            let sub_scales = codes.add(lines + planes);
            let mut factors = Factors {
                scales: [[_mm256_setzero_ps(); 2]; 2],
                mins: [_mm256_setzero_ps(); 2],
            };
            for slice in 0..2 {
                let [scales, mins] = self.elements[slice];
                let at = sub_scales.wrapping_add(slice * ROWS);
                let later = at.wrapping_add(TILE_ROWS);
                let kind = form.sub_scales;
                factors.scales[0][slice] = tile_avx2::times_sub_scales(scales, kind, at);
                if SPLIT {
                    factors.scales[1][slice] = tile_avx2::times_sub_scales(scales, kind, later);
                }
                if MINS {
                    factors.mins[slice] = tile_avx2::times_sub_scales(mins, kind, later);
                }
            }
            self.at = sub_scales.add(sub_scale_bytes * if MINS { 2 } else { 1 });
            (codes, factors)
        }
    }
}

/// Unpacked blocks.
#[repr(align(64))]
struct Panel {
    codes: [MaybeUninit<u8>; PANEL_BYTES],
    factors: [MaybeUninit<Factors>; MAX_PANEL_BLOCKS],
}

/// Memory to request while a panel is multiplied.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const u8,
    /// For each block of the panel; 0 if it was requested before.
    bytes: usize,
}

/// # Safety
/// As for [`shaped`].
#[inline(always)]
unsafe fn panels<U: Unpack, P: Products, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    let mut panel = Panel {
        codes: [const { MaybeUninit::uninit() }; PANEL_BYTES],
        factors: [const { MaybeUninit::uninit() }; MAX_PANEL_BLOCKS],
    };
    let mut reader = FactorReader::new(tile);
    let blocks = input.cols / GROUP;
    let panel_blocks = MAX_PANEL_BLOCKS / P::PARTS;
    let block_bytes = tile.bytes.len() / blocks.max(1);
    let mut first = 0;
    while first < blocks {
        let count = panel_blocks.min(blocks - first);
        // SAFETY: the tile has these blocks, and the panel has room for them; all tokens have
        // columns for them and sixteen writable values.
        unsafe {
            unpack_panel::<U, P, SPLIT, MINS>(&mut reader, &mut panel, count);
            let blocks = first..first + count;
            let mut token = 0;
            // The first tokens request the next panel, which arrives while they are multiplied.
            let mut ahead = Ahead {
                at: reader.at,
                bytes: block_bytes,
            };
            while token + 4 <= input.tokens {
                tokens::<4, P, SPLIT, MINS>(&panel, input, (token, &blocks), ahead, out, stride);
                ahead.bytes = 0;
                token += 4;
            }
            while token + 2 <= input.tokens {
                tokens::<2, P, SPLIT, MINS>(&panel, input, (token, &blocks), ahead, out, stride);
                ahead.bytes = 0;
                token += 2;
            }
            if token < input.tokens {
                tokens::<1, P, SPLIT, MINS>(&panel, input, (token, &blocks), ahead, out, stride);
            }
        }
        first += count;
    }
}

/// # Safety
/// Needs the target features, and `count` more blocks in the tile.
#[inline(always)]
unsafe fn unpack_panel<U: Unpack, P: Products, const SPLIT: bool, const MINS: bool>(
    reader: &mut FactorReader,
    panel: &mut Panel,
    count: usize,
) {
    let mut to = panel.codes.as_mut_ptr().cast::<u8>();
    for factors in &mut panel.factors[..count] {
        // SAFETY: the caller's promise; a panel's blocks fit into its codes.
        unsafe {
            let (at, read) = reader.next::<SPLIT, MINS>();
            factors.write(read);
            let codes = InTile::<U, P> {
                at,
                kinds: PhantomData,
            };
            for slice in 0..P::PARTS {
                for quad in 0..BLOCK_QUADS {
                    for index in 0..2 {
                        _mm256_store_si256(to.cast(), codes.register(slice, quad, index));
                        to = to.add(REGISTER);
                    }
                }
            }
        }
    }
}

/// Adds a panel's products to the totals of `N` tokens, which are in `out` between panels.
///
/// # Safety
/// As for [`shaped`]; the panel must hold `blocks`, and the tokens must exist.
#[inline(always)]
unsafe fn tokens<const N: usize, P: Products, const SPLIT: bool, const MINS: bool>(
    panel: &Panel,
    input: &TileInput,
    (token, blocks): (usize, &Range<usize>),
    mut ahead: Ahead,
    out: *mut f32,
    stride: usize,
) {
    const { assert!(N <= MAX_TOKENS) };
    // SAFETY: the caller's promises.
    unsafe {
        let mut totals = [[_mm256_setzero_ps(); 2]; N];
        let out = out.add(token * stride);
        if blocks.start > 0 {
            for (n, totals) in totals.iter_mut().enumerate() {
                for (slice, total) in totals.iter_mut().enumerate() {
                    *total = _mm256_loadu_ps(out.add(n * stride + slice * ROWS));
                }
            }
        }
        let mut at = panel.codes.as_ptr().cast::<u8>();
        for (block, factors) in blocks.clone().zip(&panel.factors) {
            let codes = Unpacked::<P> {
                at,
                products: PhantomData,
            };
            let factors = factors.assume_init_ref();
            add_block::<N, P, _, SPLIT, MINS>(input, (token, block), &codes, factors, &mut totals);
            at = at.add(P::PARTS * BLOCK_QUADS * LINE);
            let requested = ahead.at.wrapping_add(ahead.bytes);
            tile_avx2::prefetch(ahead.at, requested);
            ahead.at = requested;
        }
        store(&totals, out, stride);
    }
}

/// # Safety
/// Needs the target features; `out` must be valid for writes of `TILE_ROWS` values at every
/// `stride`.
#[inline(always)]
unsafe fn store<const N: usize>(totals: &[[__m256; 2]; N], out: *mut f32, stride: usize) {
    for (n, totals) in totals.iter().enumerate() {
        for (slice, total) in totals.iter().enumerate() {
            // SAFETY: the caller's promises.
            unsafe { _mm256_storeu_ps(out.add(n * stride + slice * ROWS), *total) };
        }
    }
}

/// Adds one block's products to the totals of `N` tokens.
///
/// # Safety
/// Needs the target features; the block must be `codes`', and the tokens must have columns for it.
#[inline(always)]
unsafe fn add_block<const N: usize, P, C, const SPLIT: bool, const MINS: bool>(
    input: &TileInput,
    (token, block): (usize, usize),
    codes: &C,
    factors: &Factors,
    totals: &mut [[__m256; 2]; N],
) where
    P: Products,
    C: CodeSource,
{
    // SAFETY: the caller's promise.
    let x = unsafe { input.block(token, block) };
    let slices = 2 / P::PARTS;
    // All of the block at once, or one half after the other.
    let halves = if SPLIT || P::QUADS == HALF_QUADS {
        2
    } else {
        1
    };
    // SAFETY: the caller's promises.
    unsafe {
        for parts_of in 0..P::PARTS {
            let mut whole = [[_mm256_setzero_si256(); 2]; N];
            for half in 0..halves {
                let columns = Columns { x, parts_of };
                let dots = if halves == 1 {
                    dots::<N, BLOCK_QUADS, P, C, MINS>(codes, columns, 0)
                } else {
                    dots::<N, HALF_QUADS, P, C, MINS>(codes, columns, half * HALF_QUADS)
                };
                for n in 0..N {
                    let scale = (*x.add(n)).scale;
                    for i in 0..slices {
                        let slice = if P::PARTS == 1 { i } else { parts_of };
                        if SPLIT {
                            let scales = factors.scales[half][slice];
                            totals[n][slice] =
                                add_dots(totals[n][slice], dots[n][i], scales, scale);
                        } else if half == 0 {
                            whole[n][i] = dots[n][i];
                        } else {
                            whole[n][i] = _mm256_add_epi32(whole[n][i], dots[n][i]);
                        }
                    }
                }
            }
            if SPLIT {
                continue;
            }
            for n in 0..N {
                let scale = (*x.add(n)).scale;
                for (i, dots) in whole[n].iter().enumerate().take(slices) {
                    let slice = if P::PARTS == 1 { i } else { parts_of };
                    let mut total = totals[n][slice];
                    total = add_dots(total, *dots, factors.scales[0][slice], scale);
                    if MINS {
                        let sum = (*x.add(n)).scaled_sum;
                        total = _mm256_fmadd_ps(factors.mins[slice], _mm256_set1_ps(sum), total);
                    }
                    totals[n][slice] = total;
                }
            }
        }
    }
}

/// What a block is multiplied by.
#[derive(Clone, Copy)]
struct Columns {
    /// The first token's block; those of the others follow.
    x: *const ActivationBlock,
    /// The slice whose parts are multiplied, if codes have two parts.
    parts_of: usize,
}

/// The sums of `QUADS` quads' products with `N` tokens: for both slices, or for one slice in the
/// first place if its codes are two parts.
///
/// # Safety
/// As for [`add_block`].
#[inline(always)]
unsafe fn dots<const N: usize, const QUADS: usize, P, C, const MINS: bool>(
    codes: &C,
    columns: Columns,
    from: usize,
) -> [[__m256i; 2]; N]
where
    P: Products,
    C: CodeSource,
{
    let Columns { x, parts_of } = columns;
    // SAFETY: the caller's promises.
    unsafe {
        let mut starts = [_mm256_setzero_si256(); N];
        let mut sums = [[_mm256_setzero_si256(); 2]; N];
        for n in 0..N {
            let pairs = (*x.add(n)).pair_sums.as_ptr();
            starts[n] = if QUADS == BLOCK_QUADS {
                P::start::<2, MINS>(pairs)
            } else {
                P::start::<1, MINS>(pairs.add(from / HALF_QUADS))
            };
            sums[n] = P::begin::<MINS>(starts[n]);
        }
        // An opaque end keeps the compiler from unrolling the loop over all quads, and then from
        // keeping codes, of which there are more than registers, instead of sums.
        let end = if C::IN_ORDER {
            opaque(from + QUADS)
        } else {
            from + QUADS
        };
        for quad in from..end {
            let a = codes.register(parts_of, quad, 0);
            let b = codes.register(parts_of, quad, 1);
            for (n, sums) in sums.iter_mut().enumerate() {
                let four = tile_avx2::broadcast((*x.add(n)).codes.as_ptr(), quad);
                *sums = [P::add(sums[0], a, four), P::add(sums[1], b, four)];
            }
        }
        for n in 0..N {
            sums[n] = P::finish::<MINS>(sums[n], starts[n]);
        }
        sums
    }
}

/// `total + dots * (scales * scale)`, the sum fused.
///
/// # Safety
/// Needs the target features.
#[inline(always)]
unsafe fn add_dots(total: __m256, dots: __m256i, scales: __m256, scale: f32) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let scales = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scales, total)
    }
}
