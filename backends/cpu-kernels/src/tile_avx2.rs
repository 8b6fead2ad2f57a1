//! Integer tiles with AVX2, and with AVX-VNNI on machines that have it but no AVX-512. Follows
//! [`super::tile::portable`] step by step.
//!
//! AVX2 multiplies unsigned by signed bytes and adds neighbours in sixteen bits, where they
//! saturate: two products of codes below 128 fit. Further sums wrap around, so it is enough that
//! the whole sum fits: of codes less their zero, over as many quads as [`Products::QUADS`]. Codes
//! of eight bits are multiplied as two halves of four.

use std::arch::x86_64::*;

use super::tile::{Codes, Element, FP4_CODES, LINE, SubScales};
use super::tile_panel::{self, BLOCK_QUADS, HALF_QUADS, Products, REGISTER, ROWS};
use super::tile_walk::{EIGHT, FIVE, FOUR, FP4, Kind, SIX, ZEROS};
use super::{Tile, TileInput};

/// # Safety
/// Needs the target features, and `out` valid for writes of `TILE_ROWS` values at every
/// `token * stride`.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn tile(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        match tile.form.codes {
            Codes::Four => {
                tile_panel::tile::<Kind<FOUR>, Narrow<FOUR>>(tile, input, out, stride);
            }
            Codes::Fp4 => tile_panel::tile::<Kind<FP4>, Narrow<FP4>>(tile, input, out, stride),
            Codes::Five => {
                tile_panel::tile::<Kind<FIVE>, Narrow<FIVE>>(tile, input, out, stride);
            }
            Codes::Six => tile_panel::tile::<Kind<SIX>, Narrow<SIX>>(tile, input, out, stride),
            Codes::Eight => tile_panel::tile::<Kind<EIGHT>, Halved>(tile, input, out, stride),
        }
    }
}

/// # Safety
/// As for [`tile`].
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub unsafe fn tile_vnni(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe { tile_with::<AvxVnni>(tile, input, out, stride) };
}

/// # Safety
/// As for [`tile`], and needs the target features of `D`.
#[inline(always)]
pub unsafe fn tile_with<D: DotQuads>(tile: &Tile, input: &TileInput, out: *mut f32, stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        match tile.form.codes {
            Codes::Four => {
                tile_panel::tile::<Kind<FOUR>, Vnni<D, FOUR>>(tile, input, out, stride);
            }
            Codes::Fp4 => tile_panel::tile::<Kind<FP4>, Vnni<D, FP4>>(tile, input, out, stride),
            Codes::Five => {
                tile_panel::tile::<Kind<FIVE>, Vnni<D, FIVE>>(tile, input, out, stride);
            }
            Codes::Six => tile_panel::tile::<Kind<SIX>, Vnni<D, SIX>>(tile, input, out, stride),
            Codes::Eight => {
                tile_panel::tile::<Kind<EIGHT>, Vnni<D, EIGHT>>(tile, input, out, stride);
            }
        }
    }
}

/// Codes of up to six bits, summed in sixteen.
struct Narrow<const CODES: u8>;

impl<const CODES: u8> Narrow<CODES> {
    /// What is subtracted from the codes, so that sums fit.
    const fn center(mins: bool) -> i32 {
        // Sixteen products of four-bit codes fit as they are.
        if mins && CODES == FOUR {
            0
        } else {
            ZEROS[CODES as usize]
        }
    }
}

impl<const CODES: u8> Products for Narrow<CODES> {
    const PARTS: usize = 1;
    /// With activations of at most 127 and codes that are at most `c` from their center, a lane's
    /// `2 * QUADS * 127 * c` must fit: `c` is 15, 12 and 16, and then 32.
    const QUADS: usize = if CODES == SIX {
        HALF_QUADS
    } else {
        BLOCK_QUADS
    };

    #[inline(always)]
    unsafe fn start<const GROUPS: usize, const MINS: bool>(pairs: *const [i16; 2]) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            if Self::center(MINS) == 0 {
                return _mm256_setzero_si256();
            }
            sum_pairs::<GROUPS>(pairs)
        }
    }

    #[inline(always)]
    unsafe fn part(codes: __m256i, _part: usize) -> __m256i {
        codes
    }

    #[inline(always)]
    unsafe fn begin<const MINS: bool>(start: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let center = _mm256_set1_epi16(-Self::center(MINS) as i16);
            [_mm256_mullo_epi16(start, center); 2]
        }
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x)) }
    }

    #[inline(always)]
    unsafe fn finish<const MINS: bool>([a, b]: [__m256i; 2], start: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let ones = _mm256_set1_epi16(1);
            let (a, b) = (_mm256_madd_epi16(a, ones), _mm256_madd_epi16(b, ones));
            let center = Self::center(MINS);
            if !MINS || center == 0 {
                return [a, b];
            }
            let center = _mm256_madd_epi16(start, _mm256_set1_epi16(center as i16));
            [_mm256_add_epi32(a, center), _mm256_add_epi32(b, center)]
        }
    }
}

/// Codes of eight bits as their lower and their upper four.
struct Halved;

impl Products for Halved {
    const PARTS: usize = 2;
    const QUADS: usize = BLOCK_QUADS;

    #[inline(always)]
    unsafe fn start<const GROUPS: usize, const MINS: bool>(pairs: *const [i16; 2]) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            if MINS {
                return _mm256_setzero_si256();
            }
            sum_pairs::<GROUPS>(pairs)
        }
    }

    #[inline(always)]
    unsafe fn part(codes: __m256i, part: usize) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { if part == 0 { low(codes) } else { high(codes) } }
    }

    #[inline(always)]
    unsafe fn begin<const MINS: bool>(start: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            // The upper halves' zero is 8, a sixteenth of the codes'.
            let upper = _mm256_mullo_epi16(start, _mm256_set1_epi16(-8));
            [_mm256_setzero_si256(), upper]
        }
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, x)) }
    }

    #[inline(always)]
    unsafe fn finish<const MINS: bool>([lower, upper]: [__m256i; 2], _: __m256i) -> [__m256i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let lower = _mm256_madd_epi16(lower, _mm256_set1_epi16(1));
            let upper = _mm256_madd_epi16(upper, _mm256_set1_epi16(16));
            [_mm256_add_epi32(lower, upper); 2]
        }
    }
}

/// The instruction that multiplies quads and adds their sums.
///
/// # Safety
/// Its method needs the instruction's target features.
pub trait DotQuads {
    /// `sum` plus, in each lane, the products of four unsigned codes and four activations.
    unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i;
}

struct AvxVnni;

impl DotQuads for AvxVnni {
    #[inline(always)]
    unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpbusd_avx_epi32(sum, codes, x) }
    }
}

/// One instruction for all of it.
struct Vnni<D, const CODES: u8>(D);

impl<D: DotQuads, const CODES: u8> Products for Vnni<D, CODES> {
    const PARTS: usize = 1;
    const QUADS: usize = BLOCK_QUADS;

    #[inline(always)]
    unsafe fn start<const GROUPS: usize, const MINS: bool>(pairs: *const [i16; 2]) -> __m256i {
        // SAFETY: the caller's promises.
        unsafe {
            if MINS {
                return _mm256_setzero_si256();
            }
            let zero = _mm256_set1_epi16(-ZEROS[CODES as usize] as i16);
            _mm256_madd_epi16(sum_pairs::<GROUPS>(pairs), zero)
        }
    }

    #[inline(always)]
    unsafe fn part(codes: __m256i, _part: usize) -> __m256i {
        codes
    }

    #[inline(always)]
    unsafe fn begin<const MINS: bool>(start: __m256i) -> [__m256i; 2] {
        [start; 2]
    }

    #[inline(always)]
    unsafe fn add(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { D::add(sum, codes, x) }
    }

    #[inline(always)]
    unsafe fn finish<const MINS: bool>(sums: [__m256i; 2], _start: __m256i) -> [__m256i; 2] {
        sums
    }
}

/// The pair sums of some [`SUM_GROUP`](super::SUM_GROUP)s together, in every lane.
///
/// # Safety
/// Needs the target features; `GROUPS` of them, 1 or 2, must be at `pairs`.
#[inline(always)]
unsafe fn sum_pairs<const GROUPS: usize>(pairs: *const [i16; 2]) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe {
        let first = broadcast(pairs.cast(), 0);
        if GROUPS == 1 {
            return first;
        }
        _mm256_add_epi16(first, broadcast(pairs.cast(), 1))
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

/// Half of the sixteen rows' elements, which must be at `at`.
///
/// # Safety
/// Needs the target features.
#[inline(always)]
pub unsafe fn load_elements(element: Element, at: *const u8, half: usize) -> __m256 {
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
/// Needs the target features; the sub-scales of eight rows must be at `at`, if there are any.
#[inline(always)]
pub unsafe fn times_sub_scales(elements: __m256, sub_scales: SubScales, at: *const u8) -> __m256 {
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

/// How far ahead of a block memory is requested: nested scales and codes of five and six bits take
/// so much work per byte that the processor does not look ahead far enough.
const AHEAD: usize = 4096;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;

/// Requests the memory that lies [`AHEAD`] of these bytes.
///
/// # Safety
/// Needs the target features.
#[inline(always)]
pub unsafe fn prefetch_ahead(from: *const u8, to: *const u8) {
    // SAFETY: the caller's promise.
    unsafe { prefetch(from.wrapping_add(AHEAD), to.wrapping_add(AHEAD)) };
}

/// Requests this memory, which may be past the tile's end.
///
/// # Safety
/// Needs the target features.
#[inline(always)]
pub unsafe fn prefetch(mut from: *const u8, to: *const u8) {
    while from < to {
        // SAFETY: prefetching may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
        from = from.wrapping_add(CACHE_LINE);
    }
}

/// Reads one kind of [`Codes`].
pub trait Unpack {
    /// The codes of eight rows of a quad.
    ///
    /// # Safety
    /// Needs the target features; a whole block's lines and planes must be at `at`, with codes of
    /// this kind.
    unsafe fn quad(at: *const u8, quad: usize, half: usize) -> __m256i;
}

impl Unpack for Kind<FOUR> {
    #[inline(always)]
    unsafe fn quad(at: *const u8, quad: usize, half: usize) -> __m256i {
        // SAFETY: the caller's promises; a block has four lines.
        unsafe {
            let pair = load(at, quad % 4, half);
            if quad < 4 { low(pair) } else { high(pair) }
        }
    }
}

impl Unpack for Kind<FP4> {
    #[inline(always)]
    unsafe fn quad(at: *const u8, quad: usize, half: usize) -> __m256i {
        // SAFETY: the caller's promises; the table has sixteen bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast()));
            _mm256_shuffle_epi8(table, <Kind<FOUR> as Unpack>::quad(at, quad, half))
        }
    }
}

impl Unpack for Kind<FIVE> {
    #[inline(always)]
    unsafe fn quad(at: *const u8, quad: usize, half: usize) -> __m256i {
        // SAFETY: the caller's promises; after the lines each quad has eight bytes of fifth
        // bits, half of them for half of the rows.
        unsafe {
            let byte_of = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0,
            );
            let bit_of = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let bits = at.add(4 * LINE + quad * 8 + half * 4);
            let bytes = _mm256_shuffle_epi8(broadcast(bits.cast(), 0), byte_of);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit_of), bit_of);
            let fifth = _mm256_and_si256(set, _mm256_set1_epi8(16));
            _mm256_or_si256(<Kind<FOUR> as Unpack>::quad(at, quad, half), fifth)
        }
    }
}

impl Unpack for Kind<SIX> {
    #[inline(always)]
    unsafe fn quad(at: *const u8, quad: usize, half: usize) -> __m256i {
        // SAFETY: the caller's promises; after four lines a block has two of upper bits.
        unsafe {
            let plane = load(at, 4 + quad / 4, half);
            let shifted = match quad % 4 {
                0 => _mm256_slli_epi16::<4>(plane),
                1 => _mm256_slli_epi16::<2>(plane),
                2 => plane,
                _ => _mm256_srli_epi16::<2>(plane),
            };
            let upper = _mm256_and_si256(shifted, _mm256_set1_epi8(0x30));
            _mm256_or_si256(<Kind<FOUR> as Unpack>::quad(at, quad, half), upper)
        }
    }
}

impl Unpack for Kind<EIGHT> {
    #[inline(always)]
    unsafe fn quad(at: *const u8, quad: usize, half: usize) -> __m256i {
        // SAFETY: the caller's promises; a block has eight lines.
        unsafe { load(at, quad, half) }
    }
}

/// # Safety
/// Needs the target features; a block with such a line must be at `at`.
#[inline(always)]
unsafe fn load(at: *const u8, line: usize, half: usize) -> __m256i {
    // SAFETY: the caller's promises.
    unsafe { _mm256_loadu_si256(at.add(line * LINE + half * REGISTER).cast()) }
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
