//! The walk over a tile that AVX-512 and NEON share, with room for all codes of a block in
//! registers. Follows [`super::tile::portable`] step by step.
//!
//! A register holds one value for each row of a slice of the tile. An instruction set implements
//! [`Registers`], an [`Unpack`] for each kind of codes and one or more [`Products`]; everything is
//! inlined into a function that enables its target features.

use std::arch::asm;
use std::ops::Range;

use super::tile::{Codes, Element, SubScales, TileFormat};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Quads in a [`SUM_GROUP`], the columns that are multiplied together.
pub const QUADS: usize = SUM_GROUP / 4;
const MAX_SLICES: usize = 4;
/// Tokens for which a block is unpacked once.
const MAX_TOKENS: usize = 16;

/// [`Codes`] as a constant, so that the inner loop has no branch.
pub struct Kind<const CODES: u8>;
pub const FOUR: u8 = Codes::Four as u8;
pub const FP4: u8 = Codes::Fp4 as u8;
pub const FIVE: u8 = Codes::Five as u8;
pub const SIX: u8 = Codes::Six as u8;
pub const EIGHT: u8 = Codes::Eight as u8;

/// The code for 0 of each kind, in the order of [`Codes`].
pub const ZEROS: [i32; 5] = [
    Codes::Four.zero(),
    Codes::Fp4.zero(),
    Codes::Five.zero(),
    Codes::Six.zero(),
    Codes::Eight.zero(),
];

/// What is known of [`Codes`] at compile time.
pub trait CodeKind {
    /// [`Codes::zero`].
    const ZERO: i32;
}

impl<const CODES: u8> CodeKind for Kind<CODES> {
    const ZERO: i32 = ZEROS[CODES as usize];
}

/// An instruction set's registers.
///
/// # Safety
/// Every method needs the instruction set's target features.
pub trait Registers {
    /// Registers for the rows of a tile.
    const SLICES: usize;
    type Floats: Copy;
    type Integers: Copy;
    /// The codes of four columns.
    type Quad;

    unsafe fn zero() -> Self::Floats;

    /// Requests the memory ahead of these bytes, if that was found to help.
    unsafe fn prefetch(_at: *const u8, _bytes: usize) {}

    /// `zero`, which is known at compile time, times the number at `negated_sum`, for all rows.
    unsafe fn start(zero: i32, negated_sum: *const i32) -> Self::Integers;

    unsafe fn add(a: Self::Integers, b: Self::Integers) -> Self::Integers;

    /// A slice of the sixteen rows' elements, which must be at `at`.
    unsafe fn load_elements(element: Element, at: *const u8, slice: usize) -> Self::Floats;

    /// The sub-scales of a slice must be at `at`, if there are any.
    unsafe fn times_sub_scales(
        elements: Self::Floats,
        sub_scales: SubScales,
        at: *const u8,
    ) -> Self::Floats;

    /// `total + dots * (scales * scale)`, the sum fused.
    unsafe fn add_dots(
        total: Self::Floats,
        dots: Self::Integers,
        scales: Self::Floats,
        scale: f32,
    ) -> Self::Floats;

    /// `total + mins * sum`, fused.
    unsafe fn add_mins(total: Self::Floats, mins: Self::Floats, sum: f32) -> Self::Floats;

    /// `out` must be valid for writes of a slice.
    unsafe fn store(out: *mut f32, total: Self::Floats);
}

/// Reads one kind of [`Codes`].
pub trait Unpack<R: Registers>: CodeKind {
    /// What unpacked codes are less than the stored ones.
    const OFFSET: i32 = 0;

    /// The codes of a slice of a block, for each of its [`SUM_GROUP`]s.
    ///
    /// # Safety
    /// Needs the target features; a whole block's lines and planes must be at `at`, with codes of
    /// this kind.
    unsafe fn unpack(at: *const u8, slice: usize) -> [[R::Quad; QUADS]; 2];
}

/// Multiplies codes by activations.
pub trait Products<R: Registers> {
    /// `start` plus the products of a [`SUM_GROUP`].
    ///
    /// # Safety
    /// Needs the target features; a [`SUM_GROUP`] of activations must be at `x`.
    unsafe fn dots(codes: &[R::Quad; QUADS], x: *const i8, start: R::Integers) -> R::Integers;
}

/// # Safety
/// Needs the target features that `P` needs, and `out` valid for writes of `TILE_ROWS` values at
/// every `token * stride`.
#[inline(always)]
pub unsafe fn tile<R: Registers, P: Products<R>>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) where
    Kind<FOUR>: Unpack<R>,
    Kind<FP4>: Unpack<R>,
    Kind<FIVE>: Unpack<R>,
    Kind<SIX>: Unpack<R>,
    Kind<EIGHT>: Unpack<R>,
{
    // SAFETY: the caller's promises.
    unsafe {
        match tile.form.codes {
            Codes::Four => all_tokens::<R, Kind<FOUR>, P>(tile, input, out, stride),
            Codes::Fp4 => all_tokens::<R, Kind<FP4>, P>(tile, input, out, stride),
            Codes::Five => all_tokens::<R, Kind<FIVE>, P>(tile, input, out, stride),
            Codes::Six => all_tokens::<R, Kind<SIX>, P>(tile, input, out, stride),
            Codes::Eight => all_tokens::<R, Kind<EIGHT>, P>(tile, input, out, stride),
        }
    }
}

/// # Safety
/// As for [`tile`]; the tile's codes must be `U`'s, and `P` must multiply them exactly.
#[inline(always)]
pub unsafe fn all_tokens<R: Registers, U: Unpack<R>, P: Products<R>>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    input.check(tile);
    // SAFETY: `check` has matched every length; the caller vouches for the rest.
    unsafe {
        match (tile.form.group, tile.form.min.is_some()) {
            (GROUP, true) => shaped::<R, U, P, false, true>(tile, input, out, stride),
            (GROUP, false) => shaped::<R, U, P, false, false>(tile, input, out, stride),
            _ => shaped::<R, U, P, true, false>(tile, input, out, stride),
        }
    }
}

/// `SPLIT`: each half of a block has its own scale.
///
/// # Safety
/// As for [`all_tokens`], once lengths have been checked.
#[inline(always)]
unsafe fn shaped<R, U, P, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) where
    R: Registers,
    U: Unpack<R>,
    P: Products<R>,
{
    // SAFETY: the caller's promises.
    unsafe {
        match input.tokens {
            0 => {}
            1 => tokens::<1, R, U, P, SPLIT, MINS>(tile, input, 0..1, out, stride),
            2 => tokens::<2, R, U, P, SPLIT, MINS>(tile, input, 0..2, out, stride),
            count => {
                let mut first = 0;
                // With minimums, which are one more load for each product, totals of eight tokens
                // in registers are faster (ADR 0019).
                while MINS && R::SLICES == 1 && first + 8 <= count {
                    tokens::<8, R, U, P, SPLIT, MINS>(tile, input, first..first + 8, out, stride);
                    first += 8;
                }
                while first < count {
                    let range = first..count.min(first + MAX_TOKENS);
                    first = range.end;
                    tokens::<MAX_TOKENS, R, U, P, SPLIT, MINS>(tile, input, range, out, stride);
                }
            }
        }
    }
}

/// The totals of up to `N` tokens: each weight is unpacked once for all.
///
/// # Safety
/// As for [`all_tokens`], once lengths have been checked; the tokens must exist.
#[inline(always)]
unsafe fn tokens<const N: usize, R, U, P, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    range: Range<usize>,
    out: *mut f32,
    stride: usize,
) where
    R: Registers,
    U: Unpack<R>,
    P: Products<R>,
{
    // Few tokens' totals stay in registers. Those of more are loaded and stored for each block, in
    // a loop that the compiler must not unroll: the processor overlaps its passes, and a long body
    // is slower.
    let count = if N < MAX_TOKENS {
        N
    } else {
        opaque(range.len()).min(N)
    };
    let form = &tile.form;
    let rows = TILE_ROWS / R::SLICES;
    let (lines, planes) = form.codes.block_bytes();
    let (scale_bytes, min_bytes) = form.element_bytes();
    let sub_scale_bytes = form.sub_scale_bytes();
    let zero = if MINS { 0 } else { U::ZERO } - U::OFFSET;
    // The first tokens bring the tile into the cache. One token's products of eight-bit codes take
    // so little work that prefetching would only add to it.
    let prefetched = range.start == 0 && (N > 1 || form.codes != Codes::Eight);
    let mut left_in_run = 0;
    let mut at = tile.bytes.as_ptr();
    // SAFETY: `check` has matched the tile's length with its form, so that every run has its
    // elements and every block its codes and sub-scales; it gave every token its columns, and the
    // caller promises sixteen writable values for every token.
    unsafe {
        let mut totals = [[R::zero(); MAX_SLICES]; N];
        let mut elements = [[R::zero(); 2]; MAX_SLICES];
        for block in 0..input.cols / GROUP {
            if left_in_run == 0 {
                left_in_run = form.run;
                for (slice, elements) in elements.iter_mut().enumerate().take(R::SLICES) {
                    *elements = run_elements::<R, MINS>(form, at, slice);
                }
                at = at.add(scale_bytes + min_bytes);
            }
            left_in_run -= 1;
            let sub_scales = at.add(lines + planes);
            if prefetched {
                R::prefetch(at, lines + planes);
            }
            for slice in 0..R::SLICES {
                let [scales, mins] = elements[slice];
                // Beyond the tile's end if there are none, and then not read.
                let sub_scales = sub_scales.wrapping_add(slice * rows);
                let later_scales = if SPLIT {
                    R::times_sub_scales(scales, form.sub_scales, sub_scales.wrapping_add(TILE_ROWS))
                } else {
                    scales
                };
                let scales = R::times_sub_scales(scales, form.sub_scales, sub_scales);
                let mins = if MINS {
                    R::times_sub_scales(
                        mins,
                        form.sub_scales,
                        sub_scales.wrapping_add(sub_scale_bytes),
                    )
                } else {
                    mins
                };
                let [codes, later_codes] = U::unpack(at, slice);
                // Tokens outside, quads inside: each activation is read once, straight into its
                // product, and the tokens' chains overlap.
                for (n, totals) in totals.iter_mut().enumerate().take(count) {
                    let group = &*input.block(range.start + n, block);
                    let x = group.codes.as_ptr();
                    let later_x = x.add(SUM_GROUP);
                    let (start, later_start) = if SPLIT {
                        let [first, second] = &group.negated_sums;
                        (R::start(zero, first), R::start(zero, second))
                    } else {
                        (R::start(zero, &group.negated_sum), R::start(0, &0))
                    };
                    let dots = P::dots(&codes, x, start);
                    let later_dots = P::dots(&later_codes, later_x, later_start);
                    let scale = group.scale;
                    let mut total = totals[slice];
                    if SPLIT {
                        total = R::add_dots(total, dots, scales, scale);
                        total = R::add_dots(total, later_dots, later_scales, scale);
                    } else {
                        total = R::add_dots(total, R::add(dots, later_dots), scales, scale);
                    }
                    if MINS {
                        total = R::add_mins(total, mins, group.scaled_sum);
                    }
                    totals[slice] = total;
                }
            }
            at = sub_scales.add(sub_scale_bytes * if MINS { 2 } else { 1 });
        }
        for (n, totals) in totals.iter().enumerate().take(count) {
            let out = out.add((range.start + n) * stride);
            for (slice, total) in totals.iter().enumerate().take(R::SLICES) {
                R::store(out.add(slice * rows), *total);
            }
        }
    }
}

/// A slice of a run's elements: the scales' and the minimums'.
///
/// # Safety
/// Needs the target features; the run must begin at `at`.
#[inline(always)]
unsafe fn run_elements<R: Registers, const MINS: bool>(
    form: &TileFormat,
    at: *const u8,
    slice: usize,
) -> [R::Floats; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        let scales = R::load_elements(form.scale, at, slice);
        match form.min {
            Some(min) if MINS => {
                let mins = at.add(form.element_bytes().0);
                [scales, R::load_elements(min, mins, slice)]
            }
            _ => [scales; 2],
        }
    }
}

/// The value, which the compiler does not know.
#[inline(always)]
pub fn opaque(mut value: usize) -> usize {
    // SAFETY: does nothing.
    unsafe {
        asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack, preserves_flags));
    }
    value
}
