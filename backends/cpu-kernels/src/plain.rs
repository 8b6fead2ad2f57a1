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

use super::LANES;
use super::register::{Register, SplitPairs};

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

/// The nearest bf16 of the `f32` with these bits, ties to even.
#[inline(always)]
pub(super) fn rounded_bits(bits: u32) -> u32 {
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1))) >> 16;
    // Rounding could carry a NaN's fraction away.
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x7fc0
    } else {
        rounded
    }
}

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
        if magnitude(bits) < BOTTOM << 23 {
            0
        } else {
            rounded_bits(bits)
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
trait Arithmetic<R: Register> {
    const COLS: usize;
    /// Of a weight.
    const BYTES: usize;
    /// What activations are made of, [`LANES`] for each step.
    type Value: Copy + Default;
    type Weights: Copy;
    /// The weights of a step, from its bytes.
    fn weights(bytes: &[u8]) -> Self::Weights;
    fn add(sums: R, weights: Self::Weights, x: &[Self::Value; LANES]) -> R;
}

macro_rules! exact {
    ($name:ident, $bits:ty, $load:ident) => {
        struct $name;

        impl<R: Register> Arithmetic<R> for $name {
            const COLS: usize = LANES;
            const BYTES: usize = size_of::<$bits>();
            type Value = f32;
            type Weights = R;

            #[inline(always)]
            fn weights(bytes: &[u8]) -> R {
                R::$load(&read::<$bits>(bytes))
            }

            #[inline(always)]
            fn add(sums: R, weights: R, x: &[f32; LANES]) -> R {
                weights.fma(R::load(x), sums)
            }
        }
    };
}

exact!(ExactF32, f32, load);
exact!(ExactF16, u16, from_f16);
exact!(ExactBf16, u16, from_bf16);

struct RoundedBf16;

impl<R: SplitPairs> Arithmetic<R> for RoundedBf16 {
    const COLS: usize = 2 * LANES;
    const BYTES: usize = 2;
    type Value = u32;
    /// Of odd and of even columns.
    type Weights = [R; 2];

    #[inline(always)]
    fn weights(bytes: &[u8]) -> [R; 2] {
        // As the instruction does, denormal weights count as zero.
        R::from_normal_bf16_pairs(&read::<u32>(bytes))
    }

    #[inline(always)]
    fn add(sums: R, [odd, even]: [R; 2], x: &[u32; LANES]) -> R {
        let [odd_x, even_x] = R::from_bf16_pairs(x);
        even.fma(even_x, odd.fma(odd_x, sums))
    }
}

/// Numbers that any bytes make.
trait FromBytes: Copy {}
impl FromBytes for f32 {}
impl FromBytes for u16 {}
impl FromBytes for u32 {}

/// The first [`LANES`] little-endian numbers of `bytes`, at any alignment.
#[inline(always)]
fn read<T: FromBytes>(bytes: &[u8]) -> [T; LANES] {
    const { assert!(cfg!(target_endian = "little")) };
    assert!(bytes.len() >= size_of::<[T; LANES]>());
    // SAFETY: the bytes are there, and any are such numbers.
    unsafe { bytes.as_ptr().cast::<[T; LANES]>().read_unaligned() }
}

/// Sums of a block: what fits the sixteen registers of AVX2.
const ROWS: usize = 2;
const TOKENS: usize = 3;

/// The reference of every version: weights widened to `f32` times exact activations.
///
/// # Safety
/// Needs the instruction set of `R`, and `out` valid for writes of every row of every token.
#[inline(always)]
pub(super) unsafe fn exact<R: Register>(rows: &PlainRows, x: &[f32], out: PlainOut) {
    let tokens = rows.tokens_of(x);
    // SAFETY: as the caller's.
    unsafe {
        match rows.format {
            Format::F32 => multiply::<R, ExactF32>(rows, x, tokens, out),
            Format::F16 => multiply::<R, ExactF16>(rows, x, tokens, out),
            Format::Bf16 => multiply::<R, ExactBf16>(rows, x, tokens, out),
        }
    }
}

/// The reference of every version: bf16 weights times rounded activations.
///
/// # Safety
/// Needs the instruction set of `R`, and `out` valid for writes of every row of every token.
#[inline(always)]
pub(super) unsafe fn rounded<R: SplitPairs>(rows: &PlainRows, x: &Rounded, out: PlainOut) {
    let tokens = rows.tokens_of_rounded(x);
    // SAFETY: as the caller's.
    unsafe { multiply::<R, RoundedBf16>(rows, x.pairs, tokens, out) };
    for (token, factor) in x.factors.iter().enumerate() {
        for row in 0..rows.count() {
            // SAFETY: as the caller's.
            unsafe { *out.start.add(token * out.stride + row) *= factor };
        }
    }
}

/// # Safety
/// As for [`exact`].
#[inline(always)]
unsafe fn multiply<R: Register, A: Arithmetic<R>>(
    rows: &PlainRows,
    x: &[A::Value],
    tokens: usize,
    out: PlainOut,
) {
    let count = rows.count();
    let mut token = 0;
    while token < tokens {
        let together = if token + TOKENS <= tokens { TOKENS } else { 1 };
        let work = Work::<A::Value> {
            weights: rows.bytes,
            row_bytes: rows.row_bytes(),
            x,
            width: x.len() / tokens,
            token,
            out,
        };
        let mut row = 0;
        while row < count {
            let both = row + ROWS <= count;
            // SAFETY: as the caller's; the rows and tokens exist.
            unsafe {
                match (together, both) {
                    (TOKENS, true) => block::<R, A, ROWS, TOKENS>(&work, row),
                    (TOKENS, false) => block::<R, A, 1, TOKENS>(&work, row),
                    (_, true) => block::<R, A, ROWS, 1>(&work, row),
                    (_, false) => block::<R, A, 1, 1>(&work, row),
                }
            }
            row += if both { ROWS } else { 1 };
        }
        token += together;
    }
}

/// What the blocks of some tokens share.
struct Work<'a, V> {
    weights: &'a [u8],
    row_bytes: usize,
    x: &'a [V],
    /// Activations of a token.
    width: usize,
    token: usize,
    out: PlainOut,
}

/// Loops and not closures: what is not inlined would lack the instruction set.
///
/// # Safety
/// As for [`exact`]; the weights must have `row + N` rows, the activations `T` tokens from
/// `work.token`.
#[inline(always)]
unsafe fn block<R, A, const N: usize, const T: usize>(work: &Work<A::Value>, row: usize)
where
    R: Register,
    A: Arithmetic<R>,
{
    let mut rows = [&[][..]; N];
    for (n, bytes) in rows.iter_mut().enumerate() {
        *bytes = &work.weights[(row + n) * work.row_bytes..][..work.row_bytes];
    }
    let mut x = [&[][..]; T];
    for (t, x) in x.iter_mut().enumerate() {
        *x = &work.x[(work.token + t) * work.width..][..work.width];
    }
    let mut sums = [[R::splat(0.0); N]; T];
    let step_bytes = A::COLS * A::BYTES;
    let steps = work.row_bytes / step_bytes;
    for step in 0..steps {
        for n in 0..N {
            let weights = A::weights(&rows[n][step * step_bytes..][..step_bytes]);
            for t in 0..T {
                // SAFETY: a token has `LANES` values for each step.
                let x = unsafe { &*x[t].as_ptr().add(step * LANES).cast::<[A::Value; LANES]>() };
                sums[t][n] = A::add(sums[t][n], weights, x);
            }
        }
    }
    let (bytes, values) = (steps * step_bytes, steps * LANES);
    if bytes < work.row_bytes {
        for n in 0..N {
            let weights = A::weights(&padded::<u8, { 4 * LANES }>(&rows[n][bytes..]));
            for t in 0..T {
                let x = padded::<A::Value, LANES>(&x[t][values..]);
                sums[t][n] = A::add(sums[t][n], weights, &x);
            }
        }
    }
    for (t, sums) in sums.iter().enumerate() {
        for (n, sums) in sums.iter().enumerate() {
            let at = (work.token + t) * work.out.stride + row + n;
            // SAFETY: as the caller's.
            unsafe { work.out.start.add(at).write(sums.fold()) };
        }
    }
}

#[inline(always)]
fn padded<V: Copy + Default, const N: usize>(values: &[V]) -> [V; N] {
    let mut out = [V::default(); N];
    out[..values.len()].copy_from_slice(values);
    out
}
