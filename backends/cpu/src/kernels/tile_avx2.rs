//! Integer tiles with AVX2, and with AVX-VNNI where a machine has that and no AVX-512. Follows
//! [`super::tile::portable`] step by step.
//!
//! AVX2 multiplies unsigned by signed bytes and adds neighbours in sixteen bits, where they
//! saturate. So codes of up to five bits are summed over four quads before they are widened,
//! codes of six bits over two, and codes of eight bits as two halves of four.

use std::arch::x86_64::*;

use super::tile::{Codes, Element, FP4_CODES, Form, LINE, Parts};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Rows in a register.
const ROWS: usize = TILE_ROWS / 2;
/// Quads in a [`SUM_GROUP`], the columns that are multiplied together.
pub const QUADS: usize = SUM_GROUP / 4;

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
            Codes::Four => all_tokens::<Four, Narrow<4>>(tile, input, out, stride),
            Codes::Fp4 => all_tokens::<Fp4, Narrow<4>>(tile, input, out, stride),
            Codes::Five => all_tokens::<Five, Narrow<4>>(tile, input, out, stride),
            Codes::Six => all_tokens::<Six, Narrow<2>>(tile, input, out, stride),
            Codes::Eight => all_tokens::<Eight, Halved>(tile, input, out, stride),
        }
    }
}

/// # Safety
/// As for [`tile`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub unsafe fn tile_vnni(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { every_code::<Vnni>(tile, input, out, stride) };
}

/// # Safety
/// As for [`tile`], with the target features that `P` needs.
#[inline(always)]
pub unsafe fn every_code<P: Products>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
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
/// As for [`tile`]; the tile's codes must be `U`'s, and such as `P` multiplies exactly.
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
        let mut totals = [[_mm256_setzero_ps(); 2]; N];
        let mut elements = [[_mm256_setzero_ps(); 2]; 2];
        for block in 0..input.cols / GROUP {
            if left_in_run == 0 {
                left_in_run = form.run;
                elements = run_elements::<MINS>(form, at);
                at = at.add(scale_bytes + min_bytes);
            }
            left_in_run -= 1;
            let parts = at.add(lines + planes);
            for half in 0..2 {
                let [scales, mins] = elements[half];
                // Past the tile's end where there are no parts, and then not read.
                let part = |first| parts.wrapping_add(first + half * ROWS);
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
                let [codes, later_codes] = U::unpack(at, half);
                let (codes, later_codes) = (P::prepare(codes), P::prepare(later_codes));
                for (n, totals) in totals.iter_mut().enumerate() {
                    let first = (token + n) * input.cols + block * GROUP;
                    let x = input.codes.as_ptr().add(first);
                    let sums = input.sums.as_ptr().add(first / SUM_GROUP);
                    let dots = P::dots(&codes, x);
                    let later_dots = P::dots(&later_codes, x.add(SUM_GROUP));
                    let signed =
                        |dots, sum| _mm256_sub_epi32(dots, _mm256_set1_epi32(form.zero * sum));
                    let scale = _mm256_set1_ps(*input.scales.as_ptr().add(first / GROUP));
                    let weigh = |dots, scales, total| {
                        let scales = _mm256_mul_ps(scales, scale);
                        _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), scales, total)
                    };
                    let total = &mut totals[half];
                    if SPLIT {
                        *total = weigh(signed(dots, *sums), scales, *total);
                        let later_dots = signed(later_dots, *sums.add(1));
                        *total = weigh(later_dots, later_scales, *total);
                    } else {
                        let dots = _mm256_add_epi32(dots, later_dots);
                        let dots = signed(dots, *sums + *sums.add(1));
                        *total = weigh(dots, scales, *total);
                    }
                    if MINS {
                        let sum = _mm256_set1_ps(*input.scaled_sums.as_ptr().add(first / GROUP));
                        *total = _mm256_fmadd_ps(mins, sum, *total);
                    }
                }
            }
            at = parts.add(part_bytes * if MINS { 2 } else { 1 });
        }
        for (n, totals) in totals.iter().enumerate() {
            let out = out.add((token + n) * stride);
            _mm256_storeu_ps(out, totals[0]);
            _mm256_storeu_ps(out.add(ROWS), totals[1]);
        }
    }
}

/// The scales' and the minimums' elements of a run, for each half of the rows.
///
/// # Safety
/// Needs the target features; the run must begin at `at`.
#[inline(always)]
unsafe fn run_elements<const MINS: bool>(form: &Form, at: *const u8) -> [[__m256; 2]; 2] {
    // SAFETY: the caller's promises.
    unsafe {
        [0, 1].map(|half| {
            let scales = load_elements(form.scale, at, half);
            match form.min {
                Some(min) if MINS => {
                    let mins = at.add(form.element_bytes().0);
                    [scales, load_elements(min, mins, half)]
                }
                _ => [scales; 2],
            }
        })
    }
}

/// Half of the sixteen rows' elements.
///
/// # Safety
/// Needs the target features; the sixteen must be at `at`.
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

/// # Safety
/// Needs the target features; the parts of eight rows must be at `at`, if there are any.
#[inline(always)]
unsafe fn times_parts(elements: __m256, parts: Parts, at: *const u8) -> __m256 {
    // SAFETY: the caller's promises.
    unsafe {
        let wide = match parts {
            Parts::None => return elements,
            Parts::Unsigned => _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())),
            Parts::Signed => _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())),
        };
        _mm256_mul_ps(elements, _mm256_cvtepi32_ps(wide))
    }
}

/// How codes of eight rows are multiplied by activations.
pub trait Products {
    /// A [`SUM_GROUP`] of codes, as the products need them.
    type Codes;

    /// # Safety
    /// Needs the target features.
    unsafe fn prepare(codes: [Quad; QUADS]) -> Self::Codes;

    /// # Safety
    /// Needs the target features; a [`SUM_GROUP`] of activations must lie at `x`.
    unsafe fn dots(codes: &Self::Codes, x: *const i8) -> __m256i;
}

/// Sixteen bits hold the sums of this many quads.
struct Narrow<const SUMMED: usize>;

impl<const SUMMED: usize> Products for Narrow<SUMMED> {
    type Codes = [Quad; QUADS];

    #[inline(always)]
    unsafe fn prepare(codes: [Quad; QUADS]) -> Self::Codes {
        codes
    }

    #[inline(always)]
    unsafe fn dots(codes: &Self::Codes, x: *const i8) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let mut dots = _mm256_setzero_si256();
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

impl Products for Halved {
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
    unsafe fn dots(codes: &Self::Codes, x: *const i8) -> __m256i {
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
            _mm256_add_epi32(low, _mm256_madd_epi16(pairs[1], _mm256_set1_epi16(16)))
        }
    }
}

/// One instruction for all of it.
struct Vnni;

impl Products for Vnni {
    type Codes = [Quad; QUADS];

    #[inline(always)]
    unsafe fn prepare(codes: [Quad; QUADS]) -> Self::Codes {
        codes
    }

    #[inline(always)]
    unsafe fn dots(codes: &Self::Codes, x: *const i8) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            let mut dots = _mm256_setzero_si256();
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

/// How a kind of [`Codes`] is read.
trait Unpack {
    /// The codes of half the rows of a block, for each of its [`SUM_GROUP`]s.
    ///
    /// # Safety
    /// Needs the target features; a whole block's lines and planes must be at `at`, with codes of
    /// this kind.
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2];
}

struct Four;
struct Fp4;
struct Five;
struct Six;
struct Eight;

impl Unpack for Four {
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

impl Unpack for Fp4 {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; the table has sixteen bytes.
        unsafe {
            let mut codes = Four::unpack(at, half);
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            for code in codes.as_flattened_mut() {
                *code = _mm256_shuffle_epi8(table, *code);
            }
            codes
        }
    }
}

impl Unpack for Five {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after the lines each quad has eight bytes of fifth
        // bits, half of them for half of the rows.
        unsafe {
            let mut codes = Four::unpack(at, half);
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

impl Unpack for Six {
    #[inline(always)]
    unsafe fn unpack(at: *const u8, half: usize) -> [[Quad; QUADS]; 2] {
        // SAFETY: the caller's promises; after four lines a block has two of upper bits.
        unsafe {
            let mut codes = Four::unpack(at, half);
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

impl Unpack for Eight {
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
