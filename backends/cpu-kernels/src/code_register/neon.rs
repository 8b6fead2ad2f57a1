//! Codes in NEON's registers. Floats stay arrays, as in the portable kernels: every such machine
//! has NEON, and the compiler uses it for them.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "every machine of this architecture has NEON, only kernels for dot products use them, \
              and only the array that a function is handed is read"
)]

use std::arch::aarch64::*;
use std::arch::asm;
use std::array::{from_fn, from_mut};

use super::{CodeRegister, UNIT, centroids};
use crate::attention::{self, AttendArgs, AttendQuery, PageStep, Softmax};
use crate::register::Register;
use crate::{KvElement, LANES};

pub fn attend_neon(args: &AttendArgs<u8>, queries: &mut [AttendQuery]) {
    attention::attend::<Neon<false>, u8>(args, queries);
}

#[target_feature(enable = "neon,dotprod")]
pub fn attend_dotprod(args: &AttendArgs<u8>, queries: &mut [AttendQuery]) {
    attention::attend::<Neon<true>, u8>(args, queries);
}

/// `DOTPROD`: with the dot products of ARMv8.2.
#[derive(Clone, Copy)]
struct Neon<const DOTPROD: bool>([f32; LANES]);

type Floats = [f32; LANES];

impl<const DOTPROD: bool> Register for Neon<DOTPROD> {
    const QUERIES: usize = Floats::QUERIES;
    const SUMS: usize = Floats::SUMS;

    #[inline(always)]
    fn attend_page<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]) {
        #[inline(never)]
        fn widened<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]) {
            step.run::<Neon<false>>(from_mut(softmax), &mut [out]);
        }
        #[target_feature(enable = "neon,dotprod")]
        fn dotprod<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]) {
            step.run::<Neon<true>>(from_mut(softmax), &mut [out]);
        }
        if DOTPROD {
            unsafe { dotprod(step, softmax, out) };
        } else {
            widened(step, softmax, out);
        }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self(Floats::splat(value))
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        Self(Floats::load(values))
    }

    #[inline(always)]
    fn from_f16(bits: &[u16; LANES]) -> Self {
        Self(Floats::from_f16(bits))
    }

    #[inline(always)]
    fn from_bf16(bits: &[u16; LANES]) -> Self {
        Self(Floats::from_bf16(bits))
    }

    #[inline(always)]
    fn from_i8(codes: &[i8; LANES]) -> Self {
        Self(Floats::from_i8(codes))
    }

    #[inline(always)]
    fn array(self) -> [f32; LANES] {
        self.0
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0.add(other.0))
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(self.0.sub(other.0))
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Self(self.0.mul(other.0))
    }

    #[inline(always)]
    fn fma(self, factor: Self, added: Self) -> Self {
        Self(self.0.fma(factor.0, added.0))
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        Self(self.0.larger(other.0))
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        Self(self.0.smaller(other.0))
    }

    #[inline(always)]
    fn times_power_of_two(self, shifted: Self) -> Self {
        Self(self.0.times_power_of_two(shifted.0))
    }

    #[inline(always)]
    fn low_bits_as_exponent(self) -> Self {
        Self(self.0.low_bits_as_exponent())
    }

    #[inline(always)]
    fn rounded_to_bf16(self) -> Self {
        Self(self.0.rounded_to_bf16())
    }
}

/// Registers of a unit, and of its sums.
const QUARTERS: usize = 4;

impl<const DOTPROD: bool> CodeRegister for Neon<DOTPROD> {
    type Codes = [int8x16_t; QUARTERS];
    type Sums = [int32x4_t; QUARTERS];

    #[inline(always)]
    fn unit<const BITS: usize, const U: usize>(tile: &[u8]) -> Self::Codes {
        let lines = tile.as_chunks::<UNIT>().0;
        from_fn(|quarter| unsafe {
            let indices = match BITS {
                8 => {
                    let codes = load(&lines[U], quarter);
                    return vreinterpretq_s8_u8(veorq_u8(codes, vdupq_n_u8(0x80)));
                }
                4 => masked_right(load(&lines[U / 2], quarter), U % 2 * 4, 15),
                3 => {
                    let low = masked_right(load(&lines[U / 4], quarter), U % 4 * 2, 3);
                    let high = masked_right(load(&lines[2], quarter), U, 1);
                    vorrq_u8(low, vshlq_n_u8::<2>(high))
                }
                _ => masked_right(load(&lines[U / 4], quarter), U % 4 * 2, 3),
            };
            vqtbl1q_s8(vld1q_s8(centroids::<BITS>().as_ptr()), indices)
        })
    }

    #[inline(always)]
    fn start(_total: i32) -> Self::Sums {
        unsafe { [vdupq_n_s32(0); QUARTERS] }
    }

    /// Pairs of products fit into 16 bits: 2 · 128 · 127.
    #[inline(always)]
    fn dot(mut sums: Self::Sums, codes: Self::Codes, four: i32) -> Self::Sums {
        // A closure would not be built for dot products.
        for (sums, codes) in sums.iter_mut().zip(codes) {
            unsafe {
                let four = vreinterpretq_s8_s32(vdupq_n_s32(four));
                *sums = if DOTPROD {
                    sdot(*sums, codes, four)
                } else {
                    let first = vmull_s8(vget_low_s8(codes), vget_low_s8(four));
                    let second = vmull_high_s8(codes, four);
                    vpadalq_s16(*sums, vpaddq_s16(first, second))
                };
            }
        }
        sums
    }

    #[inline(always)]
    fn dot_positive(sums: Self::Sums, codes: Self::Codes, four: i32) -> Self::Sums {
        Self::dot(sums, codes, four)
    }

    #[inline(always)]
    fn floats(sums: Self::Sums) -> Self {
        let mut floats = [0.0; LANES];
        for (sums, floats) in sums.into_iter().zip(floats.as_chunks_mut::<4>().0) {
            unsafe { vst1q_f32(floats.as_mut_ptr(), vcvtq_f32_s32(sums)) };
        }
        Self(floats)
    }

    #[inline(always)]
    fn joined(high: Self::Sums, low: Self::Sums) -> Self {
        Self::floats(from_fn(|quarter| unsafe {
            vaddq_s32(vshlq_n_s32::<7>(high[quarter]), low[quarter])
        }))
    }
}

/// Assembly, since the intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, codes: int8x16_t, four: int8x16_t) -> int32x4_t {
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {codes:v}.16b, {four:v}.16b",
            sums = inout(vreg) sums,
            codes = in(vreg) codes,
            four = in(vreg) four,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}

#[inline(always)]
unsafe fn load(line: &[u8; UNIT], quarter: usize) -> uint8x16_t {
    let quarters = line.as_chunks::<{ UNIT / QUARTERS }>().0;
    unsafe { vld1q_u8(quarters[quarter].as_ptr()) }
}

#[inline(always)]
unsafe fn masked_right(line: uint8x16_t, bits: usize, mask: u8) -> uint8x16_t {
    unsafe { vandq_u8(vshlq_u8(line, vdupq_n_s8(-(bits as i8))), vdupq_n_u8(mask)) }
}
