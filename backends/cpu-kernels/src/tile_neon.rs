//! Integer tiles with NEON, and with its dot products (ARMv8.2) if available. Follows
//! [`super::tile::portable`] step by step.
//!
//! Both multiply signed by signed bytes. Codes of fewer than eight bits are such; codes of eight
//! are moved down by 128, and [`Unpack::OFFSET`] times the activations' sum is added again.

use std::arch::aarch64::*;
use std::arch::asm;

use super::tile::{Element, FP4_CODES, LINE, SubScales};
use super::tile_walk::{
    self, EIGHT, FIVE, FOUR, FP4, Kind, MAX_TILES, Products, QUADS, Registers, SIX, Unpack,
};
use super::{TILE_ROWS, Tile, TileInput};

/// Rows in a register.
const ROWS: usize = TILE_ROWS / 4;

/// Four columns of four rows.
type Quad = int8x16_t;

/// # Safety
/// `out` must be valid for writes of `TILE_ROWS` values at every `token * stride`.
#[target_feature(enable = "neon")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe { tile_walk::tiles::<1, Neon, Widened>(&[*tile], input, out, stride) };
}

/// # Safety
/// As for [`tile`], and needs the target features.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn tile_dotprod(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { tile_walk::tiles::<1, Neon, DotProducts>(&[*tile], input, out, stride) };
}

#[derive(Clone, Copy)]
struct Neon;

impl Registers for Neon {
    const SLICES: usize = 4;
    type Floats = float32x4_t;
    type Integers = int32x4_t;
    type Quad = Quad;

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn start(zero: i32, negated_sum: *const i32) -> int32x4_t {
        // SAFETY: NEON is part of the architecture, and the caller's promise.
        unsafe { vdupq_n_s32(zero * *negated_sum) }
    }

    #[inline(always)]
    unsafe fn add(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vaddq_s32(a, b) }
    }

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

    #[inline(always)]
    unsafe fn times_sub_scales(
        elements: float32x4_t,
        sub_scales: SubScales,
        at: *const u8,
    ) -> float32x4_t {
        // SAFETY: the caller's promise.
        unsafe {
            let factors = match sub_scales {
                SubScales::None => return elements,
                SubScales::Unsigned => vcvtq_f32_u32(vmovl_u16(bytes(at))),
                SubScales::Signed => {
                    // Up to the sign of sixteen bits and down again.
                    let raised = vshl_n_u16::<8>(bytes(at));
                    let wide = vshr_n_s16::<8>(vreinterpret_s16_u16(raised));
                    vcvtq_f32_s32(vmovl_s16(wide))
                }
            };
            vmulq_f32(elements, factors)
        }
    }

    #[inline(always)]
    unsafe fn add_dots(
        total: float32x4_t,
        dots: int32x4_t,
        scales: float32x4_t,
        scale: f32,
    ) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vfmaq_f32(total, vcvtq_f32_s32(dots), vmulq_n_f32(scales, scale)) }
    }

    #[inline(always)]
    unsafe fn add_mins(total: float32x4_t, mins: float32x4_t, sum: f32) -> float32x4_t {
        // SAFETY: NEON is part of the architecture.
        unsafe { vfmaq_n_f32(total, mins, sum) }
    }

    #[inline(always)]
    unsafe fn store(out: *mut f32, total: float32x4_t) {
        // SAFETY: the caller's promise.
        unsafe { vst1q_f32(out, total) };
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

/// Assembly, since the intrinsic is not stable.
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

/// Products of sixteen bits, added in pairs to sums of thirty-two.
struct Widened;

impl Products<Neon> for Widened {
    #[inline(always)]
    unsafe fn dots<const T: usize>(
        codes: [&[Quad; QUADS]; MAX_TILES],
        x: *const i8,
        start: int32x4_t,
    ) -> [int32x4_t; T] {
        // SAFETY: NEON is part of the architecture, and a group of activations is at `x`.
        unsafe {
            let x = vreinterpretq_s32_s8(vld1q_s8(x));
            let x = [
                vdup_laneq_s32::<0>(x),
                vdup_laneq_s32::<1>(x),
                vdup_laneq_s32::<2>(x),
                vdup_laneq_s32::<3>(x),
            ];
            let mut dots = [start; T];
            for (dots, codes) in dots.iter_mut().zip(codes) {
                let mut halves = [vdupq_n_s32(0); 2];
                for (codes, x) in codes.iter().zip(x) {
                    let x = vreinterpret_s8_s32(x);
                    halves[0] = vpadalq_s16(halves[0], vmull_s8(vget_low_s8(*codes), x));
                    halves[1] = vpadalq_s16(halves[1], vmull_s8(vget_high_s8(*codes), x));
                }
                *dots = vaddq_s32(start, vpaddq_s32(halves[0], halves[1]));
            }
            dots
        }
    }
}

struct DotProducts;

impl Products<Neon> for DotProducts {
    #[inline(always)]
    unsafe fn dots<const T: usize>(
        codes: [&[Quad; QUADS]; MAX_TILES],
        x: *const i8,
        start: int32x4_t,
    ) -> [int32x4_t; T] {
        let mut dots = [start; T];
        for (dots, codes) in dots.iter_mut().zip(codes) {
            // SAFETY: the caller's promises.
            *dots = unsafe { sdot(codes, vld1q_s8(x), start) };
        }
        dots
    }
}

/// Assembly, since the intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(codes: &[Quad; QUADS], x: int8x16_t, start: int32x4_t) -> int32x4_t {
    let mut dots = start;
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

impl Unpack<Neon> for Kind<FOUR> {
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

impl Unpack<Neon> for Kind<FP4> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; the table has sixteen bytes.
        unsafe {
            let mut codes = <Kind<FOUR> as Unpack<Neon>>::unpack(at, quarter);
            let table = vreinterpretq_s8_u8(vld1q_u8(FP4_CODES.as_ptr()));
            for code in codes.as_flattened_mut() {
                *code = vqtbl1q_s8(table, vreinterpretq_u8_s8(*code));
            }
            codes
        }
    }
}

impl Unpack<Neon> for Kind<FIVE> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after the lines each quad has eight bytes of fifth
        // bits, two of them for a quarter of the rows.
        unsafe {
            let mut codes = <Kind<FOUR> as Unpack<Neon>>::unpack(at, quarter);
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

impl Unpack<Neon> for Kind<SIX> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, quarter: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after four lines a block has two of upper bits.
        unsafe {
            let mut codes = <Kind<FOUR> as Unpack<Neon>>::unpack(at, quarter);
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

impl Unpack<Neon> for Kind<EIGHT> {
    const OFFSET: i32 = 128;

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
