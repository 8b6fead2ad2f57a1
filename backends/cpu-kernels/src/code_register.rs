//! Units of codes and sums of their products, as each instruction set holds them. All are exact.

use super::float::ROUND_MAGIC;
use super::kv_codes::{CENTROIDS_2, CENTROIDS_3, CENTROIDS_4, UNIT};
use super::register::Register;
use super::{LANES, PAGE};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::{attend_dotprod, attend_neon};

/// Products of codes with bytes, four neighbours added up.
pub trait CodeRegister: Register {
    /// The [`UNIT`] codes of a unit, as bytes.
    type Codes: Copy;
    /// [`LANES`] sums.
    type Sums: Copy;

    /// Unit `U` of a tile of codes of `BITS` bits.
    fn unit<const BITS: usize, const U: usize>(tile: &[u8]) -> Self::Codes;
    /// Nothing added up yet, of operands that add up to `total`.
    fn start(total: i32) -> Self::Sums;
    /// Adds the products with these four signed bytes, none of them -128.
    fn dot(sums: Self::Sums, codes: Self::Codes, four: i32) -> Self::Sums;
    /// The same if no byte is negative.
    fn dot_positive(sums: Self::Sums, codes: Self::Codes, four: i32) -> Self::Sums;
    fn floats(sums: Self::Sums) -> Self;
    /// `high * 128 + low`
    fn joined(high: Self::Sums, low: Self::Sums) -> Self;

    /// Rounds a page's weights, of which none is negative and the largest is `largest`.
    #[inline(always)]
    fn round_weights(weights: [Self; 2], largest: f32) -> WeightCodes {
        let inverse = WEIGHT_MAX / largest;
        let mut codes = WeightCodes::ZERO;
        let halves = [weights[0].array(), weights[1].array()];
        for (half, weights) in halves.into_iter().enumerate() {
            for (i, weight) in weights.into_iter().enumerate() {
                let whole = round(weight * inverse);
                let (high, low) = (whole >> 7 & 127, whole & 127);
                codes.high[half * LANES + i] = high as i8;
                codes.low[half * LANES + i] = low as i8;
                codes.totals[0] += high;
                codes.totals[1] += low;
            }
        }
        codes.factor = largest * (1.0 / WEIGHT_MAX);
        codes
    }
}

/// The whole number that a page's largest weight becomes.
const WEIGHT_MAX: f32 = 16383.0;

/// A page's weights in whole numbers: `high * 128 + low`.
#[derive(Clone, Copy)]
pub struct WeightCodes {
    pub high: [i8; PAGE],
    pub low: [i8; PAGE],
    /// The sums of both.
    pub totals: [i32; 2],
    pub factor: f32,
}

impl WeightCodes {
    pub const ZERO: Self = Self {
        high: [0; PAGE],
        low: [0; PAGE],
        totals: [0; 2],
        factor: 0.0,
    };
}

/// The nearest whole number, if there is one below 2²².
#[inline(always)]
pub(super) fn round(value: f32) -> i32 {
    let bits = (value + ROUND_MAGIC).to_bits() as i32;
    bits.wrapping_sub(ROUND_MAGIC.to_bits() as i32)
}

/// The centroids of `BITS` bits.
const fn centroids<const BITS: usize>() -> &'static [i8; 16] {
    match BITS {
        4 => &CENTROIDS_4,
        3 => &CENTROIDS_3,
        _ => &CENTROIDS_2,
    }
}

impl CodeRegister for [f32; LANES] {
    type Codes = [i8; UNIT];
    type Sums = [i32; LANES];

    #[inline(always)]
    fn unit<const BITS: usize, const U: usize>(tile: &[u8]) -> [i8; UNIT] {
        let lines = tile.as_chunks::<UNIT>().0;
        let table = centroids::<BITS>();
        match BITS {
            8 => lines[U].map(|byte| (byte ^ 0x80) as i8),
            4 => lines[U / 2].map(|byte| table[usize::from(byte >> (U % 2 * 4) & 15)]),
            3 => std::array::from_fn(|i| {
                let low = lines[U / 4][i] >> (U % 4 * 2) & 3;
                table[usize::from(low | (lines[2][i] >> U & 1) << 2)]
            }),
            _ => lines[U / 4].map(|byte| table[usize::from(byte >> (U % 4 * 2) & 3)]),
        }
    }

    #[inline(always)]
    fn start(_total: i32) -> [i32; LANES] {
        [0; LANES]
    }

    #[inline(always)]
    fn dot(sums: [i32; LANES], codes: [i8; UNIT], four: i32) -> [i32; LANES] {
        let four = four.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|i| {
            let products = (0..4).map(|j| i32::from(codes[4 * i + j]) * four[j]);
            sums[i] + products.sum::<i32>()
        })
    }

    #[inline(always)]
    fn dot_positive(sums: [i32; LANES], codes: [i8; UNIT], four: i32) -> [i32; LANES] {
        Self::dot(sums, codes, four)
    }

    #[inline(always)]
    fn floats(sums: [i32; LANES]) -> Self {
        sums.map(|sum| sum as f32)
    }

    #[inline(always)]
    fn joined(high: [i32; LANES], low: [i32; LANES]) -> Self {
        std::array::from_fn(|i| (high[i] * 128 + low[i]) as f32)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![expect(
        clippy::undocumented_unsafe_blocks,
        reason = "every function is inlined into one that is built for its instruction set, and \
                  reads only the array it is handed"
    )]

    use std::arch::x86_64::*;

    use super::{CodeRegister, UNIT, WEIGHT_MAX, WeightCodes, centroids};
    use crate::LANES;
    use crate::float::ROUND_MAGIC;
    use crate::register::{Avx2, Avx512};

    impl CodeRegister for Avx512 {
        /// Moved up by 128: the instruction multiplies unsigned by signed bytes.
        type Codes = __m512i;
        type Sums = __m512i;

        #[inline(always)]
        fn unit<const BITS: usize, const U: usize>(tile: &[u8]) -> __m512i {
            let lines = tile.as_chunks::<UNIT>().0;
            unsafe {
                let indices = match BITS {
                    8 => return load_512(&lines[U]),
                    4 => {
                        let indices = right_512(load_512(&lines[U / 2]), U % 2 * 4);
                        _mm512_and_si512(indices, _mm512_set1_epi8(15))
                    }
                    3 => {
                        let low = right_512(load_512(&lines[U / 4]), U % 4 * 2);
                        let high = load_512(&lines[2]);
                        let high = if U < 2 {
                            _mm512_sll_epi16(high, _mm_cvtsi32_si128(2 - U as i32))
                        } else {
                            right_512(high, U - 2)
                        };
                        // The lower two bits of the one, the others of the other.
                        const CHOOSE: i32 = 0xca;
                        let lower = _mm512_set1_epi8(3);
                        let indices = _mm512_ternarylogic_epi32::<CHOOSE>(lower, low, high);
                        _mm512_and_si512(indices, _mm512_set1_epi8(7))
                    }
                    _ => {
                        let indices = right_512(load_512(&lines[U / 4]), U % 4 * 2);
                        _mm512_and_si512(indices, _mm512_set1_epi8(3))
                    }
                };
                let table = _mm_loadu_si128(centroids::<BITS>().as_ptr().cast());
                let table = _mm_xor_si128(table, _mm_set1_epi8(-128));
                _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), indices)
            }
        }

        #[inline(always)]
        fn start(total: i32) -> __m512i {
            unsafe { _mm512_set1_epi32(-128 * total) }
        }

        #[inline(always)]
        fn dot(sums: __m512i, codes: __m512i, four: i32) -> __m512i {
            unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(four)) }
        }

        #[inline(always)]
        fn dot_positive(sums: __m512i, codes: __m512i, four: i32) -> __m512i {
            Self::dot(sums, codes, four)
        }

        #[inline(always)]
        fn floats(sums: __m512i) -> Self {
            Self(unsafe { _mm512_cvtepi32_ps(sums) })
        }

        #[inline(always)]
        fn joined(high: __m512i, low: __m512i) -> Self {
            Self(unsafe {
                let sums = _mm512_add_epi32(_mm512_slli_epi32::<7>(high), low);
                _mm512_cvtepi32_ps(sums)
            })
        }

        #[inline(always)]
        fn round_weights(weights: [Self; 2], largest: f32) -> WeightCodes {
            let mut codes = WeightCodes {
                factor: largest * (1.0 / WEIGHT_MAX),
                ..WeightCodes::ZERO
            };
            unsafe {
                let inverse = _mm512_set1_ps(WEIGHT_MAX / largest);
                let mask = _mm512_set1_epi32(127);
                let first = rounded_512(weights[0].0, inverse);
                let second = rounded_512(weights[1].0, inverse);
                let high = [
                    _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_srli_epi32::<7>(first), mask)),
                    _mm512_cvtepi32_epi8(_mm512_and_si512(_mm512_srli_epi32::<7>(second), mask)),
                ];
                let low = [
                    _mm512_cvtepi32_epi8(_mm512_and_si512(first, mask)),
                    _mm512_cvtepi32_epi8(_mm512_and_si512(second, mask)),
                ];
                for (bytes, out) in [(high, &mut codes.high), (low, &mut codes.low)] {
                    _mm_storeu_si128(out.as_mut_ptr().cast(), bytes[0]);
                    _mm_storeu_si128(out.as_mut_ptr().add(LANES).cast(), bytes[1]);
                }
                codes.totals = [total(high), total(low)];
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn rounded_512(weights: __m512, inverse: __m512) -> __m512i {
        unsafe {
            let magic = _mm512_set1_ps(ROUND_MAGIC);
            let shifted = _mm512_add_ps(_mm512_mul_ps(weights, inverse), magic);
            _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(magic))
        }
    }

    /// The sum of a page's bytes, none of which is negative.
    #[inline(always)]
    unsafe fn total(bytes: [__m128i; 2]) -> i32 {
        unsafe {
            let zero = _mm_setzero_si128();
            let sums = _mm_add_epi64(_mm_sad_epu8(bytes[0], zero), _mm_sad_epu8(bytes[1], zero));
            _mm_cvtsi128_si32(_mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums)))
        }
    }

    impl CodeRegister for Avx2 {
        type Codes = [__m256i; 2];
        type Sums = [__m256i; 2];

        #[inline(always)]
        fn unit<const BITS: usize, const U: usize>(tile: &[u8]) -> [__m256i; 2] {
            unsafe { [half_unit::<BITS, U>(tile, 0), half_unit::<BITS, U>(tile, 1)] }
        }

        #[inline(always)]
        fn start(_total: i32) -> [__m256i; 2] {
            unsafe { [_mm256_setzero_si256(); 2] }
        }

        /// Pairs of products fit into 16 bits: 2 · 128 · 127.
        #[inline(always)]
        fn dot(sums: [__m256i; 2], codes: [__m256i; 2], four: i32) -> [__m256i; 2] {
            unsafe {
                let four = _mm256_set1_epi32(four);
                let signed = [
                    _mm256_sign_epi8(four, codes[0]),
                    _mm256_sign_epi8(four, codes[1]),
                ];
                [
                    add_products(sums[0], _mm256_abs_epi8(codes[0]), signed[0]),
                    add_products(sums[1], _mm256_abs_epi8(codes[1]), signed[1]),
                ]
            }
        }

        #[inline(always)]
        fn dot_positive(sums: [__m256i; 2], codes: [__m256i; 2], four: i32) -> [__m256i; 2] {
            unsafe {
                let four = _mm256_set1_epi32(four);
                [
                    add_products(sums[0], four, codes[0]),
                    add_products(sums[1], four, codes[1]),
                ]
            }
        }

        #[inline(always)]
        fn floats(sums: [__m256i; 2]) -> Self {
            Self(unsafe { [_mm256_cvtepi32_ps(sums[0]), _mm256_cvtepi32_ps(sums[1])] })
        }

        #[inline(always)]
        fn joined(high: [__m256i; 2], low: [__m256i; 2]) -> Self {
            Self::floats(unsafe {
                [
                    _mm256_add_epi32(_mm256_slli_epi32::<7>(high[0]), low[0]),
                    _mm256_add_epi32(_mm256_slli_epi32::<7>(high[1]), low[1]),
                ]
            })
        }
    }
    #[inline(always)]
    unsafe fn load_512(line: &[u8; UNIT]) -> __m512i {
        unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
    }

    /// Shifts pairs of bytes right.
    #[inline(always)]
    unsafe fn right_512(line: __m512i, bits: usize) -> __m512i {
        unsafe { _mm512_srl_epi16(line, _mm_cvtsi32_si128(bits as i32)) }
    }

    /// Half of unit `U`.
    #[inline(always)]
    unsafe fn half_unit<const BITS: usize, const U: usize>(tile: &[u8], half: usize) -> __m256i {
        let lines = tile.as_chunks::<UNIT>().0;
        unsafe {
            let indices = match BITS {
                8 => return _mm256_xor_si256(load_256(&lines[U], half), _mm256_set1_epi8(-128)),
                4 => masked_right(load_256(&lines[U / 2], half), U % 2 * 4, 15),
                3 => {
                    let low = masked_right(load_256(&lines[U / 4], half), U % 4 * 2, 3);
                    let high = load_256(&lines[2], half);
                    let high = if U < 2 {
                        let high = _mm256_sll_epi16(high, _mm_cvtsi32_si128(2 - U as i32));
                        _mm256_and_si256(high, _mm256_set1_epi8(4))
                    } else {
                        masked_right(high, U - 2, 4)
                    };
                    _mm256_or_si256(low, high)
                }
                _ => masked_right(load_256(&lines[U / 4], half), U % 4 * 2, 3),
            };
            let table = _mm_loadu_si128(centroids::<BITS>().as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices)
        }
    }

    #[inline(always)]
    unsafe fn load_256(line: &[u8; UNIT], half: usize) -> __m256i {
        let halves = line.as_chunks::<{ UNIT / 2 }>().0;
        unsafe { _mm256_loadu_si256(halves[half].as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn masked_right(line: __m256i, bits: usize, mask: i8) -> __m256i {
        unsafe {
            let line = _mm256_srl_epi16(line, _mm_cvtsi32_si128(bits as i32));
            _mm256_and_si256(line, _mm256_set1_epi8(mask))
        }
    }

    /// Unsigned times signed bytes, whose pairs of products must fit into 16 bits.
    #[inline(always)]
    unsafe fn add_products(sums: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        unsafe {
            let pairs = _mm256_maddubs_epi16(unsigned, signed);
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
}
