//! Integer tiles with AVX-512 VNNI, which takes four products a lane at once. Follows
//! [`super::tile::portable`] step by step.

use std::arch::x86_64::*;

use super::tile::{Codes, Element, FP4_CODES, LINE, Parts};
use super::{GROUP, SUM_GROUP, TILE_ROWS, Tile, TileInput};

/// Tokens whose sums stay in registers together; each weight is unpacked once for all.
const BLOCK: usize = 8;
const QUADS: usize = GROUP / 4;

/// [`Codes`] as a constant, so that the inner loop has no branch.
type CodesIndex = u8;
const FOUR: CodesIndex = Codes::Four as u8;
const FP4: CodesIndex = Codes::Fp4 as u8;
const FIVE: CodesIndex = Codes::Five as u8;
const SIX: CodesIndex = Codes::Six as u8;
const EIGHT: CodesIndex = Codes::Eight as u8;

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    input.check(tile);
    // SAFETY: `check` has matched every length; the caller vouches for `out`.
    unsafe {
        match tile.form.codes {
            Codes::Four => avx512_codes::<FOUR>(tile, input, out, stride),
            Codes::Fp4 => avx512_codes::<FP4>(tile, input, out, stride),
            Codes::Five => avx512_codes::<FIVE>(tile, input, out, stride),
            Codes::Six => avx512_codes::<SIX>(tile, input, out, stride),
            Codes::Eight => avx512_codes::<EIGHT>(tile, input, out, stride),
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_codes<const CODES: CodesIndex>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: as the caller's.
    unsafe {
        match (tile.form.group, tile.form.min.is_some()) {
            (GROUP, true) => avx512_tokens::<CODES, false, true>(tile, input, out, stride),
            (GROUP, false) => avx512_tokens::<CODES, false, false>(tile, input, out, stride),
            _ => avx512_tokens::<CODES, true, false>(tile, input, out, stride),
        }
    }
}

/// `SPLIT`: each half of a block has its own scale.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_tokens<const CODES: CodesIndex, const SPLIT: bool, const MINS: bool>(
    tile: &Tile,
    input: &TileInput,
    out: *mut f32,
    stride: usize,
) {
    let mut token = 0;
    // SAFETY: as the caller's.
    unsafe {
        while token + BLOCK <= input.tokens {
            avx512_block::<BLOCK, CODES, SPLIT, MINS>(tile, input, token, out, stride);
            token += BLOCK;
        }
        while token + 4 <= input.tokens {
            avx512_block::<4, CODES, SPLIT, MINS>(tile, input, token, out, stride);
            token += 4;
        }
        while token + 2 <= input.tokens {
            avx512_block::<2, CODES, SPLIT, MINS>(tile, input, token, out, stride);
            token += 2;
        }
        if token < input.tokens {
            avx512_block::<1, CODES, SPLIT, MINS>(tile, input, token, out, stride);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_block<
    const N: usize,
    const CODES: CodesIndex,
    const SPLIT: bool,
    const MINS: bool,
>(
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
    let mut totals = [_mm512_setzero_ps(); N];
    let mut elements = [_mm512_setzero_ps(); 2];
    let mut left_in_run = 0;
    let mut at = tile.bytes.as_ptr();
    for block in 0..input.cols / GROUP {
        // SAFETY: `check` has matched the tile's length with its form, so that every run has its
        // elements and every block its codes and parts; and it gave every token its codes,
        // scales and sums.
        unsafe {
            if left_in_run == 0 {
                left_in_run = form.run;
                elements[0] = avx512_elements(form.scale, at);
                if let (true, Some(min)) = (MINS, form.min) {
                    elements[1] = avx512_elements(min, at.add(scale_bytes));
                }
                at = at.add(scale_bytes + min_bytes);
            }
            left_in_run -= 1;
            let weights = avx512_unpack::<CODES>(at);
            let parts = at.add(lines + planes);
            let scales = avx512_times_parts(elements[0], form.parts, parts);
            let later_scales = if SPLIT {
                // Nothing is read there where there are no parts.

                let parts = parts.wrapping_add(TILE_ROWS);
                avx512_times_parts(elements[0], form.parts, parts)
            } else {
                scales
            };
            let mins = if MINS {
                avx512_times_parts(elements[1], form.parts, parts.add(part_bytes))
            } else {
                elements[1]
            };
            at = parts.add(part_bytes * if MINS { 2 } else { 1 });
            // Tokens outside, quads inside: each activation is read once, straight into its
            // product, and the tokens' chains overlap.
            for (n, total) in totals.iter_mut().enumerate() {
                let first = (token + n) * input.cols + block * GROUP;
                let sums = input.sums.as_ptr().add(first / SUM_GROUP);
                let mut dots = [_mm512_setzero_si512(); 2];
                if SPLIT {
                    dots[0] = _mm512_set1_epi32(-form.zero * *sums);
                    dots[1] = _mm512_set1_epi32(-form.zero * *sums.add(1));
                } else if !MINS {
                    dots[1] = _mm512_set1_epi32(-form.zero * (*sums + *sums.add(1)));
                }
                let codes = input.codes.as_ptr().add(first).cast::<i32>();
                for (c, weights) in weights.iter().enumerate() {
                    let quad = _mm512_set1_epi32(codes.add(c).read_unaligned());
                    let dot = &mut dots[if SPLIT { c / 4 } else { c % 2 }];
                    *dot = _mm512_dpbusd_epi32(*dot, *weights, quad);
                }
                let scale = _mm512_set1_ps(*input.scales.as_ptr().add(first / GROUP));
                let weigh = |dot, scales, total| {
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(scales, scale), total)
                };
                if SPLIT {
                    *total = weigh(dots[0], scales, *total);
                    *total = weigh(dots[1], later_scales, *total);
                } else {
                    *total = weigh(_mm512_add_epi32(dots[0], dots[1]), scales, *total);
                }
                if MINS {
                    let sum = _mm512_set1_ps(*input.scaled_sums.as_ptr().add(first / GROUP));
                    *total = _mm512_fmadd_ps(mins, sum, *total);
                }
            }
        }
    }
    for (n, total) in totals.iter().enumerate() {
        // SAFETY: the caller promises sixteen writable values at every token's place.
        unsafe { _mm512_storeu_ps(out.add((token + n) * stride), *total) };
    }
}

/// A block's codes, a quad in each register.
///
/// # Safety
/// Needs the target features; a whole block's lines and planes must be at `at`.
#[cfg(target_os = "linux")]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub unsafe fn unpack(codes: Codes, at: *const u8) -> [__m512i; QUADS] {
    // SAFETY: the caller's promises.
    unsafe {
        match codes {
            Codes::Four => avx512_unpack::<FOUR>(at),
            Codes::Fp4 => avx512_unpack::<FP4>(at),
            Codes::Five => avx512_unpack::<FIVE>(at),
            Codes::Six => avx512_unpack::<SIX>(at),
            Codes::Eight => avx512_unpack::<EIGHT>(at),
        }
    }
}

/// [`unpack`] for one kind of codes.
///
/// # Safety
/// As for [`unpack`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn avx512_unpack<const CODES: CodesIndex>(at: *const u8) -> [__m512i; QUADS] {
    // SAFETY: the caller's promise.
    let line = |line: usize| unsafe { _mm512_loadu_si512(at.add(line * LINE).cast()) };
    if CODES == EIGHT {
        return std::array::from_fn(line);
    }
    let mask = _mm512_set1_epi8(15);
    let pairs: [__m512i; 4] = std::array::from_fn(line);
    let low: [__m512i; QUADS] = std::array::from_fn(|c| match pairs.get(c) {
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
pub unsafe fn avx512_elements(element: Element, at: *const u8) -> __m512 {
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
pub unsafe fn avx512_times_parts(elements: __m512, parts: Parts, at: *const u8) -> __m512 {
    // SAFETY: the caller's promise.
    let bytes = || unsafe { _mm_loadu_si128(at.cast()) };
    let wide = match parts {
        Parts::None => return elements,
        Parts::Unsigned => _mm512_cvtepu8_epi32(bytes()),
        Parts::Signed => _mm512_cvtepi8_epi32(bytes()),
    };
    _mm512_mul_ps(elements, _mm512_cvtepi32_ps(wide))
}
