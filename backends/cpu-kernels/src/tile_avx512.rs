//! Integer tiles with AVX-512 VNNI, which takes four products a lane at once. Follows
//! [`super::tile::portable`] step by step.

use std::arch::asm;
use std::arch::x86_64::*;

use super::tile::{Codes, Element, FP4_CODES, LINE, SubScales};
use super::tile_walk::{
    self, EIGHT, FIVE, FOUR, FP4, Kind, MAX_TILES, Products, QUADS, Registers, SIX, Unpack,
};
use super::{Tile, TileInput, tile_avx2};

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { tile_walk::tiles::<1, Avx512, Vnni>(&[*tile], input, out, stride) };
}

/// Two neighbouring tiles. A prompt's products are bound by loads of activations, which both
/// share.
///
/// # Safety
/// As for [`tile`], with `2 * TILE_ROWS` values.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tile_pair(tiles: &[Tile; 2], input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { tile_walk::tiles::<2, Avx512, Vnni>(tiles, input, out, stride) };
}

/// One tile, or two neighbours.
///
/// # Safety
/// As for [`tile`], with values for all of the tiles.
#[cfg(target_os = "linux")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tiles<const T: usize>(
    tiles: &[Tile; T],
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promises.
    unsafe { tile_walk::tiles::<T, Avx512, Vnni>(tiles, input, out, stride) };
}

#[derive(Clone, Copy)]
struct Avx512;

impl Registers for Avx512 {
    const SLICES: usize = 1;
    type Floats = __m512;
    type Integers = __m512i;
    type Quad = __m512i;

    #[inline(always)]
    unsafe fn prefetch(at: *const u8, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { tile_avx2::prefetch_ahead(at, at.wrapping_add(bytes)) };
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn start(zero: i32, negated_sum: *const i32) -> __m512i {
        // SAFETY: the caller's promises.
        unsafe {
            let sums = broadcast(negated_sum);
            match zero {
                0 => _mm512_setzero_si512(),
                8 => _mm512_slli_epi32::<3>(sums),
                16 => _mm512_slli_epi32::<4>(sums),
                32 => _mm512_slli_epi32::<5>(sums),
                128 => _mm512_slli_epi32::<7>(sums),
                _ => _mm512_mullo_epi32(sums, _mm512_set1_epi32(zero)),
            }
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn load_elements(element: Element, at: *const u8, _all: usize) -> __m512 {
        // SAFETY: the caller's promises.
        unsafe { load_elements(element, at) }
    }

    #[inline(always)]
    unsafe fn times_sub_scales(elements: __m512, sub_scales: SubScales, at: *const u8) -> __m512 {
        // SAFETY: the caller's promises.
        unsafe { times_sub_scales(elements, sub_scales, at) }
    }

    #[inline(always)]
    unsafe fn add_dots(total: __m512, dots: __m512i, scales: __m512, scale: f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let scales = _mm512_mul_ps(scales, _mm512_set1_ps(scale));
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scales, total)
        }
    }

    #[inline(always)]
    unsafe fn add_mins(total: __m512, mins: __m512, sum: f32) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(mins, _mm512_set1_ps(sum), total) }
    }

    #[inline(always)]
    unsafe fn store(out: *mut f32, total: __m512) {
        // SAFETY: the caller's promises.
        unsafe { _mm512_storeu_ps(out, total) };
    }
}

/// The number in all lanes, hidden from the compiler. Otherwise the compiler computes with the
/// scalar and broadcasts the result from a general register, which takes longer than a broadcast
/// from memory.
///
/// # Safety
/// Needs the target features, and a number at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn broadcast(at: *const i32) -> __m512i {
    // SAFETY: the caller's promise; the assembly does nothing.
    unsafe {
        let mut lanes = _mm512_set1_epi32(*at);
        asm!("/* {0} */", inout(zmm_reg) lanes, options(pure, nomem, nostack, preserves_flags));
        lanes
    }
}

struct Vnni;

impl Products<Avx512> for Vnni {
    #[inline(always)]
    unsafe fn dots<const T: usize>(
        codes: [&[__m512i; QUADS]; MAX_TILES],
        x: *const i8,
        start: __m512i,
    ) -> [__m512i; T] {
        let x = x.cast::<i32>();
        let mut dots = [start; T];
        for c in 0..QUADS {
            // SAFETY: the caller's promises.
            unsafe {
                let quad = _mm512_set1_epi32(x.add(c).read_unaligned());
                for (dots, codes) in dots.iter_mut().zip(codes) {
                    *dots = _mm512_dpbusd_epi32(*dots, codes[c], quad);
                }
            }
        }
        dots
    }
}

impl<const CODES: u8> Unpack<Avx512> for Kind<CODES> {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, _all: usize) -> [[__m512i; QUADS]; 2] {
        // SAFETY: the caller's promises.
        let [a, b, c, d, e, f, g, h] = unsafe { unpack_kind::<CODES>(at) };
        [[a, b, c, d], [e, f, g, h]]
    }
}

/// A block's codes, a quad in each register.
///
/// # Safety
/// Needs the target features; a whole block's lines and planes must be at `at`.
#[cfg(target_os = "linux")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn unpack(codes: Codes, at: *const u8) -> [__m512i; 2 * QUADS] {
    // SAFETY: the caller's promises.
    unsafe {
        match codes {
            Codes::Four => unpack_kind::<FOUR>(at),
            Codes::Fp4 => unpack_kind::<FP4>(at),
            Codes::Five => unpack_kind::<FIVE>(at),
            Codes::Six => unpack_kind::<SIX>(at),
            Codes::Eight => unpack_kind::<EIGHT>(at),
        }
    }
}

/// [`unpack`] for one kind of codes.
///
/// # Safety
/// As for [`unpack`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_kind<const CODES: u8>(at: *const u8) -> [__m512i; 2 * QUADS] {
    // SAFETY: the caller's promise.
    let line = |line: usize| unsafe { _mm512_loadu_si512(at.add(line * LINE).cast()) };
    if CODES == EIGHT {
        return std::array::from_fn(line);
    }
    let mask = _mm512_set1_epi8(15);
    let pairs: [__m512i; 4] = std::array::from_fn(line);
    let low: [__m512i; 2 * QUADS] = std::array::from_fn(|c| match pairs.get(c) {
        Some(pair) => _mm512_and_si512(*pair, mask),
        None => _mm512_and_si512(_mm512_srli_epi16::<4>(pairs[c - 4]), mask),
    });
    match CODES {
        FP4 => {
            // SAFETY: the table has sixteen bytes.
            let table = unsafe { _mm_loadu_si128(FP4_CODES.as_ptr().cast()) };
            let table = _mm512_broadcast_i32x4(table);
            low.map(|low| _mm512_shuffle_epi8(table, low))
        }
        FIVE => std::array::from_fn(|c| {
            // SAFETY: the caller's promise: the plane comes after four lines.
            let bits = unsafe { at.add(4 * LINE + c * 8).cast::<u64>().read_unaligned() };
            _mm512_mask_add_epi8(low[c], bits, low[c], _mm512_set1_epi8(16))
        }),
        SIX => {
            let two = _mm512_set1_epi8(0x30);
            std::array::from_fn(|c| {
                let plane = line(4 + c / 4);
                let shifted = match c % 4 {
                    0 => _mm512_slli_epi16::<4>(plane),
                    1 => _mm512_slli_epi16::<2>(plane),
                    2 => plane,
                    _ => _mm512_srli_epi16::<2>(plane),
                };
                // low | shifted & two
                _mm512_ternarylogic_epi32::<0xf8>(low[c], shifted, two)
            })
        }
        _ => low,
    }
}

/// The sixteen rows' elements.
///
/// # Safety
/// They must be at `at`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn load_elements(element: Element, at: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            Element::F32 => _mm512_loadu_ps(at.cast()),
            Element::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())),
            Element::Bf16 => {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
            Element::HalfE8m0 => {
                let wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast()));
                let shifted = _mm512_slli_epi32::<23>(wide);
                let powers = _mm512_max_epu32(shifted, _mm512_set1_epi32(1 << 22));
                let halved = _mm512_mul_ps(_mm512_castsi512_ps(powers), _mm512_set1_ps(0.5));
                let broken = _mm512_cmpeq_epi32_mask(wide, _mm512_set1_epi32(255));
                _mm512_mask_mov_ps(halved, broken, _mm512_set1_ps(f32::NAN))
            }
        }
    }
}

/// # Safety
/// The parts of sixteen rows must be at `at`, if there are any.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn times_sub_scales(elements: __m512, sub_scales: SubScales, at: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    let bytes = || unsafe { _mm_loadu_si128(at.cast()) };
    let wide = match sub_scales {
        SubScales::None => return elements,
        SubScales::Unsigned => _mm512_cvtepu8_epi32(bytes()),
        SubScales::Signed => _mm512_cvtepi8_epi32(bytes()),
    };
    _mm512_mul_ps(elements, _mm512_cvtepi32_ps(wide))
}
