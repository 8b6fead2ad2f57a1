//! The walk over a tile that AVX-512 and NEON share, with room for all codes of a block in
//! registers. Follows [`super::tile::portable`] step by step.
//!
//! A register holds one value for each row of a slice of the tile. An instruction set implements
//! [`Registers`], an [`Unpack`] for each kind of codes and one or more [`Products`]; everything is
//! inlined into a function that enables its target features.

use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::tile::{Codes, Element, SubScales, TileFormat};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Quads in a [`SUM_GROUP`], the columns that are multiplied together.
pub const QUADS: usize = SUM_GROUP / 4;
const MAX_SLICES: usize = 4;
/// Tiles that are multiplied together.
pub const MAX_TILES: usize = 2;
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
pub trait Registers: Copy {
    /// Registers for the rows of a tile.
    const SLICES: usize;
    type Floats: Copy;
    type Integers: Copy;
    /// The codes of four columns.
    type Quad: Copy;

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
    /// `start` plus the products of a [`SUM_GROUP`], for the first `T` tiles.
    ///
    /// # Safety
    /// Needs the target features; a [`SUM_GROUP`] of activations must be at `x`.
    unsafe fn dots<const T: usize>(
        codes: [&[R::Quad; QUADS]; MAX_TILES],
        x: *const i8,
        start: R::Integers,
    ) -> [R::Integers; T];
}

/// Multiplies `T` neighbouring tiles, each of `TILE_ROWS` columns of `out`: several tiles share
/// each load of activations.
///
/// # Safety
/// Needs the target features that `P` needs, and `out` valid for writes of `T * TILE_ROWS` values
/// at every `token * stride`.
#[inline(always)]
pub unsafe fn tiles<const T: usize, R: Registers, P: Products<R>>(
    tiles: &[Tile; T],
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
        match tiles[0].form.codes {
            Codes::Four => all_tokens::<T, R, Kind<FOUR>, P>(tiles, input, out, stride),
            Codes::Fp4 => all_tokens::<T, R, Kind<FP4>, P>(tiles, input, out, stride),
            Codes::Five => all_tokens::<T, R, Kind<FIVE>, P>(tiles, input, out, stride),
            Codes::Six => all_tokens::<T, R, Kind<SIX>, P>(tiles, input, out, stride),
            Codes::Eight => all_tokens::<T, R, Kind<EIGHT>, P>(tiles, input, out, stride),
        }
    }
}

/// # Safety
/// As for [`tiles`]; the tiles' codes must be `U`'s, and `P` must multiply them exactly.
#[inline(always)]
unsafe fn all_tokens<const T: usize, R: Registers, U: Unpack<R>, P: Products<R>>(
    tiles: &[Tile; T],
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    let form = &tiles[0].form;
    for tile in tiles {
        assert_eq!(tile.form, *form);
        input.check(tile);
    }
    // SAFETY: `check` has matched every length; the caller vouches for the rest.
    unsafe {
        match (form.group, form.min.is_some()) {
            // Minimums leave no time that shared loads would save (ADR 0019).
            (GROUP, true) => {
                for (index, tile) in tiles.iter().enumerate() {
                    let out = out.add(index * TILE_ROWS);
                    shaped::<1, R, U, P, false, true>(&[*tile], input, out, stride);
                }
            }
            (GROUP, false) => shaped::<T, R, U, P, false, false>(tiles, input, out, stride),
            _ => shaped::<T, R, U, P, true, false>(tiles, input, out, stride),
        }
    }
}

/// `SPLIT`: each half of a block has its own scale.
///
/// # Safety
/// As for [`all_tokens`], once lengths have been checked.
#[inline(always)]
unsafe fn shaped<const T: usize, R, U, P, const SPLIT: bool, const MINS: bool>(
    tiles: &[Tile; T],
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
            1 => tokens::<T, 1, R, U, P, SPLIT, MINS>(tiles, input, 0..1, out, stride),
            2 => tokens::<T, 2, R, U, P, SPLIT, MINS>(tiles, input, 0..2, out, stride),
            count => {
                let mut first = 0;
                // With minimums, which are one more load for each product, totals of eight tokens
                // in registers are faster (ADR 0019).
                while MINS && R::SLICES == 1 && first + 8 <= count {
                    let range = first..first + 8;
                    first = range.end;
                    tokens::<T, 8, R, U, P, SPLIT, MINS>(tiles, input, range, out, stride);
                }
                while first < count {
                    let range = first..count.min(first + MAX_TOKENS);
                    first = range.end;
                    tokens::<T, MAX_TOKENS, R, U, P, SPLIT, MINS>(tiles, input, range, out, stride);
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
unsafe fn tokens<const T: usize, const N: usize, R, U, P, const SPLIT: bool, const MINS: bool>(
    tiles: &[Tile; T],
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
    let form = &tiles[0].form;
    let rows = TILE_ROWS / R::SLICES;
    let (lines, planes) = form.codes.block_bytes();
    let (scale_bytes, min_bytes) = form.element_bytes();
    let sub_scale_bytes = form.sub_scale_bytes();
    let zero = if MINS { 0 } else { U::ZERO } - U::OFFSET;
    // The first tokens bring the tile into the cache. One token's products of eight-bit codes take
    // so little work that prefetching would only add to it.
    let prefetched = range.start == 0 && (N > 1 || form.codes != Codes::Eight);
    let mut left_in_run = 0;
    // SAFETY: `check` has matched the tiles' lengths with their form, so that every run has its
    // elements and every block its codes and sub-scales; it gave every token its columns, and the
    // caller promises writable values for every token. The totals that are read were written.
    unsafe {
        let mut at = tiles.each_ref().map(|tile| tile.bytes.as_ptr());
        // Clearing what no token or slice uses would take longer than a few blocks' products.
        let mut totals = [[[MaybeUninit::<R::Floats>::uninit(); T]; MAX_SLICES]; N];
        for totals in totals.iter_mut().take(count) {
            for totals in totals.iter_mut().take(R::SLICES) {
                for total in totals {
                    *total = MaybeUninit::new(R::zero());
                }
            }
        }
        let mut elements = [[[R::zero(); 2]; T]; MAX_SLICES];
        for block in 0..input.cols / GROUP {
            if left_in_run == 0 {
                left_in_run = form.run;
                for (slice, elements) in elements.iter_mut().enumerate().take(R::SLICES) {
                    for (elements, at) in elements.iter_mut().zip(at) {
                        *elements = run_elements::<R, MINS>(form, at, slice);
                    }
                }
                for at in &mut at {
                    *at = at.add(scale_bytes + min_bytes);
                }
            }
            left_in_run -= 1;
            if prefetched {
                for at in at {
                    R::prefetch(at, lines + planes);
                }
            }
            for slice in 0..R::SLICES {
                let load = BlockWeights::load::<U, SPLIT, MINS>;
                // Beyond the tile's end if there are none, and then not read.
                let sub_scales = lines + planes + slice * rows;
                // Not an array of `T`: the compiler would keep it in memory.
                let first = load(form, at[0], slice, elements[slice][0], sub_scales);
                let second = if T > 1 {
                    load(form, at[1], slice, elements[slice][1], sub_scales)
                } else {
                    first
                };
                // Tokens outside, quads inside: each activation is read once, straight into its
                // products, and the tokens' chains overlap.
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
                    let codes = [&first.codes, &second.codes];
                    let dots = P::dots::<T>(codes.map(|codes| &codes[0]), x, start);
                    let later = codes.map(|codes| &codes[1]);
                    let later_dots = P::dots::<T>(later, later_x, later_start);
                    let scale = group.scale;
                    for (t, weights) in [&first, &second].into_iter().enumerate().take(T) {
                        let [scales, later_scales] = weights.scales;
                        let mut total = totals[slice][t].assume_init();
                        if SPLIT {
                            total = R::add_dots(total, dots[t], scales, scale);
                            total = R::add_dots(total, later_dots[t], later_scales, scale);
                        } else {
                            let dots = R::add(dots[t], later_dots[t]);
                            total = R::add_dots(total, dots, scales, scale);
                        }
                        if MINS {
                            total = R::add_mins(total, weights.mins, group.scaled_sum);
                        }
                        totals[slice][t] = MaybeUninit::new(total);
                    }
                }
            }
            let after = lines + planes + sub_scale_bytes * if MINS { 2 } else { 1 };
            for at in &mut at {
                *at = at.add(after);
            }
        }
        for (n, totals) in totals.iter().enumerate().take(count) {
            let out = out.add((range.start + n) * stride);
            for (slice, totals) in totals.iter().enumerate().take(R::SLICES) {
                for (t, total) in totals.iter().enumerate() {
                    R::store(out.add(t * TILE_ROWS + slice * rows), total.assume_init());
                }
            }
        }
    }
}

/// A slice of a block of one tile.
#[derive(Clone, Copy)]
struct BlockWeights<R: Registers> {
    codes: [[R::Quad; QUADS]; 2],
    /// Of each half of the block, which differ if groups are half a block.
    scales: [R::Floats; 2],
    mins: R::Floats,
}

impl<R: Registers> BlockWeights<R> {
    /// # Safety
    /// Needs the target features; a whole block must be at `at`, with the slice's sub-scales, if
    /// the form has any, `sub_scales` bytes further.
    #[inline(always)]
    unsafe fn load<U: Unpack<R>, const SPLIT: bool, const MINS: bool>(
        form: &TileFormat,
        at: *const u8,
        slice: usize,
        [scales, mins]: [R::Floats; 2],
        sub_scales: usize,
    ) -> Self {
        let sub_scales = at.wrapping_add(sub_scales);
        let times = R::times_sub_scales;
        // SAFETY: the caller's promises.
        unsafe {
            let later = if SPLIT {
                times(scales, form.sub_scales, sub_scales.wrapping_add(TILE_ROWS))
            } else {
                scales
            };
            Self {
                codes: U::unpack(at, slice),
                scales: [times(scales, form.sub_scales, sub_scales), later],
                mins: if MINS {
                    let sub_scales = sub_scales.wrapping_add(form.sub_scale_bytes());
                    times(mins, form.sub_scales, sub_scales)
                } else {
                    mins
                },
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
