//! Floating-point kernels over arrays of lanes, built once per instruction set by [`build!`].

use loquat_spec::Activation;

use super::attention::join_pieces;
use super::plain::round as round_bf16;
use super::rotation::{rotate_codes, unrotate_codes};
use super::tile::ActivationBlock;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::tile_amx;
#[cfg(target_arch = "x86_64")]
use super::{DenseProducts, dense, plain_avx512, tile_avx2};
use super::{GROUP, Kernels, LANES, SUM_GROUP};
#[cfg(target_arch = "aarch64")]
use super::{code_register, tile_neon};

pub(super) type Lanes = [f32; LANES];

/// Independent chains in a reduction, so that one add's latency does not bound the next.
pub(super) const CHAINS: usize = 4;

#[inline(always)]
pub(super) fn lanes(values: &[f32]) -> Lanes {
    let mut out = [0.0; LANES];
    out[..values.len()].copy_from_slice(values);
    out
}

#[inline(always)]
pub(super) fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
    std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
}

#[inline(always)]
fn reduce(chains: [Lanes; CHAINS]) -> f32 {
    fold(std::array::from_fn(|i| {
        (chains[0][i] + chains[1][i]) + (chains[2][i] + chains[3][i])
    }))
}

/// The sum of the lanes, halves onto halves.
#[inline(always)]
pub(super) fn fold(mut lanes: Lanes) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest of the lanes, none of which is NaN.
#[inline(always)]
pub(super) fn fold_max(mut lanes: Lanes) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            let (a, b) = (lanes[i], lanes[i + width]);
            lanes[i] = if b > a { b } else { a };
        }
        width /= 2;
    }
    lanes[0]
}

/// Σ a·b; both slices are equally long.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut chains = [[0.0; LANES]; CHAINS];
    let (mut a_blocks, mut b_blocks) = (
        a.chunks_exact(LANES * CHAINS),
        b.chunks_exact(LANES * CHAINS),
    );
    for (a, b) in a_blocks.by_ref().zip(b_blocks.by_ref()) {
        for (chain, sum) in chains.iter_mut().enumerate() {
            let range = chain * LANES..(chain + 1) * LANES;
            *sum = fma(lanes(&a[range.clone()]), lanes(&b[range]), *sum);
        }
    }
    let rest = a_blocks
        .remainder()
        .chunks(LANES)
        .zip(b_blocks.remainder().chunks(LANES));
    for ((a, b), sum) in rest.zip(chains.iter_mut()) {
        *sum = fma(lanes(a), lanes(b), *sum);
    }
    reduce(chains)
}

/// `x = x / sqrt(mean(x²) + eps) * weight`; no weight counts as ones.
#[inline(always)]
fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    if weight.is_empty() {
        x.iter_mut().for_each(|x| *x *= scale);
    }
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// `x = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`; what is empty is left out.
#[inline(always)]
fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) {
    let mean = sum(x) / x.len() as f32;
    x.iter_mut().for_each(|x| *x -= mean);
    rms_norm(x, weight, eps);
    for (x, bias) in x.iter_mut().zip(bias) {
        *x += bias;
    }
}

#[inline(always)]
fn sum(x: &[f32]) -> f32 {
    let mut total = [0.0; LANES];
    for block in x.chunks(LANES) {
        let block = lanes(block);
        total = std::array::from_fn(|i| total[i] + block[i]);
    }
    fold(total)
}

/// Rounds a token's values to `i8`, block by block. `x` is whole blocks.
///
/// # Safety
/// `out` must be valid for writes of a block at every `stride`, as many as `x` has.
#[inline(always)]
unsafe fn quantize(x: &[f32], out: *mut ActivationBlock, stride: usize) {
    for (block, x) in x.as_chunks::<GROUP>().0.iter().enumerate() {
        let mut result = ActivationBlock::default();
        // Hidden, so that the compiler vectorizes within a group and not across groups, which would
        // need gathers.
        let x = std::hint::black_box(x);
        // As integers, magnitudes order as they do as floats, with NaN above all: a NaN
        // activation must not hide as zero.
        let mut largest = [0u32; GROUP];
        for i in 0..GROUP {
            largest[i] = x[i].to_bits() & 0x7fff_ffff;
        }
        let largest = f32::from_bits(largest.iter().fold(0, |max, bits| max.max(*bits)));
        let nothing = largest < VANISHING;
        result.scale = if nothing { 0.0 } else { largest / 127.0 };
        let inverse = if nothing { 0.0 } else { 127.0 / largest };
        let mut rounded = [0i32; GROUP];
        for i in 0..GROUP {
            // Adding this leaves the nearest whole number, ties to even, in the low bits.
            let bits = (x[i] * inverse + ROUND_MAGIC).to_bits() as i32;
            // What is not finite gives any code, which sums of sixteen bits must hold.
            rounded[i] =
                i32::from((bits.wrapping_sub(ROUND_MAGIC.to_bits() as i32) as i8).max(-127));
        }
        for (code, rounded) in result.codes.iter_mut().zip(&rounded) {
            *code = *rounded as i8;
        }
        for (half, rounded) in rounded.as_chunks::<SUM_GROUP>().0.iter().enumerate() {
            // By halves, which the compiler keeps in vectors: pairs of even and of odd number stay
            // apart.
            let mut eights = [0; 8];
            for i in 0..8 {
                eights[i] = rounded[i] + rounded[i + 8];
            }
            let mut fours = [0; 4];
            for i in 0..4 {
                fours[i] = eights[i] + eights[i + 4];
            }
            let pairs = [fours[0] + fours[1], fours[2] + fours[3]];
            result.pair_sums[half] = pairs.map(|sum| sum as i16);
            result.negated_sums[half] = -(pairs[0] + pairs[1]);
        }
        result.negated_sum = result.negated_sums[0] + result.negated_sums[1];
        result.scaled_sum = result.scale * -result.negated_sum as f32;
        // SAFETY: the caller's promise.
        unsafe { out.add(block * stride).write(result) };
    }
}

/// Below this the inverse of a scale would overflow.
const VANISHING: f32 = 1e-30;

/// 1.5 · 2²³: below 2²² in size, adding it rounds to a whole number.
pub(super) const ROUND_MAGIC: f32 = 12_582_912.0;

pub(super) const LN2_HIGH: f32 = 0.693_359_4;
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;
/// What [`exp`] takes; outside it stays at the ends.
pub(super) const EXP_RANGE: (f32, f32) = (-87.0, 88.0);
/// Its polynomial, from the highest power down to the square.
pub(super) const EXP_TERMS: [f32; 6] = [
    1.987_569_2e-4,
    1.398_2e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    1.666_666_5e-1,
    0.5,
];

/// e^x within 2 units in the last place for |x| ≤ 87.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (least, most) = EXP_RANGE;
    let x = if x < least { least } else { x };
    let x = if x > most { most } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_MAGIC);
    let n = shifted - ROUND_MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = EXP_TERMS[0];
    for term in &EXP_TERMS[1..] {
        p = p.mul_add(r, *term);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    times_power_of_two(p, shifted)
}

/// Times 2^n, where `shifted` is n plus [`ROUND_MAGIC`].
#[inline(always)]
pub(super) fn times_power_of_two(value: f32, shifted: f32) -> f32 {
    let power = (shifted.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32);
    // Two factors: n = 127 alone is in range, n = 128 (of e^88.7) is not.
    let half = power >> 1;
    let scale = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    value * scale(half) * scale(power - half)
}

/// Rotates pairs `(i, i + n)` of `head` by the angles with these cosines and sines.
#[inline(always)]
fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    let pairs = first.iter_mut().zip(&mut rest[..cos.len()]);
    for ((a, b), (cos, sin)) in pairs.zip(cos.iter().zip(sin)) {
        let (x, y) = (*a, *b);
        *a = x * cos - y * sin;
        *b = y * cos + x * sin;
    }
}

/// Rotates pairs `(2i, 2i + 1)`.
#[inline(always)]
fn rotate_interleaved(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let pairs = head.as_chunks_mut::<2>().0;
    for ([a, b], (cos, sin)) in pairs.iter_mut().zip(cos.iter().zip(sin)) {
        let (x, y) = (*a, *b);
        *a = x * cos - y * sin;
        *b = y * cos + x * sin;
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `values = values * sigmoid(gate)`
#[inline(always)]
fn sigmoid_gate(values: &mut [f32], gate: &[f32]) {
    for (value, gate) in values.iter_mut().zip(gate) {
        *value *= sigmoid(*gate);
    }
}

/// `values = values * silu(gate)`
#[inline(always)]
fn silu_gate(values: &mut [f32], gate: &[f32]) {
    for (value, gate) in values.iter_mut().zip(gate) {
        *value *= silu(*gate);
    }
}

/// `gate = activation(gate) * up`; no `up` counts as ones.
#[inline(always)]
fn activate(activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => gated(gate, up, silu),
        Activation::Gelu => gated(gate, up, gelu),
        Activation::GeluTanh => gated(gate, up, gelu_tanh),
        Activation::QuickGelu => gated(gate, up, |x| x * sigmoid(1.702 * x)),
        // NaN is not below zero, and stays.
        Activation::Relu => gated(gate, up, |x| if x <= 0.0 { 0.0 } else { x }),
        Activation::Relu2 => gated(gate, up, |x| if x <= 0.0 { 0.0 } else { x * x }),
        Activation::ClampedSwiglu { alpha, limit } => {
            for (gate, up) in gate.iter_mut().zip(up) {
                // Written so that NaN stays NaN.
                let x = if *gate > limit { limit } else { *gate };
                let up = if *up > limit { limit } else { *up };
                let up = if up < -limit { -limit } else { up };
                *gate = x * sigmoid(alpha * x) * (up + 1.0);
            }
        }
    }
}

#[inline(always)]
fn gated(gate: &mut [f32], up: &[f32], activation: impl Fn(f32) -> f32) {
    if up.is_empty() {
        gate.iter_mut().for_each(|x| *x = activation(*x));
    }
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = activation(*gate) * up;
    }
}

/// With the error function, by Abramowitz and Stegun 7.1.26: within 1.5e-7.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = (x * std::f32::consts::FRAC_1_SQRT_2).abs();
    let t = 1.0 / 0.327_591_1f32.mul_add(z, 1.0);
    let mut p = 1.061_405_4f32;
    for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        p = p.mul_add(t, c);
    }
    let tail = p * t * exp(-z * z);
    0.5 * x * if x < 0.0 { tail } else { 2.0 - tail }
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    // 1 - 2/(e^2x + 1) loses what little x has near 0; the odd polynomial keeps it.
    let squared = x * x;
    let small = x * squared.mul_add(squared.mul_add(2.0 / 15.0, -1.0 / 3.0), 1.0);
    let large = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if squared < 0.0016 { small } else { large }
}

#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let inner = SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
    0.5 * x * (1.0 + tanh(inner))
}

/// `x = tanh(x / cap) * cap`
#[inline(always)]
pub(super) fn softcap(values: &mut [f32], cap: f32) {
    for value in values {
        *value = tanh(*value / cap) * cap;
    }
}

/// A causal convolution's weights, `[kernel][channel]`, and its bias, perhaps none.
pub struct ConvWeights<'a> {
    pub weights: &'a [f32],
    pub bias: &'a [f32],
}

/// A causal convolution's next output for each channel, in place of the new input. `past` holds
/// the inputs before it, oldest first, as `[kernel - 1][channel]`, and moves on.
#[inline(always)]
fn conv_step(x: &mut [f32], conv: &ConvWeights, past: &mut [f32]) {
    let ConvWeights { weights, bias } = *conv;
    let channels = x.len();
    for first in (0..channels).step_by(LANES) {
        let span = first..(first + LANES).min(channels);
        let width = span.len();
        let new = lanes(&x[span.clone()]);
        let mut total = bias.get(span.clone()).map_or([0.0; LANES], lanes);
        let mut at = first;
        while at < past.len() {
            let before = lanes(&past[at..at + width]);
            total = fma(lanes(&weights[at..at + width]), before, total);
            let next = match past.get(at + channels..at + channels + width) {
                Some(next) => lanes(next),
                None => new,
            };
            past[at..at + width].copy_from_slice(&next[..width]);
            at += channels;
        }
        total = fma(lanes(&weights[at..at + width]), new, total);
        x[span].copy_from_slice(&total[..width]);
    }
}

/// Stretches `x` to length one, as far as `eps` lets it.
#[inline(always)]
fn unit_length(x: &mut [f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) + eps).sqrt();
    x.iter_mut().for_each(|x| *x *= scale);
}

/// One token of a delta rule's head.
pub struct DeltaStep<'a> {
    pub query: &'a [f32],
    pub key: &'a [f32],
    pub value: &'a [f32],
    /// What is left of the state: one factor, or one for each key channel.
    pub decay: &'a [f32],
    pub beta: f32,
}

/// Decays the `[key channel][value channel]` state, moves its output for the key towards the value,
/// and writes its output for the query to `out`.
#[inline(always)]
fn delta_step(step: &DeltaStep, state: &mut [f32], out: &mut [f32]) {
    let width = out.len();
    out.fill(0.0);
    let decay = |row: usize| step.decay[if step.decay.len() == 1 { 0 } else { row }];
    for (row, values) in state.chunks_exact_mut(width).enumerate() {
        let (decay, key) = (decay(row), step.key[row]);
        for (value, out) in values.iter_mut().zip(out.iter_mut()) {
            *value *= decay;
            *out = key.mul_add(*value, *out);
        }
    }
    for (out, value) in out.iter_mut().zip(step.value) {
        *out = (value - *out) * step.beta;
    }
    // `out` now holds the update; the output replaces it, block by block.
    let mut first = 0;
    while first + LANES <= width {
        delta_answer::<LANES>(step, state, out, first);
        first += LANES;
    }
    while first < width {
        delta_answer::<1>(step, state, out, first);
        first += 1;
    }
}

#[inline(always)]
fn delta_answer<const N: usize>(
    step: &DeltaStep,
    state: &mut [f32],
    out: &mut [f32],
    first: usize,
) {
    let width = out.len();
    let mut change = [0.0; N];
    change.copy_from_slice(&out[first..first + N]);
    let mut answer = [0.0; N];
    let rows = state.chunks_exact_mut(width);
    for ((values, key), query) in rows.zip(step.key).zip(step.query) {
        let values = &mut values[first..first + N];
        for i in 0..N {
            values[i] = key.mul_add(change[i], values[i]);
            answer[i] = query.mul_add(values[i], answer[i]);
        }
    }
    out[first..first + N].copy_from_slice(&answer);
}

/// One token of a Mamba-2 head.
pub struct MambaStep<'a> {
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
    pub decay: f32,
    /// The step size.
    pub step: f32,
    /// The skip connection's factor.
    pub skip: f32,
}

/// Decays the `[head channel][state]` state, adds `step * x * b`, and reads it through `c`.
#[inline(always)]
fn mamba_step(step: &MambaStep, state: &mut [f32], out: &mut [f32]) {
    let rows = state.chunks_exact_mut(step.b.len());
    for ((row, x), out) in rows.zip(step.x).zip(out) {
        let added = step.step * x;
        for (value, b) in row.iter_mut().zip(step.b) {
            *value = value.mul_add(step.decay, added * b);
        }
        *out = step.skip.mul_add(*x, dot(row, step.c));
    }
}

/// Builds every kernel under one set of target features, and the table that holds them.
macro_rules! build {
    (
        $module:ident, $name:literal, $tile:path, $tile_pair:expr, $register:ty, [$exact:path, $rounded:path],
        $(#[$feature:meta])*
    ) => {
        pub mod $module {
            use loquat_spec::Activation;

            use super::{ConvWeights, DeltaStep, MambaStep};
            use crate::tile::ActivationBlock;
            use crate::{attention, dense};
            use crate::{
                AttendArgs, AttendQuery, Bf16Bits, DenseArgs, DenseProducts, DenseScratch, F16Bits,
                Kernels, LowRankJob, PlainOut, PlainRows, Rounded,
            };

            build!(@kernels $(#[$feature])*;
                fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32);
                fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32);
                fn unit_length(x: &mut [f32], eps: f32);
                fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]);
                fn rotate_interleaved(head: &mut [f32], cos: &[f32], sin: &[f32]);
                fn activate(activation: Activation, gate: &mut [f32], up: &[f32]);
                fn sigmoid_gate(values: &mut [f32], gate: &[f32]);
                fn silu_gate(values: &mut [f32], gate: &[f32]);
                fn conv_step(x: &mut [f32], conv: &ConvWeights, past: &mut [f32]);
                fn delta_step(step: &DeltaStep, state: &mut [f32], out: &mut [f32]);
                fn mamba_step(step: &MambaStep, state: &mut [f32], out: &mut [f32]);
                fn softcap(values: &mut [f32], cap: f32);
                fn rotate_codes(head: &mut [f32]);
                fn unrotate_codes(head: &mut [f32]);
                fn round_bf16(x: &[f32], pairs: &mut [u32]) -> f32;
                fn join_pieces(answers: &[f32], sink: Option<f32>, out: &mut [f32]);
            );

            build!(@attention $register, $(#[$feature])*;
                attend_f32: f32, attend_f16: F16Bits, attend_bf16: Bf16Bits, attend_codes: u8,
            );

            $(#[$feature])*
            unsafe fn quantize(x: &[f32], out: *mut ActivationBlock, stride: usize) {
                // SAFETY: the caller's promise.
                unsafe { super::quantize(x, out, stride) };
            }

            $(#[$feature])*
            unsafe fn plain(rows: &PlainRows, x: &[f32], out: PlainOut) {
                // SAFETY: as the caller's.
                unsafe { $exact(rows, x, out) }
            }

            $(#[$feature])*
            unsafe fn plain_bf16(rows: &PlainRows, x: &Rounded, out: PlainOut) {
                // SAFETY: as the caller's.
                unsafe { $rounded(rows, x, out) }
            }

            $(#[$feature])*
            fn attend_dense(args: &DenseArgs, scratch: &mut DenseScratch, out: &mut [f32]) {
                dense::attend::<$register, dense::Exact>(args, scratch, out);
            }

            $(#[$feature])*
            fn attend_dense_bf16(args: &DenseArgs, scratch: &mut DenseScratch, out: &mut [f32]) {
                dense::attend::<$register, dense::Widened>(args, scratch, out);
            }

            $(#[$feature])*
            unsafe fn add_low_rank(jobs: &[LowRankJob]) {
                // SAFETY: as the caller's.
                unsafe { crate::low_rank::add::<$register>(jobs) }
            }

            pub const TABLE: Kernels = Kernels {
                name: $name,
                rms_norm,
                layer_norm,
                unit_length,
                quantize,
                rotate,
                rotate_interleaved,
                activate,
                sigmoid_gate,
                silu_gate,
                conv_step,
                delta_step,
                mamba_step,
                softcap,
                round_bf16,
                plain,
                plain_bf16,
                add_low_rank,
                attend_f32,
                attend_f16,
                attend_bf16,
                attend_codes,
                attend_dense,
                attend_dense_bf16,
                dense_bf16: DenseProducts::Widened,
                rotate_codes,
                unrotate_codes,
                join_pieces,
                tile: $tile,
                tile_pair: $tile_pair,
            };
        }
    };
    (@attention $register:ty, $(#[$feature:meta])*; ) => {};
    (@attention $register:ty, $(#[$feature:meta])*; $kernel:ident: $element:ty, $($rest:tt)*) => {
        $(#[$feature])*
        fn $kernel(args: &AttendArgs<$element>, queries: &mut [AttendQuery]) {
            attention::attend::<$register, $element>(args, queries)
        }
        build!(@attention $register, $(#[$feature])*; $($rest)*);
    };
    (@kernels $(#[$feature:meta])*; ) => {};
    (@kernels $(#[$feature:meta])*;
        fn $kernel:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?; $($rest:tt)*
    ) => {
        $(#[$feature])*
        fn $kernel($($arg: $type),*) $(-> $result)? {
            super::$kernel($($arg),*)
        }
        build!(@kernels $(#[$feature])*; $($rest)*);
    };
}

build!(
    portable,
    "portable",
    crate::tile::portable,
    None,
    [f32; super::LANES],
    [
        crate::plain::exact::<[f32; crate::LANES]>,
        crate::plain::rounded::<[f32; crate::LANES]>
    ],
);
#[cfg(target_arch = "x86_64")]
build!(avx2, "avx2", crate::tile_avx2::tile, None, crate::register::Avx2,
    [crate::plain::exact::<crate::register::Avx2>, crate::plain::rounded::<crate::register::Avx2>],
    #[target_feature(enable = "avx2,fma,f16c")]
);
#[cfg(target_arch = "x86_64")]
build!(avx512, "avx512-vnni", crate::tile_avx512::tile, Some(crate::tile_avx512::tile_pair),
    crate::register::Avx512,
    [crate::plain_avx512::exact, crate::plain_avx512::rounded],
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
);

/// Adds the dot product of bf16 pairs.
#[cfg(target_arch = "x86_64")]
pub const AVX512_BF16: Kernels = Kernels {
    name: "avx512-bf16",
    plain_bf16: plain_avx512::rounded_native,
    attend_dense_bf16: dense::pairs::attend,
    dense_bf16: DenseProducts::Pairs,
    ..avx512::TABLE
};
/// Adds the tile unit; every machine that has it has that dot product.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub const AMX: Kernels = Kernels {
    name: "amx",
    tile: tile_amx::tile,
    tile_pair: Some(tile_amx::tile_pair),
    ..AVX512_BF16
};
#[cfg(target_arch = "x86_64")]
pub const AVX_VNNI: Kernels = Kernels {
    name: "avx-vnni",
    tile: tile_avx2::tile_vnni,
    ..avx2::TABLE
};

/// The portable kernels of floats use NEON already, since every such machine has it.
#[cfg(target_arch = "aarch64")]
pub const NEON: Kernels = Kernels {
    name: "neon",
    attend_codes: code_register::attend_neon,
    tile: tile_neon::tile,
    ..portable::TABLE
};
#[cfg(target_arch = "aarch64")]
pub const NEON_DOTPROD: Kernels = Kernels {
    name: "neon-dotprod",
    attend_codes: code_register::attend_dotprod,
    tile: tile_neon::tile_dotprod,
    ..NEON
};
