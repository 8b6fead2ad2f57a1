//! The walk over a tile that AVX-512 and NEON share, with room for all codes of a block in
//! registers. Follows [`super::tile::portable`] step by step.
//!
//! A register holds one value for each row of a slice of the tile. An instruction set implements
//! [`Registers`], an [`Unpack`] for each kind of codes and one or more [`Products`]; everything is
//! inlined into a function that enables its target features.

use super::tile::{Codes, Element, SubScales, TileFormat};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Quads in a [`SUM_GROUP`], the columns that are multiplied together.
pub const QUADS: usize = SUM_GROUP / 4;
const MAX_SLICES: usize = 4;

/// [`Codes`] as a constant, so that the inner loop has no branch.
pub struct Kind<const CODES: u8>;
pub const FOUR: u8 = Codes::Four as u8;
pub const FP4: u8 = Codes::Fp4 as u8;
pub const FIVE: u8 = Codes::Five as u8;
pub const SIX: u8 = Codes::Six as u8;
pub const EIGHT: u8 = Codes::Eight as u8;

/// An instruction set's registers.
///
/// # Safety
/// Every method needs the instruction set's target features.
pub trait Registers {
    /// Registers for the rows of a tile.
    const SLICES: usize;
    /// Whether the totals of eight tokens fit into registers, instead of four.
    const EIGHT_TOKENS: bool;
    type Floats: Copy;
    type Integers: Copy;
    /// The codes of four columns.
    type Quad;

    unsafe fn zero() -> Self::Floats;

    /// Requests the memory ahead of these bytes, if that was found to help.
    unsafe fn prefetch(_at: *const u8, _bytes: usize) {}

    unsafe fn splat(value: i32) -> Self::Integers;

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
pub trait Unpack<R: Registers> {
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
    let mut token = 0;
    // SAFETY: the caller's promises.
    unsafe {
        while R::EIGHT_TOKENS && token + 8 <= input.tokens {
            tokens::<8, R, U, P, SPLIT, MINS>(tile, input, token, out, stride);
            token += 8;
        }
        while token + 4 <= input.tokens {
            tokens::<4, R, U, P, SPLIT, MINS>(tile, input, token, out, stride);
            token += 4;
        }
        while R::EIGHT_TOKENS && token + 2 <= input.tokens {
            tokens::<2, R, U, P, SPLIT, MINS>(tile, input, token, out, stride);
            token += 2;
        }
        while token < input.tokens {
            tokens::<1, R, U, P, SPLIT, MINS>(tile, input, token, out, stride);
            token += 1;
        }
    }
}

/// The totals of `N` tokens, which stay in registers: each weight is unpacked once for all.
///
/// # Safety
/// As for [`all_tokens`], once lengths have been checked.
#[inline(always)]
unsafe fn tokens<const N: usize, R, U, P, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    out: *mut f32,
    stride: usize,
) where
    R: Registers,
    U: Unpack<R>,
    P: Products<R>,
{
    let form = &tile.form;
    let rows = TILE_ROWS / R::SLICES;
    let (lines, planes) = form.codes.block_bytes();
    let (scale_bytes, min_bytes) = form.element_bytes();
    let sub_scale_bytes = form.sub_scale_bytes();
    let bias = U::OFFSET - form.zero();
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
            // Eight-bit codes take little work: prefetching would only add to it.
            if N == 1 && form.codes != Codes::Eight {
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
                for (n, totals) in totals.iter_mut().enumerate() {
                    let first = (token + n) * input.cols + block * GROUP;
                    let x = input.codes.as_ptr().add(first);
                    let later_x = x.add(SUM_GROUP);
                    let sums = input.sums.as_ptr().add(first / SUM_GROUP);
                    let scale = *input.scales.as_ptr().add(first / GROUP);
                    let mut total = totals[slice];
                    if SPLIT {
                        let dots = P::dots(&codes, x, R::splat(bias * *sums));
                        total = R::add_dots(total, dots, scales, scale);
                        let start = R::splat(bias * *sums.add(1));
                        let dots = P::dots(&later_codes, later_x, start);
                        total = R::add_dots(total, dots, later_scales, scale);
                    } else {
                        let dots = P::dots(&codes, x, R::splat(0));
                        let start = R::splat(bias * (*sums + *sums.add(1)));
                        let later_dots = P::dots(&later_codes, later_x, start);
                        total = R::add_dots(total, R::add(dots, later_dots), scales, scale);
                    }
                    if MINS {
                        let sum = *input.scaled_sums.as_ptr().add(first / GROUP);
                        total = R::add_mins(total, mins, sum);
                    }
                    totals[slice] = total;
                }
            }
            at = sub_scales.add(sub_scale_bytes * if MINS { 2 } else { 1 });
        }
        for (n, totals) in totals.iter().enumerate() {
            let out = out.add((token + n) * stride);
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
