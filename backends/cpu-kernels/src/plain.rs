//! Plain weights, read directly from the file, times activations.
//!
//! A result's sum runs in sixteen lanes over the row's columns, step by step, and is folded at
//! the end: its order depends on the row's length alone. Blocks of several rows and tokens
//! share loads, and do not change any sum.
//!
//! Activations may be rounded to bf16 for bf16 weights, so that machines with a dot product of
//! bf16 pairs can use it. That instruction adds the odd column's product, then the even one's,
//! each as a fused multiply-add, but takes denormal numbers for zero. [`round`] scales a row so
//! that no denormal can arise, hence ordinary fused multiply-adds give the same bits everywhere.

use super::float::{Lanes, fma, fold, lanes};
use super::{LANES, f16_to_f32};

/// How plain weights are stored, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    F16,
    Bf16,
}

/// Rows of plain weights, one right after another, at any alignment.
#[derive(Clone, Copy)]
pub struct PlainRows<'a> {
    pub format: Format,
    pub cols: usize,
    pub bytes: &'a [u8],
}

/// Rows of activations from `round`, `cols.div_ceil(2)` pairs and a factor for each.
#[derive(Clone, Copy)]
pub struct Rounded<'a> {
    pub pairs: &'a [u32],
    pub factors: &'a [f32],
}

/// Where results go: `token * stride + row` from `start`.
#[derive(Clone, Copy)]
pub struct PlainOut {
    pub start: *mut f32,
    pub stride: usize,
}

impl Format {
    pub fn bytes(self) -> usize {
        match self {
            Format::F32 => 4,
            Format::F16 | Format::Bf16 => 2,
        }
    }
}

impl<'a> PlainRows<'a> {
    /// Rows of decoded values.
    pub fn from_values(values: &'a [f32], cols: usize) -> Self {
        const { assert!(cfg!(target_endian = "little")) };
        let (start, len) = (values.as_ptr().cast(), size_of_val(values));
        Self {
            format: Format::F32,
            cols,
            // SAFETY: the bytes of the values, which live as long; any byte is one.
            bytes: unsafe { std::slice::from_raw_parts(start, len) },
        }
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.cols * self.format.bytes()
    }

    /// How many rows, which every version trusts.
    pub(super) fn count(&self) -> usize {
        assert!(self.cols > 0 && self.bytes.len().is_multiple_of(self.row_bytes()));
        self.bytes.len() / self.row_bytes()
    }

    /// How many rows of exact activations.
    pub(super) fn tokens_of(&self, x: &[f32]) -> usize {
        assert!(x.len().is_multiple_of(self.cols));
        x.len() / self.cols
    }

    /// How many rows of rounded activations.
    pub(super) fn tokens_of_rounded(&self, x: &Rounded) -> usize {
        assert_eq!(self.format, Format::Bf16);
        assert_eq!(x.pairs.len(), x.factors.len() * self.cols.div_ceil(2));
        x.factors.len()
    }
}

/// The exponent, biased, that a row's largest value is scaled to.
const TOP: u32 = 127 + 60;
/// Scaled values below this exponent are rounded to zero. The least that is left, 2^14, is a
/// multiple of 2^7 as a bf16, and a normal bf16 weight one of 2^-133: so is every product, and
/// with it every rounded sum, a multiple of 2^-126, the least normal `f32`.
const BOTTOM: u32 = 127 + 14;
/// Smaller rows are scaled as if their largest value had this exponent: the factor stays normal.
const LEAST: u32 = TOP - 126;

/// Rounds a row to pairs of bf16, the even column in the low half. Returns what sums of products
/// with them are to be multiplied by.
#[inline(always)]
pub(super) fn round(x: &[f32], pairs: &mut [u32]) -> f32 {
    let magnitude = |bits: u32| bits & 0x7fff_ffff;
    let largest = x
        .iter()
        .fold(0, |most: u32, x| most.max(magnitude(x.to_bits())));
    let exponent = (largest >> 23).max(LEAST);
    let scale = f32::from_bits((TOP + 127 - exponent) << 23);
    let code = |x: f32| {
        let bits = (x * scale).to_bits();
        // To the nearest, ties to even.
        let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
        let finite = if magnitude(bits) < BOTTOM << 23 {
            0
        } else {
            rounded
        };
        // Rounding could carry a NaN's fraction away.
        if magnitude(bits) > 0x7f80_0000 {
            0x7fc0
        } else {
            finite
        }
    };
    let (whole, last) = x.as_chunks::<2>();
    for ([even, odd], pair) in whole.iter().zip(pairs.iter_mut()) {
        *pair = code(*even) | code(*odd) << 16;
    }
    if let ([even], Some(pair)) = (last, pairs.last_mut()) {
        *pair = code(*even);
    }
    f32::from_bits((exponent + 127 - TOP) << 23)
}

/// One way to multiply: the lanes of a sum take in `COLS` columns at each step.
trait Arithmetic {
    const COLS: usize;
    /// Of a weight.
    const BYTES: usize;
    /// What activations are made of, [`LANES`] for each step.
    type Value: Copy + Default;
    type Weights: Copy;
    fn weights(bytes: &[u8]) -> Self::Weights;
    fn add(sums: Lanes, weights: Self::Weights, x: &[Self::Value]) -> Lanes;
}

macro_rules! exact {
    ($name:ident, $bytes:literal, $decode:expr) => {
        struct $name;

        impl Arithmetic for $name {
            const COLS: usize = LANES;
            const BYTES: usize = $bytes;
            type Value = f32;
            type Weights = Lanes;

            #[inline(always)]
            fn weights(bytes: &[u8]) -> Lanes {
                let values = &bytes.as_chunks::<$bytes>().0[..LANES];
                std::array::from_fn(|i| $decode(values[i]))
            }

            #[inline(always)]
            fn add(sums: Lanes, weights: Lanes, x: &[f32]) -> Lanes {
                fma(weights, lanes(&x[..LANES]), sums)
            }
        }
    };
}

exact!(ExactF32, 4, f32::from_le_bytes);
exact!(ExactF16, 2, |b| f16_to_f32(u16::from_le_bytes(b)));
exact!(ExactBf16, 2, |b| f32::from_bits(
    u32::from(u16::from_le_bytes(b)) << 16
));

struct RoundedBf16;

impl Arithmetic for RoundedBf16 {
    const COLS: usize = 2 * LANES;
    const BYTES: usize = 2;
    type Value = u32;
    /// Of odd and of even columns.
    type Weights = [Lanes; 2];

    #[inline(always)]
    fn weights(bytes: &[u8]) -> [Lanes; 2] {
        // As the instruction does, denormal weights count as zero.
        let value = |bits: u32| f32::from_bits(if bits & 0x7f80_0000 == 0 { 0 } else { bits });
        let pairs = &bytes.as_chunks::<4>().0[..LANES];
        [
            std::array::from_fn(|i| value(u32::from_le_bytes(pairs[i]) & 0xffff_0000)),
            std::array::from_fn(|i| value(u32::from_le_bytes(pairs[i]) << 16)),
        ]
    }

    #[inline(always)]
    fn add(sums: Lanes, [odd, even]: [Lanes; 2], x: &[u32]) -> Lanes {
        let x = &x[..LANES];
        let odd_x = std::array::from_fn(|i| f32::from_bits(x[i] & 0xffff_0000));
        let even_x = std::array::from_fn(|i| f32::from_bits(x[i] << 16));
        fma(even, even_x, fma(odd, odd_x, sums))
    }
}

/// Sums of a block: what fits the sixteen registers of AVX2.
const ROWS: usize = 2;
const TOKENS: usize = 3;

/// The reference of every version: weights widened to `f32` times exact activations.
///
/// # Safety
/// `out` must be valid for writes of every row of every token.
#[inline(always)]
pub(super) unsafe fn exact(rows: &PlainRows, x: &[f32], out: PlainOut) {
    let tokens = rows.tokens_of(x);
    // SAFETY: as the caller's.
    unsafe {
        match rows.format {
            Format::F32 => multiply::<ExactF32>(rows, x, tokens, out),
            Format::F16 => multiply::<ExactF16>(rows, x, tokens, out),
            Format::Bf16 => multiply::<ExactBf16>(rows, x, tokens, out),
        }
    }
}

/// The reference of every version: bf16 weights times rounded activations.
///
/// # Safety
/// `out` must be valid for writes of every row of every token.
#[inline(always)]
pub(super) unsafe fn rounded(rows: &PlainRows, x: &Rounded, out: PlainOut) {
    let tokens = rows.tokens_of_rounded(x);
    // SAFETY: as the caller's.
    unsafe { multiply::<RoundedBf16>(rows, x.pairs, tokens, out) };
    for (token, factor) in x.factors.iter().enumerate() {
        for row in 0..rows.count() {
            // SAFETY: as the caller's.
            unsafe { *out.start.add(token * out.stride + row) *= factor };
        }
    }
}

#[inline(always)]
unsafe fn multiply<A: Arithmetic>(rows: &PlainRows, x: &[A::Value], tokens: usize, out: PlainOut) {
    let (count, row_bytes) = (rows.count(), rows.row_bytes());
    let width = x.len() / tokens.max(1);
    let row = |row: usize| &rows.bytes[row * row_bytes..(row + 1) * row_bytes];
    let token = |token: usize| &x[token * width..(token + 1) * width];
    let write = |at: usize, token: usize, sums: &[f32]| {
        for (row, sum) in sums.iter().enumerate() {
            // SAFETY: as the caller's; `at + row` is a row and `token` a token.
            unsafe { out.start.add(token * out.stride + at + row).write(*sum) };
        }
    };
    let mut first = 0;
    while first < tokens {
        let many = first + TOKENS <= tokens;
        let mut at = 0;
        while at < count {
            if many && at + ROWS <= count {
                let weights: [&[u8]; ROWS] = std::array::from_fn(|i| row(at + i));
                let x: [&[A::Value]; TOKENS] = std::array::from_fn(|i| token(first + i));
                let sums = block::<A, ROWS, TOKENS>(weights, x);
                (0..TOKENS).for_each(|i| write(at, first + i, &sums[i]));
                at += ROWS;
            } else if at + ROWS <= count {
                let weights: [&[u8]; ROWS] = std::array::from_fn(|i| row(at + i));
                let sums = block::<A, ROWS, 1>(weights, [token(first)]);
                write(at, first, &sums[0]);
                at += ROWS;
            } else {
                let tokens = if many { TOKENS } else { 1 };
                for first in first..first + tokens {
                    let sums = block::<A, 1, 1>([row(at)], [token(first)]);
                    write(at, first, &sums[0]);
                }
                at += 1;
            }
        }
        first += if many { TOKENS } else { 1 };
    }
}

#[inline(always)]
fn block<A: Arithmetic, const R: usize, const T: usize>(
    rows: [&[u8]; R],
    x: [&[A::Value]; T],
) -> [[f32; R]; T] {
    let mut sums = [[[0.0; LANES]; R]; T];
    let step_bytes = A::COLS * A::BYTES;
    let steps = rows[0].len() / step_bytes;
    for step in 0..steps {
        let weights: [A::Weights; R] =
            std::array::from_fn(|r| A::weights(&rows[r][step * step_bytes..][..step_bytes]));
        for t in 0..T {
            let x = &x[t][step * LANES..][..LANES];
            for r in 0..R {
                sums[t][r] = A::add(sums[t][r], weights[r], x);
            }
        }
    }
    let (bytes, values) = (steps * step_bytes, steps * LANES);
    if bytes < rows[0].len() {
        for r in 0..R {
            let weights = A::weights(&padded::<u8, { 4 * LANES }>(&rows[r][bytes..]));
            for t in 0..T {
                let x = padded::<A::Value, LANES>(&x[t][values..]);
                sums[t][r] = A::add(sums[t][r], weights, &x);
            }
        }
    }
    sums.map(|sums| sums.map(fold))
}

#[inline(always)]
fn padded<V: Copy + Default, const N: usize>(values: &[V]) -> [V; N] {
    let mut out = [V::default(); N];
    out[..values.len()].copy_from_slice(values);
    out
}
