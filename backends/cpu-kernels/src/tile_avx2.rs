//! Integer tiles with AVX2, and with AVX-VNNI on machines that have it but no AVX-512. Follows
//! [`super::tile::portable`] step by step.
//!
//! AVX2 multiplies unsigned by signed bytes and adds neighbours in sixteen bits, where they
//! saturate. So codes of up to five bits are summed over four quads before they are widened,
//! codes of six bits over two, and codes of eight bits as two halves of four.

use std::arch::x86_64::*;

use super::tile::{Codes, Element, FP4_CODES, LINE, SubScales};
use super::tile_walk::{
    self, EIGHT, FIVE, FOUR, FP4, Kind, PlainProducts, Products, QUADS, Registers, SIX, Unpack,
    all_tokens,
};
use super::{TILE_ROWS, Tile, TileInput};

/// Rows in a register.
const ROWS: usize = TILE_ROWS / 2;

/// Four columns of eight rows.
pub type Quad = __m256i;

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        match tile.form.codes {
            Codes::Four => all_tokens::<Avx2, Kind<FOUR>, Narrow<4>>(tile, input, out, stride),
            Codes::Fp4 => all_tokens::<Avx2, Kind<FP4>, Narrow<4>>(tile, input, out, stride),
            Codes::Five => all_tokens::<Avx2, Kind<FIVE>, Narrow<4>>(tile, input, out, stride),
            Codes::Six => all_tokens::<Avx2, Kind<SIX>, Narrow<2>>(tile, input, out, stride),
            Codes::Eight => all_tokens::<Avx2, Kind<EIGHT>, Halved>(tile, input, out, stride),
        }
    }
}

/// # Safety
/// As for [`tile`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub unsafe fn tile_vnni(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { tile_walk::tile::<Avx2, Vnni>(tile, input, out, stride) };
}

pub struct Avx2;

impl Registers for Avx2 {
    const SLICES: usize = 2;
    const EIGHT_TOKENS: bool = false;
    type Floats = __m256;
    type Integers = __m256i;
    type Quad = Quad;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(value: i32) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn load_elements(element: Element, at: *const u8, half: usize) -> __m256 {
        // SAFETY: the caller's promises.
        unsafe {
            let at = at.add(half * ROWS * element.bytes());
            match element {
                Element::F32 => _mm256_loadu_ps(at.cast()),
                Element::F16 => _mm256_cvtph_ps(_mm_loadu_si128(at.cast())),
                Element::Bf16 => {
                    let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()));
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
                }
                Element::HalfE8m0 => {
                    let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast()));
                    let shifted = _mm256_slli_epi32::<23>(wide);
                    let powers = _mm256_max_epu32(shifted, _mm256_set1_epi32(1 << 22));
                    let halved = _mm256_mul_ps(_mm256_castsi256_ps(powers), _mm256_set1_ps(0.5));
                    let broken = _mm256_cmpeq_epi32(wide, _mm256_set1_epi32(255));
                    _mm256_or_ps(halved, _mm256_castsi256_ps(broken))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn times_sub_scales(elements: __m256, sub_scales: SubScales, at: *const u8) -> __m256 {
        // SAFETY: the caller's promises.
        unsafe {
            let wide = match sub_scales {
                SubScales::None => return elements,
                SubScales::Unsigned => _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())),
                SubScales::Signed => _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())),
            };
            _mm256_mul_ps(elements, _mm256_cvtepi32_ps(wide))
        }
    }

    #[inline(always)]
    unsafe fn add_dots(total: __m256, dots: __m256i, scales: __m256, scale: f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scales, total)
        }
    }

    #[inline(always)]
    unsafe fn add_mins(total: __m256, mins: __m256, sum: f32) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_fmadd_ps(mins, _mm256_set1_ps(sum), total) }
    }

    #[inline(always)]
    unsafe fn store(out: *mut f32, total: __m256) {
        // SAFETY: the caller's promises.
        unsafe { _mm256_storeu_ps(out, total) };
    }
}

/// Sixteen bits hold the sums of this many quads.
struct Narrow<const SUMMED: usize>;

impl<const SUMMED: usize> PlainProducts<Avx2> for Narrow<SUMMED> {
    #[inline(always)]
    unsafe fn dots(codes: &[Quad; QUADS], x: *const i8, start: __m256i) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let mut dots = start;
            for (run, codes) in codes.chunks_exact(SUMMED).enumerate() {
                let mut pairs = _mm256_setzero_si256();
                for (i, codes) in codes.iter().enumerate() {
                    let x = broadcast(x, run * SUMMED + i);
                    pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(*codes, x));
                }
                dots = _mm256_add_epi32(dots, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            }
            dots
        }
    }
}

/// Codes of eight bits as their lower and their upper four.
struct Halved;

impl Products<Avx2> for Halved {
    type Codes = [[Quad; QUADS]; 2];

    #[inline(always)]
    unsafe fn prepare(codes: [Quad; QUADS]) -> Self::Codes {
        // SAFETY: the caller's promise.
        unsafe {
            [
                codes.map(|codes| low(codes)),
                codes.map(|codes| high(codes)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dots(codes: &Self::Codes, x: *const i8, start: __m256i) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let mut pairs = [_mm256_setzero_si256(); 2];
            for c in 0..QUADS {
                let x = broadcast(x, c);
                for (pairs, codes) in pairs.iter_mut().zip(codes) {
                    *pairs = _mm256_add_epi16(*pairs, _mm256_maddubs_epi16(codes[c], x));
                }
            }
            let low = _mm256_madd_epi16(pairs[0], _mm256_set1_epi16(1));
            let high = _mm256_madd_epi16(pairs[1], _mm256_set1_epi16(16));
            _mm256_add_epi32(_mm256_add_epi32(low, high), start)
        }
    }
}

/// One instruction for all of it.
struct Vnni;

impl PlainProducts<Avx2> for Vnni {
    #[inline(always)]
    unsafe fn dots(codes: &[Quad; QUADS], x: *const i8, start: __m256i) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let mut dots = start;
            for (c, codes) in codes.iter().enumerate() {
                dots = _mm256_dpbusd_avx_epi32(dots, *codes, broadcast(x, c));
            }
            dots
        }
    }
}

/// Four activations, for each of the rows.
///
/// # Safety
/// Needs the target features; quad `c` must lie at `x`.
#[inline(always)]
pub unsafe fn broadcast(x: *const i8, c: usize) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe { _mm256_set1_epi32(x.cast::<i32>().add(c).read_unaligned()) }
}

impl Unpack<Avx2> for Kind<FOUR> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; a block has four lines.
        unsafe {
            let zero = [_mm256_setzero_si256(); QUADS];
            let (mut first, mut second) = (zero, zero);
            for (c, (first, second)) in first.iter_mut().zip(&mut second).enumerate() {
                let pair = load(at, c, half);
                *first = low(pair);
                *second = high(pair);
            }
            [first, second]
        }
    }
}

impl Unpack<Avx2> for Kind<FP4> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; the table has sixteen bytes.
        unsafe {
            let mut codes = <Kind<FOUR> as Unpack<Avx2>>::unpack(at, half);
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            for code in codes.as_flattened_mut() {
                *code = _mm256_shuffle_epi8(table, *code);
            }
            codes
        }
    }
}

impl Unpack<Avx2> for Kind<FIVE> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after the lines each quad has eight bytes of fifth
        // bits, half of them for half of the rows.
        unsafe {
            let mut codes = <Kind<FOUR> as Unpack<Avx2>>::unpack(at, half);
            let byte_of = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0,
            );
            let bit_of = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let bits = at.add(QUADS * LINE + half * 4);
            for (c, code) in codes.as_flattened_mut().iter_mut().enumerate() {
                let bits = bits.add(c * 8).cast::<i32>().read_unaligned();
                let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte_of);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
                *code = _mm256_or_si256(*code, _mm256_and_si256(set, _mm256_set1_epi8(16)));
            }
            codes
        }
    }
}

impl Unpack<Avx2> for Kind<SIX> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after four lines a block has two of upper bits.
        unsafe {
            let mut codes = <Kind<FOUR> as Unpack<Avx2>>::unpack(at, half);
            for (j, codes) in codes.iter_mut().enumerate() {
                let plane = load(at, QUADS + j, half);
                let shifted = [
                    _mm256_slli_epi16::<4>(plane),
                    _mm256_slli_epi16::<2>(plane),
                    plane,
                    _mm256_srli_epi16::<2>(plane),
                ];
                for (code, shifted) in codes.iter_mut().zip(shifted) {
                    let upper = _mm256_and_si256(shifted, _mm256_set1_epi8(0x30));
                    *code = _mm256_or_si256(*code, upper);
                }
            }
            codes
        }
    }
}

impl Unpack<Avx2> for Kind<EIGHT> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; a block has eight lines.
        unsafe {
            let mut codes = [[_mm256_setzero_si256(); QUADS]; 2];
            for (c, code) in codes.as_flattened_mut().iter_mut().enumerate() {
                *code = load(at, c, half);
            }
            codes
        }
    }
}

/// # Safety
/// Needs the target features; a block with such a line must be at `at`.
#[inline(always)]
unsafe fn load(at: *const u8, line: usize, half: usize) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe { _mm256_loadu_si256(at.add(line * LINE + half * LINE / 2).cast()) }
}

/// # Safety
/// Needs the target features.
#[inline(always)]
unsafe fn low(bytes: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_and_si256(bytes, _mm256_set1_epi8(15)) }
}

/// # Safety
/// Needs the target features.
#[inline(always)]
unsafe fn high(bytes: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { low(_mm256_srli_epi16::<4>(bytes)) }
}
