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

/// `out += scales · (tile · inner)` for each token.
#[derive(Clone, Copy)]
pub struct LowRankJob<'a> {
    pub tile: LowRankTile<'a>,
    /// `[token][rank]`
    pub inner: &'a [f32],
    pub scales: [f32; LANES],
    pub out: PlainOut,
}

impl LowRankJob<'_> {
    fn rank(&self) -> usize {
        self.tile.bytes.len() / (LANES * self.tile.format.bytes())
    }
}

/// Tokens whose sums are in registers together.
const TOKENS: usize = 4;
/// Jobs of one token each whose sums are in registers together: one sum alone waits for every
/// multiplication.
const JOBS: usize = 4;

/// Does jobs in order.
///
/// # Safety
/// Needs the instruction set of `R`, and every job's `out` valid for reads and writes of sixteen
/// values of every token.
#[inline(always)]
pub(super) unsafe fn add<R: Register>(jobs: &[LowRankJob]) {
    let (together, rest) = jobs.as_chunks::<JOBS>();
    for jobs in together {
        let (format, rank) = (jobs[0].tile.format, jobs[0].rank());
        let alike = |job: &LowRankJob| {
            job.tile.format == format && job.rank() == rank && job.inner.len() == rank
        };
        // SAFETY: as the caller's; the jobs are alike.
        unsafe {
            match (jobs.iter().all(alike), format) {
                (true, Format::Bf16) => single_tokens::<R, true>(jobs, rank),
                (true, _) => single_tokens::<R, false>(jobs, rank),
                (false, _) => jobs.iter().for_each(|job| add_one::<R>(job)),
            }
        }
    }
    for job in rest {
        // SAFETY: as the caller's.
        unsafe { add_one::<R>(job) };
    }
}

/// # Safety
/// As for [`add`]; every job must have one token, and `rank` values of it.
#[inline(always)]
unsafe fn single_tokens<R: Register, const BF16: bool>(jobs: &[LowRankJob; JOBS], rank: usize) {
    let mut sums = [R::splat(0.0); JOBS];
    for k in 0..rank {
        for (sum, job) in sums.iter_mut().zip(jobs) {
            let weights = weights::<R, BF16>(job.tile.bytes, k);
            *sum = weights.fma(R::splat(job.inner[k]), *sum);
        }
    }
    for (sum, job) in sums.iter().zip(jobs) {
        // SAFETY: the caller's promise.
        let out = unsafe { &mut *job.out.start.cast::<[f32; LANES]>() };
        sum.fma(R::load(&job.scales), R::load(out)).store(out);
    }
}

/// The weights of sixteen rows at `k`.
#[inline(always)]
fn weights<R: Register, const BF16: bool>(bytes: &[u8], k: usize) -> R {
    if BF16 {
        let bytes = &bytes[k * 2 * LANES..(k + 1) * 2 * LANES];
        // SAFETY: as many bytes as the array has; any are such numbers.
        R::from_bf16(&unsafe { bytes.as_ptr().cast::<[u16; LANES]>().read_unaligned() })
    } else {
        let bytes = &bytes[k * 4 * LANES..(k + 1) * 4 * LANES];
        // SAFETY: as many bytes as the array has; any are such numbers.
        R::load(&unsafe { bytes.as_ptr().cast::<[f32; LANES]>().read_unaligned() })
    }
}

/// # Safety
/// As for [`add`].
#[inline(always)]
unsafe fn add_one<R: Register>(job: &LowRankJob) {
    let LowRankJob {
        tile,
        inner,
        scales,
        out,
    } = job;
    let (rank, out) = (job.rank(), *out);
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
/// As for [`add_one`]; `inner` must have `T` tokens from `token`.
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
        let weights = weights::<R, BF16>(tile.bytes, k);
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
