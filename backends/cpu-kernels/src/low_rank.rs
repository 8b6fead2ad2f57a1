//! Adds the products of low-rank factors to outputs.
//!
//! A tile has sixteen rows of a factor, side by side: `[rank][row]`. Each row's sum runs over the
//! rank in order, so it depends on nothing else.

use super::LANES;
use super::plain::{Format, PlainOut};
use super::register::Register;

/// Sixteen rows of the second factor.
#[derive(Clone, Copy)]
pub struct LowRankTile<'a> {
    /// Not [`Format::F16`].
    pub format: Format,
    /// `[rank][LANES]`
    pub bytes: &'a [u8],
}

/// Tokens whose sums are in registers together.
const TOKENS: usize = 4;

/// `out += scales · (tile · inner)` for each token; `inner` is `[token][rank]`.
///
/// # Safety
/// Needs the instruction set of `R`, and `out` valid for reads and writes of sixteen values of every
/// token.
#[inline(always)]
pub(super) unsafe fn add<R: Register>(
    tile: &LowRankTile,
    inner: &[f32],
    scales: &[f32; LANES],
    out: PlainOut,
) {
    let width = LANES * tile.format.bytes();
    let rank = tile.bytes.len() / width;
    assert!(rank > 0 && inner.len().is_multiple_of(rank));
    let tokens = inner.len() / rank;
    let mut token = 0;
    while token < tokens {
        let together = if token + TOKENS <= tokens { TOKENS } else { 1 };
        // SAFETY: as the caller's; the tokens exist.
        unsafe {
            match (tile.format, together) {
                (Format::Bf16, TOKENS) => {
                    block::<R, true, TOKENS>(tile, inner, rank, token, scales, out)
                }
                (Format::Bf16, _) => block::<R, true, 1>(tile, inner, rank, token, scales, out),
                (_, TOKENS) => block::<R, false, TOKENS>(tile, inner, rank, token, scales, out),
                (..) => block::<R, false, 1>(tile, inner, rank, token, scales, out),
            }
        }
        token += together;
    }
}

/// # Safety
/// As for [`add`]; `inner` must have `T` tokens from `token`.
#[inline(always)]
unsafe fn block<R: Register, const BF16: bool, const T: usize>(
    tile: &LowRankTile,
    inner: &[f32],
    rank: usize,
    token: usize,
    scales: &[f32; LANES],
    out: PlainOut,
) {
    let mut sums = [R::splat(0.0); T];
    let inner = &inner[token * rank..(token + T) * rank];
    for k in 0..rank {
        let weights = if BF16 {
            let bytes = &tile.bytes[k * 2 * LANES..(k + 1) * 2 * LANES];
            // SAFETY: as many bytes as the array has; any are such numbers.
            R::from_bf16(&unsafe { bytes.as_ptr().cast::<[u16; LANES]>().read_unaligned() })
        } else {
            let bytes = &tile.bytes[k * 4 * LANES..(k + 1) * 4 * LANES];
            // SAFETY: as many bytes as the array has; any are such numbers.
            R::load(&unsafe { bytes.as_ptr().cast::<[f32; LANES]>().read_unaligned() })
        };
        for t in 0..T {
            sums[t] = weights.fma(R::splat(inner[t * rank + k]), sums[t]);
        }
    }
    let scales = R::load(scales);
    for (t, sum) in sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        let out = unsafe {
            let at = out.start.add((token + t) * out.stride);
            &mut *at.cast::<[f32; LANES]>()
        };
        sum.fma(scales, R::load(out)).store(out);
    }
}
