//! Sixteen values as each instruction set holds them.
//!
//! A kernel that is written over [`Register`] and inlined into a function of that instruction
//! set gives the same bits with each: every operation is exactly rounded, lane by lane.

use std::array::from_mut;

use super::attention::{PageStep, Softmax};
use super::float::{self, EXP_RANGE, EXP_TERMS, LN2_HIGH, LN2_LOW, ROUND_MAGIC, fold, fold_max};
use super::{KvElement, LANES, f16_to_f32};

/// [`LANES`] values. Those that are made of an instruction set's own registers are for functions
/// that are built for it.
pub trait Register: Copy {
    /// How many queries' sums the instruction set's registers have room for.
    const QUERIES: usize;
    /// How many sums of each of them.
    const SUMS: usize;

    fn splat(value: f32) -> Self;
    fn load(values: &[f32; LANES]) -> Self;
    fn from_f16(bits: &[u16; LANES]) -> Self;
    fn from_bf16(bits: &[u16; LANES]) -> Self;
    fn from_i8(codes: &[i8; LANES]) -> Self;
    fn array(self) -> [f32; LANES];
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self * factor + added`, rounded once.
    fn fma(self, factor: Self, added: Self) -> Self;
    /// The larger; `other` if either is NaN.
    fn larger(self, other: Self) -> Self;
    /// The smaller; `other` if either is NaN.
    fn smaller(self, other: Self) -> Self;
    /// Times 2^n, in two factors, as n may be one more than the largest exponent. `shifted` is n
    /// plus [`ROUND_MAGIC`].
    fn times_power_of_two(self, shifted: Self) -> Self;

    /// 2^(n - 127), where n is the lowest eight bits.
    fn low_bits_as_exponent(self) -> Self;
    /// The nearest bf16, ties to even, of numbers that are not NaN.
    fn rounded_to_bf16(self) -> Self;

    /// One query over one page, in a function of its own: inlined wherever it is needed, it would
    /// cost the compiler a copy of the kernel each time.
    fn attend_page<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]);

    #[inline(always)]
    fn store(self, out: &mut [f32; LANES]) {
        *out = self.array();
    }

    /// [`exp`](super::float::exp) of each lane.
    #[inline(always)]
    fn exp(self) -> Self {
        let x = Self::splat(EXP_RANGE.0).larger(self);
        let x = Self::splat(EXP_RANGE.1).smaller(x);
        let magic = Self::splat(ROUND_MAGIC);
        let shifted = x.fma(Self::splat(std::f32::consts::LOG2_E), magic);
        let n = shifted.sub(magic);
        let r = n.fma(Self::splat(-LN2_HIGH), x);
        let r = n.fma(Self::splat(-LN2_LOW), r);
        let mut p = Self::splat(EXP_TERMS[0]);
        for term in &EXP_TERMS[1..] {
            p = p.fma(r, Self::splat(*term));
        }
        let p = p.fma(r.mul(r), r).add(Self::splat(1.0));
        p.times_power_of_two(shifted)
    }

    /// The sum of the lanes, halves onto halves.
    #[inline(always)]
    fn fold(self) -> f32 {
        fold(self.array())
    }

    /// The largest of the lanes, none of which is NaN.
    #[inline(always)]
    fn fold_max(self) -> f32 {
        fold_max(self.array())
    }
}

/// Registers that hold pairs of bf16 after they are split.
pub trait SplitPairs: Register {
    /// The upper halves, the lower halves.
    fn from_bf16_pairs(pairs: &[u32; LANES]) -> [Self; 2];
    /// The same with zeros for denormal numbers.
    fn from_normal_bf16_pairs(pairs: &[u32; LANES]) -> [Self; 2];
}

impl Register for [f32; LANES] {
    const QUERIES: usize = 1;
    const SUMS: usize = 2;

    #[inline(never)]
    fn attend_page<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]) {
        step.run::<Self>(from_mut(softmax), &mut [out]);
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        *values
    }

    #[inline(always)]
    fn from_f16(bits: &[u16; LANES]) -> Self {
        bits.map(f16_to_f32)
    }

    #[inline(always)]
    fn from_bf16(bits: &[u16; LANES]) -> Self {
        bits.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    fn from_i8(codes: &[i8; LANES]) -> Self {
        codes.map(f32::from)
    }

    #[inline(always)]
    fn array(self) -> [f32; LANES] {
        self
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] + other[i])
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] - other[i])
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] * other[i])
    }

    #[inline(always)]
    fn fma(self, factor: Self, added: Self) -> Self {
        std::array::from_fn(|i| self[i].mul_add(factor[i], added[i]))
    }

    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        std::array::from_fn(|i| {
            if self[i] > other[i] {
                self[i]
            } else {
                other[i]
            }
        })
    }

    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        std::array::from_fn(|i| {
            if self[i] < other[i] {
                self[i]
            } else {
                other[i]
            }
        })
    }

    #[inline(always)]
    fn times_power_of_two(self, shifted: Self) -> Self {
        std::array::from_fn(|i| float::times_power_of_two(self[i], shifted[i]))
    }

    #[inline(always)]
    fn low_bits_as_exponent(self) -> Self {
        self.map(|value| f32::from_bits(value.to_bits() << 23))
    }

    #[inline(always)]
    fn rounded_to_bf16(self) -> Self {
        self.map(|value| {
            let bits = value.to_bits();
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            f32::from_bits(rounded & 0xffff_0000)
        })
    }
}

impl SplitPairs for [f32; LANES] {
    #[inline(always)]
    fn from_bf16_pairs(pairs: &[u32; LANES]) -> [Self; 2] {
        [
            pairs.map(|pair| f32::from_bits(pair & 0xffff_0000)),
            pairs.map(|pair| f32::from_bits(pair << 16)),
        ]
    }

    #[inline(always)]
    fn from_normal_bf16_pairs(pairs: &[u32; LANES]) -> [Self; 2] {
        let value = |bits: u32| f32::from_bits(if bits & 0x7f80_0000 == 0 { 0 } else { bits });
        [
            pairs.map(|pair| value(pair & 0xffff_0000)),
            pairs.map(|pair| value(pair << 16)),
        ]
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::undocumented_unsafe_blocks,
    reason = "the same for all: only kernels of the instruction set use its registers, and loads \
              and stores are of whole arrays"
)]
mod x86 {
    use std::arch::x86_64::*;

    use super::{KvElement, LANES, PageStep, Register, Softmax, SplitPairs, from_mut};
    use crate::MAX_QUERIES;
    use crate::float::ROUND_MAGIC;

    /// Sixteen lanes to one, halves onto halves; a macro, as closures are not built for the
    /// caller's instruction set.
    macro_rules! fold {
        ($lanes:expr, $of_eight:ident, $of_four:ident) => {{
            let [low, high] = $lanes;
            unsafe {
                let eight = $of_eight(high, low);
                let low = _mm256_castps256_ps128(eight);
                let four = $of_four(_mm256_extractf128_ps::<1>(eight), low);
                let two = $of_four(_mm_movehl_ps(four, four), four);
                let one = $of_four(_mm_shuffle_ps::<1>(two, two), two);
                _mm_cvtss_f32(one)
            }
        }};
    }

    /// An operation on both halves.
    macro_rules! on_halves {
        ($operation:ident, $($operand:expr),+) => {
            Self(unsafe { [$operation($($operand.0[0]),+), $operation($($operand.0[1]),+)] })
        };
    }

    #[derive(Clone, Copy)]
    pub struct Avx512(pub __m512);

    impl Register for Avx512 {
        const QUERIES: usize = MAX_QUERIES;
        const SUMS: usize = 4;

        #[inline(always)]
        fn attend_page<T: KvElement>(
            step: &PageStep<T, 1>,
            softmax: &mut Softmax,
            out: &mut [f32],
        ) {
            #[target_feature(
                enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
            )]
            fn run<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]) {
                step.run::<Avx512>(from_mut(softmax), &mut [out]);
            }
            unsafe { run(step, softmax, out) }
        }

        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            Self(unsafe { _mm512_loadu_ps(values.as_ptr()) })
        }

        #[inline(always)]
        fn from_f16(bits: &[u16; LANES]) -> Self {
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast())) })
        }

        #[inline(always)]
        fn from_bf16(bits: &[u16; LANES]) -> Self {
            Self(unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bits.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
            })
        }

        #[inline(always)]
        fn from_i8(codes: &[i8; LANES]) -> Self {
            Self(unsafe {
                let codes = _mm512_cvtepi8_epi32(_mm_loadu_si128(codes.as_ptr().cast()));
                _mm512_cvtepi32_ps(codes)
            })
        }

        #[inline(always)]
        fn array(self) -> [f32; LANES] {
            let mut array = [0.0; LANES];
            self.store(&mut array);
            array
        }

        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            Self(unsafe { _mm512_sub_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn fma(self, factor: Self, added: Self) -> Self {
            Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, added.0) })
        }

        #[inline(always)]
        fn larger(self, other: Self) -> Self {
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn smaller(self, other: Self) -> Self {
            Self(unsafe { _mm512_min_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn times_power_of_two(self, shifted: Self) -> Self {
            unsafe {
                let magic = _mm512_set1_epi32(ROUND_MAGIC.to_bits() as i32);
                let power = _mm512_sub_epi32(_mm512_castps_si512(shifted.0), magic);
                let half = _mm512_srai_epi32::<1>(power);
                let bias = _mm512_set1_epi32(127);
                let first = _mm512_slli_epi32::<23>(_mm512_add_epi32(half, bias));
                let rest = _mm512_add_epi32(_mm512_sub_epi32(power, half), bias);
                let rest = _mm512_slli_epi32::<23>(rest);
                let product = _mm512_mul_ps(self.0, _mm512_castsi512_ps(first));
                Self(_mm512_mul_ps(product, _mm512_castsi512_ps(rest)))
            }
        }

        #[inline(always)]
        fn low_bits_as_exponent(self) -> Self {
            Self(unsafe {
                let bits = _mm512_castps_si512(self.0);
                _mm512_castsi512_ps(_mm512_slli_epi32::<23>(bits))
            })
        }

        #[inline(always)]
        fn rounded_to_bf16(self) -> Self {
            Self(unsafe {
                let bits = _mm512_castps_si512(self.0);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
                let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
                let rounded = _mm512_and_si512(_mm512_add_epi32(bits, half), upper);
                _mm512_castsi512_ps(rounded)
            })
        }

        #[inline(always)]
        fn fold(self) -> f32 {
            fold!(halves(self), _mm256_add_ps, _mm_add_ps)
        }

        #[inline(always)]
        fn fold_max(self) -> f32 {
            fold!(halves(self), _mm256_max_ps, _mm_max_ps)
        }
    }

    #[derive(Clone, Copy)]
    pub struct Avx2(pub [__m256; 2]);

    impl Register for Avx2 {
        const QUERIES: usize = 2;
        const SUMS: usize = 2;

        #[inline(always)]
        fn attend_page<T: KvElement>(
            step: &PageStep<T, 1>,
            softmax: &mut Softmax,
            out: &mut [f32],
        ) {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn run<T: KvElement>(step: &PageStep<T, 1>, softmax: &mut Softmax, out: &mut [f32]) {
                step.run::<Avx2>(from_mut(softmax), &mut [out]);
            }
            unsafe { run(step, softmax, out) }
        }

        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self([unsafe { _mm256_set1_ps(value) }; 2])
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            let start = values.as_ptr();
            Self(unsafe { [_mm256_loadu_ps(start), _mm256_loadu_ps(start.add(8))] })
        }

        #[inline(always)]
        fn from_f16(bits: &[u16; LANES]) -> Self {
            let start = bits.as_ptr();
            Self(unsafe {
                [
                    _mm256_cvtph_ps(_mm_loadu_si128(start.cast())),
                    _mm256_cvtph_ps(_mm_loadu_si128(start.add(8).cast())),
                ]
            })
        }

        #[inline(always)]
        fn from_bf16(bits: &[u16; LANES]) -> Self {
            let start = bits.as_ptr();
            Self(unsafe {
                let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.cast()));
                let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(start.add(8).cast()));
                [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ]
            })
        }

        #[inline(always)]
        fn from_i8(codes: &[i8; LANES]) -> Self {
            let start = codes.as_ptr();
            Self(unsafe {
                let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(start.cast()));
                let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(start.add(8).cast()));
                [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
            })
        }

        #[inline(always)]
        fn array(self) -> [f32; LANES] {
            let mut array = [0.0; LANES];
            for (register, out) in self.0.iter().zip(array.as_chunks_mut::<8>().0) {
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), *register) };
            }
            array
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            on_halves!(_mm256_add_ps, self, other)
        }

        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            on_halves!(_mm256_sub_ps, self, other)
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            on_halves!(_mm256_mul_ps, self, other)
        }

        #[inline(always)]
        fn fma(self, factor: Self, added: Self) -> Self {
            on_halves!(_mm256_fmadd_ps, self, factor, added)
        }

        #[inline(always)]
        fn larger(self, other: Self) -> Self {
            on_halves!(_mm256_max_ps, self, other)
        }

        #[inline(always)]
        fn smaller(self, other: Self) -> Self {
            on_halves!(_mm256_min_ps, self, other)
        }

        #[inline(always)]
        fn times_power_of_two(self, shifted: Self) -> Self {
            on_halves!(times_power_of_two, self, shifted)
        }

        #[inline(always)]
        fn low_bits_as_exponent(self) -> Self {
            on_halves!(low_bits_as_exponent, self)
        }

        #[inline(always)]
        fn rounded_to_bf16(self) -> Self {
            on_halves!(rounded_to_bf16, self)
        }

        #[inline(always)]
        fn fold(self) -> f32 {
            fold!(self.0, _mm256_add_ps, _mm_add_ps)
        }

        #[inline(always)]
        fn fold_max(self) -> f32 {
            fold!(self.0, _mm256_max_ps, _mm_max_ps)
        }
    }

    impl SplitPairs for Avx2 {
        #[inline(always)]
        fn from_bf16_pairs(pairs: &[u32; LANES]) -> [Self; 2] {
            unsafe { split_pairs(load_pairs(pairs)) }
        }

        #[inline(always)]
        fn from_normal_bf16_pairs(pairs: &[u32; LANES]) -> [Self; 2] {
            unsafe {
                let [low, high] = load_pairs(pairs);
                split_pairs([without_denormals(low), without_denormals(high)])
            }
        }
    }

    #[inline(always)]
    unsafe fn load_pairs(pairs: &[u32; LANES]) -> [__m256i; 2] {
        let start = pairs.as_ptr();
        unsafe {
            [
                _mm256_loadu_si256(start.cast()),
                _mm256_loadu_si256(start.add(8).cast()),
            ]
        }
    }

    /// The upper halves and the lower halves of pairs of bf16.
    #[inline(always)]
    unsafe fn split_pairs([low, high]: [__m256i; 2]) -> [Avx2; 2] {
        unsafe {
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                Avx2([
                    _mm256_castsi256_ps(_mm256_and_si256(low, upper)),
                    _mm256_castsi256_ps(_mm256_and_si256(high, upper)),
                ]),
                Avx2([
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ]),
            ]
        }
    }

    /// bf16 numbers with zeros for those whose exponent is zero.
    #[inline(always)]
    unsafe fn without_denormals(numbers: __m256i) -> __m256i {
        unsafe {
            let magnitudes = _mm256_and_si256(numbers, _mm256_set1_epi16(0x7fff));
            let normal = _mm256_cmpgt_epi16(magnitudes, _mm256_set1_epi16(0x7f));
            _mm256_and_si256(numbers, normal)
        }
    }

    #[inline(always)]
    unsafe fn low_bits_as_exponent(values: __m256) -> __m256 {
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(values))) }
    }

    #[inline(always)]
    unsafe fn rounded_to_bf16(values: __m256) -> __m256 {
        unsafe {
            let bits = _mm256_castps_si256(values);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let upper = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_add_epi32(bits, half), upper))
        }
    }

    #[inline(always)]
    unsafe fn times_power_of_two(values: __m256, shifted: __m256) -> __m256 {
        unsafe {
            let magic = _mm256_set1_epi32(ROUND_MAGIC.to_bits() as i32);
            let power = _mm256_sub_epi32(_mm256_castps_si256(shifted), magic);
            let half = _mm256_srai_epi32::<1>(power);
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
            let rest = _mm256_add_epi32(_mm256_sub_epi32(power, half), bias);
            let rest = _mm256_slli_epi32::<23>(rest);
            let product = _mm256_mul_ps(values, _mm256_castsi256_ps(first));
            _mm256_mul_ps(product, _mm256_castsi256_ps(rest))
        }
    }

    #[inline(always)]
    fn halves(register: Avx512) -> [__m256; 2] {
        unsafe {
            [
                _mm512_castps512_ps256(register.0),
                _mm512_extractf32x8_ps::<1>(register.0),
            ]
        }
    }
}
