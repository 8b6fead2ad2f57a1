//! Integer tiles with NEON, and with its dot products (ARMv8.2) where a machine has them. Follows
//! [`super::tile::portable`] step by step.
//!
//! Both multiply signed by signed bytes. Codes of fewer than eight bits are such; codes of eight
//! are moved down by 128, and [`Unpack::MOVED`] times the activations' sum is added again.

use std::arch::aarch64::*;
use std::arch::asm;

use super::tile::{Codes, Element, FP4_CODES, Form, LINE, Parts};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Rows in a register.
const ROWS: usize = TILE_ROWS / 4;
/// Quads in a [`SUM_GROUP`], the columns that are multiplied together.
const QUADS: usize = SUM_GROUP / 4;

/// Four columns of four rows.
type Quad = int8x16_t;

/// # Safety
/// `out` must be valid for writes of `TILE_ROWS` values at every `token * stride`.
#[target_feature(enable = "neon")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe { every_code::<Widened>(tile, input, out, stride) };
}

/// # Safety
/// As for [`tile`], and needs the target features.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn tile_dotprod(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { every_code::<DotProducts>(tile, input, out, stride) };
}

/// # Safety
/// As for [`tile`], with the target features that `P` needs.
#[inline(always)]
unsafe fn every_code<P: Products>(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        match tile.form.codes {
            Codes::Four => all_tokens::<Four, P>(tile, input, out, stride),
            Codes::Fp4 => all_tokens::<Fp4, P>(tile, input, out, stride),
            Codes::Five => all_tokens::<Five, P>(tile, input, out, stride),
            Codes::Six => all_tokens::<Six, P>(tile, input, out, stride),
            Codes::Eight => all_tokens::<Eight, P>(tile, input, out, stride),
        }
    }
}

/// # Safety
/// As for [`every_code`]; the tile's codes must be `U`'s.
#[inline(always)]
unsafe fn all_tokens<U: Unpack, P: Products>(
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
/// As for [`all_tokens`], once lengths have been checked.
#[inline(always)]
unsafe fn shaped<U: Unpack, P: Products, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    let mut token = 0;
    // SAFETY: the caller's promises.
    unsafe {
        while token + 4 <= input.tokens {
            tokens::<4, U, P, SPLIT, MINS>(tile, input, token, out, stride);
            token += 4;
        }
        while token < input.tokens {
            tokens::<1, U, P, SPLIT, MINS>(tile, input, token, out, stride);
            token += 1;
        }
    }
}

/// # Safety
/// As for [`all_tokens`], once lengths have been checked.
#[inline(always)]
unsafe fn tokens<const N: usize, U: Unpack, P: Products, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    token: usize,
    out: *mut f32,
    stride: usize,
) {
    let form = &tile.form;
    let (lines, planes) = form.codes.block_bytes();
    let (scale_bytes, min_bytes) = form.element_bytes();
    let part_bytes = form.part_bytes();
    let mut left_in_run = 0;
    let mut at = tile.bytes.as_ptr();
    // SAFETY: `check` has matched the tile's length with its form, so that every run has its
    // elements and every block its codes and parts; it gave every token its columns, and the
    // caller promises sixteen writable values at every token's place.
    unsafe {
        let mut totals = [[vdupq_n_f32(0.0); 4]; N];
        let mut elements = [[vdupq_n_f32(0.0); 2]; 4];
        for block in 0..input.cols / GROUP {
            if left_in_run == 0 {
                left_in_run = form.run;
                elements = run_elements::<MINS>(form, at);
                at = at.add(scale_bytes + min_bytes);
            }
            left_in_run -= 1;
            let parts = at.add(lines + planes);
            for quarter in 0..4 {
                let [scales, mins] = elements[quarter];
                // Past the tile's end where there are no parts, and then not read.
                let part = |first| parts.wrapping_add(first + quarter * ROWS);
                let later_scales = if SPLIT {
                    times_parts(scales, form.parts, part(TILE_ROWS))
                } else {
                    scales
                };
                let scales = times_parts(scales, form.parts, part(0));
                let mins = if MINS {
                    times_parts(mins, form.parts, part(part_bytes))
                } else {
                    mins
                };
                let [codes, later_codes] = U::unpack(at, quarter);
                for (n, totals) in totals.iter_mut().enumerate() {
                    let first = (token + n) * input.cols + block * GROUP;
                    let x = input.codes.as_ptr().add(first);
                    let sums = input.sums.as_ptr().add(first / SUM_GROUP);
                    let dots = P::dots(&codes, vld1q_s8(x));
                    let later_dots = P::dots(&later_codes, vld1q_s8(x.add(SUM_GROUP)));
                    let signed =
                        |dots, sum| vaddq_s32(dots, vdupq_n_s32((U::MOVED - form.zero) * sum));
                    let scale = *input.scales.as_ptr().add(first / GROUP);
                    let weigh = |dots, scales, total| {
                        vfmaq_f32(total, vcvtq_f32_s32(dots), vmulq_n_f32(scales, scale))
                    };
                    let total = &mut totals[quarter];
                    if SPLIT {
                        *total = weigh(signed(dots, *sums), scales, *total);
                        let later_dots = signed(later_dots, *sums.add(1));
                        *total = weigh(later_dots, later_scales, *total);
                    } else {
                        let dots = vaddq_s32(dots, later_dots);
                        let dots = signed(dots, *sums + *sums.add(1));
                        *total = weigh(dots, scales, *total);
                    }
                    if MINS {
                        let sum = *input.scaled_sums.as_ptr().add(first / GROUP);
                        *total = vfmaq_n_f32(*total, mins, sum);
                    }
                }
            }
            at = parts.add(part_bytes * if MINS { 2 } else { 1 });
        }
        for (n, totals) in totals.iter().enumerate() {
            let out = out.add((token + n) * stride);
            for (quarter, total) in totals.iter().enumerate() {
                vst1q_f32(out.add(quarter * ROWS), *total);
            }
        }
    }
}

/// The scales' and the minimums' elements of a run, for each quarter of the rows.
///
/// # Safety
/// The run must begin at `at`.
#[inline(always)]
unsafe fn run_elements<const MINS: bool>(form: &Form, at: *const u8) -> [[float32x4_t; 2]; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        [0, 1, 2, 3].map(|quarter| {
            let scales = load_elements(form.scale, at, quarter);
            match form.min {
                Some(min) if MINS => {
                    let mins = at.add(form.element_bytes().0);
                    [scales, load_elements(min, mins, quarter)]
                }
                _ => [scales; 2],
            }
        })
    }
}

/// A quarter of the sixteen rows' elements.
///
/// # Safety
/// The sixteen must be at `at`.
#[inline(always)]
unsafe fn load_elements(element: Element, at: *const u8, quarter: usize) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let at = at.add(quarter * ROWS * element.bytes());
        match element {
            Element::F32 => vld1q_f32(at.cast()),
            Element::F16 => halves(vld1_u16(at.cast())),
            Element::Bf16 => vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.cast()))),
            Element::HalfE8m0 => {
                let wide = vmovl_u16(bytes(at));
                let powers = vmaxq_u32(vshlq_n_u32::<23>(wide), vdupq_n_u32(1 << 22));
                let halved = vmulq_n_f32(vreinterpretq_f32_u32(powers), 0.5);
                let broken = vceqq_u32(wide, vdupq_n_u32(255));
                vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(halved), broken))
            }
        }
    }
}

/// # Safety
/// The parts of four rows must be at `at`, if there are any.
#[inline(always)]
unsafe fn times_parts(elements: float32x4_t, parts: Parts, at: *const u8) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let factors = match parts {
            Parts::None => return elements,
            Parts::Unsigned => vcvtq_f32_u32(vmovl_u16(bytes(at))),
            Parts::Signed => {
                // Up to the sign of sixteen bits and down again.
                let raised = vshl_n_u16::<8>(bytes(at));
                let wide = vshr_n_s16::<8>(vreinterpret_s16_u16(raised));
                vcvtq_f32_s32(vmovl_s16(wide))
            }
        };
        vmulq_f32(elements, factors)
    }
}

/// Four bytes, widened.
///
/// # Safety
/// They must lie at `at`.
#[inline(always)]
unsafe fn bytes(at: *const u8) -> uint16x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let four = vcreate_u8(u64::from(at.cast::<u32>().read_unaligned()));
        vget_low_u16(vmovl_u8(four))
    }
}

/// Assembly, as the language has no stable name for the instruction.
#[inline(always)]
fn halves(bits: uint16x4_t) -> float32x4_t {
    let values: float32x4_t;
    // SAFETY: works on registers alone.
    unsafe {
        asm!(
            "fcvtl {values:v}.4s, {bits:v}.4h",
            values = lateout(vreg) values,
            bits = in(vreg) bits,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    values
}

/// How codes of four rows are multiplied by activations.
trait Products {
    /// Of a [`SUM_GROUP`].
    ///
    /// # Safety
    /// Needs the target features.
    unsafe fn dots(codes: &[Quad; QUADS], x: int8x16_t) -> int32x4_t;
}

/// Products of sixteen bits, added in pairs to sums of thirty-two.
struct Widened;

impl Products for Widened {
    #[inline(always)]
    unsafe fn dots(codes: &[Quad; QUADS], x: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe {
            let x = vreinterpretq_s32_s8(x);
            let x = [
                vdup_laneq_s32::<0>(x),
                vdup_laneq_s32::<1>(x),
                vdup_laneq_s32::<2>(x),
                vdup_laneq_s32::<3>(x),
            ];
            let mut halves = [vdupq_n_s32(0); 2];
            for (codes, x) in codes.iter().zip(x) {
                let x = vreinterpret_s8_s32(x);
                halves[0] = vpadalq_s16(halves[0], vmull_s8(vget_low_s8(*codes), x));
                halves[1] = vpadalq_s16(halves[1], vmull_s8(vget_high_s8(*codes), x));
            }
            vpaddq_s32(halves[0], halves[1])
        }
    }
}

struct DotProducts;

impl Products for DotProducts {
    #[inline(always)]
    unsafe fn dots(codes: &[Quad; QUADS], x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller's promise.
        unsafe { sdot(codes, x) }
    }
}

/// Assembly, as the language has no stable name for the instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(codes: &[Quad; QUADS], x: int8x16_t) -> int32x4_t {
    let mut dots = vdupq_n_s32(0);
    // SAFETY: works on registers alone.
    unsafe {
        asm!(
            "sdot {dots:v}.4s, {a:v}.16b, {x:v}.4b[0]",
            "sdot {dots:v}.4s, {b:v}.16b, {x:v}.4b[1]",
            "sdot {dots:v}.4s, {c:v}.16b, {x:v}.4b[2]",
            "sdot {dots:v}.4s, {d:v}.16b, {x:v}.4b[3]",
            dots = inout(vreg) dots,
            a = in(vreg) codes[0],
            b = in(vreg) codes[1],
            c = in(vreg) codes[2],
            d = in(vreg) codes[3],
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    dots
}

/// How a kind of [`Codes`] is read.
trait Unpack {
    /// What the codes are less than they should be.
    const MOVED: i32 = 0;

    /// The codes of a quarter of the rows of a block, for each of its [`SUM_GROUP`]s.
    ///
    /// # Safety
    /// A whole block's lines and planes must be at `at`, with codes of this kind.
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2];
}

struct Four;
struct Fp4;
struct Five;
struct Six;
struct Eight;

impl Unpack for Four {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; a block has four lines.
        unsafe {
            let (mut first, mut second) = ([vdupq_n_s8(0); QUADS], [vdupq_n_s8(0); QUADS]);
            for (c, (first, second)) in first.iter_mut().zip(&mut second).enumerate() {
                let pair = load(at, c, quarter);
                *first = vreinterpretq_s8_u8(vandq_u8(pair, vdupq_n_u8(15)));
                *second = vreinterpretq_s8_u8(vshrq_n_u8::<4>(pair));
            }
            [first, second]
        }
    }
}

impl Unpack for Fp4 {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; the table has sixteen bytes.
        unsafe {
            let mut codes = Four::unpack(at, quarter);
            let table = vreinterpretq_s8_u8(vld1q_u8(FP4_CODES.as_ptr()));
            for code in codes.as_flattened_mut() {
                *code = vqtbl1q_s8(table, vreinterpretq_u8_s8(*code));
            }
            codes
        }
    }
}

impl Unpack for Five {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after the lines each quad has eight bytes of fifth
        // bits, two of them for a quarter of the rows.
        unsafe {
            let mut codes = Four::unpack(at, quarter);
            let bit_of = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let bits = at.add(QUADS * LINE + quarter * 2);
            for (c, code) in codes.as_flattened_mut().iter_mut().enumerate() {
                let bits = bits.add(c * 8);
                let bytes = vcombine_u8(vdup_n_u8(*bits), vdup_n_u8(*bits.add(1)));
                let fifth = vandq_u8(vtstq_u8(bytes, bit_of), vdupq_n_u8(16));
                *code = vorrq_s8(*code, vreinterpretq_s8_u8(fifth));
            }
            codes
        }
    }
}

impl Unpack for Six {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after four lines a block has two of upper bits.
        unsafe {
            let mut codes = Four::unpack(at, quarter);
            for (j, codes) in codes.iter_mut().enumerate() {
                let plane = load(at, QUADS + j, quarter);
                let shifted = [
                    vshlq_n_u8::<4>(plane),
                    vshlq_n_u8::<2>(plane),
                    plane,
                    vshrq_n_u8::<2>(plane),
                ];
                for (code, shifted) in codes.iter_mut().zip(shifted) {
                    let upper = vandq_u8(shifted, vdupq_n_u8(0x30));
                    *code = vorrq_s8(*code, vreinterpretq_s8_u8(upper));
                }
            }
            codes
        }
    }
}

impl Unpack for Eight {
    const MOVED: i32 = 128;

    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; a block has eight lines.
        unsafe {
            let mut codes = [[vdupq_n_s8(0); QUADS]; 2];
            for (c, code) in codes.as_flattened_mut().iter_mut().enumerate() {
                let unsigned = load(at, c, quarter);
                *code = vreinterpretq_s8_u8(veorq_u8(unsigned, vdupq_n_u8(128)));
            }
            codes
        }
    }
}

/// # Safety
/// A block with such a line must be at `at`.
#[inline(always)]
unsafe fn load(at: *const u8, line: usize, quarter: usize) -> uint8x16_t {
    // SAFETY: the caller's promise.
    unsafe { vld1q_u8(at.add(line * LINE + quarter * LINE / 4)) }
}
