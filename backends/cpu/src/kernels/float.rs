//! Floating-point kernels over arrays of lanes, built once per instruction set by [`build!`].

use super::{GROUP, Half, KvElement, LANES, PAGE, SUM_GROUP, f16_to_f32};
use crate::shared::PagePtr;

type Lanes = [f32; LANES];

/// Independent chains in a reduction, so that one add's latency does not bound the next.
const CHAINS: usize = 4;

#[inline(always)]
fn lanes(values: &[f32]) -> Lanes {
    let mut out = [0.0; LANES];
    out[..values.len()].copy_from_slice(values);
    out
}

#[inline(always)]
fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
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
fn fold(mut lanes: Lanes) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
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

/// `x = x / sqrt(mean(x²) + eps) * weight`
#[inline(always)]
fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt();
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// Where a row of rounded activations goes.
pub struct Quantized<'a> {
    pub codes: &'a mut [i8],
    /// The factor of each [`GROUP`].
    pub scales: &'a mut [f32],
    /// The sum of the codes of each [`SUM_GROUP`].
    pub sums: &'a mut [i32],
    /// Scale times sum of each [`GROUP`].
    pub scaled_sums: &'a mut [f32],
}

/// Rounds `x` to `i8`, group by group. `x` is whole groups.
#[inline(always)]
fn quantize(x: &[f32], out: Quantized) {
    let groups = x.as_chunks::<GROUP>().0.iter();
    let groups = groups.zip(out.codes.as_chunks_mut::<GROUP>().0);
    let sums = out.sums.as_chunks_mut::<{ GROUP / SUM_GROUP }>().0;
    let outputs = out.scales.iter_mut().zip(sums).zip(out.scaled_sums);
    for ((x, codes), ((scale, sums), scaled_sum)) in groups.zip(outputs) {
        // Hidden, so that the compiler makes registers of a group's values and not of the same
        // value of many groups, which it would have to gather.
        let x = std::hint::black_box(x);
        // As integers, magnitudes order as they do as floats, with NaN above all: a NaN
        // activation must not hide as zero.
        let mut largest = [0u32; GROUP];
        for i in 0..GROUP {
            largest[i] = x[i].to_bits() & 0x7fff_ffff;
        }
        let largest = f32::from_bits(largest.iter().fold(0, |max, bits| max.max(*bits)));
        let nothing = largest < VANISHING;
        *scale = if nothing { 0.0 } else { largest / 127.0 };
        let inverse = if nothing { 0.0 } else { 127.0 / largest };
        let mut rounded = [0i32; GROUP];
        for i in 0..GROUP {
            // Adding this leaves the nearest whole number, ties to even, in the low bits.
            let bits = (x[i] * inverse + ROUND_MAGIC).to_bits() as i32;
            rounded[i] = bits.wrapping_sub(ROUND_MAGIC.to_bits() as i32);
        }
        for i in 0..GROUP {
            codes[i] = rounded[i] as i8;
            rounded[i] = i32::from(codes[i]);
        }
        sums[0] = rounded[..SUM_GROUP].iter().sum();
        sums[1] = rounded[SUM_GROUP..].iter().sum();
        *scaled_sum = *scale * (sums[0] + sums[1]) as f32;
    }
}

/// Below this the inverse of a scale would overflow.
const VANISHING: f32 = 1e-30;

/// 1.5 · 2²³: below 2²² in size, adding it rounds to a whole number.
const ROUND_MAGIC: f32 = 12_582_912.0;

/// e^x within 2 units in the last place for |x| ≤ 87; outside it stays at the ends.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND_MAGIC);
    let n = shifted - ROUND_MAGIC;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = 1.987_569_2e-4f32;
    for c in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p.mul_add(r, c);
    }
    let p = p.mul_add(r * r, r) + 1.0;
    let power = (shifted.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32);
    // 2^n as two factors: n = 127 alone is in range, n = 128 (x near 88.7) is not.
    let half = power >> 1;
    let scale = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    p * scale(half) * scale(power - half)
}

/// Turns pairs `(i, i + n)` of `head` by the angles whose cosines and sines are given.
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

/// `gate = silu(gate) * up`
#[inline(always)]
fn silu_gate(gate: &mut [f32], up: &[f32]) {
    for (gate, up) in gate.iter_mut().zip(up) {
        *gate = *gate / (1.0 + exp(-*gate)) * up;
    }
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    // 1 - 2/(e^2x + 1) loses what little x has near 0; the odd polynomial keeps it.
    let squared = x * x;
    let small = x * squared.mul_add(squared.mul_add(2.0 / 15.0, -1.0 / 3.0), 1.0);
    let large = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if squared < 0.0016 { small } else { large }
}

/// `gate = gelu(gate) * up`, the tanh form.
#[inline(always)]
fn gelu_gate(gate: &mut [f32], up: &[f32]) {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let inner = SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x);
        *gate = 0.5 * x * (1.0 + tanh(inner)) * up;
    }
}

/// `x = tanh(x / cap) * cap`
#[inline(always)]
fn softcap(values: &mut [f32], cap: f32) {
    for value in values {
        *value = tanh(*value / cap) * cap;
    }
}

#[inline(always)]
fn decode_bf16(bytes: &[u8], out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
    }
}

#[inline(always)]
fn decode_f16(bytes: &[u8], out: &mut [f32]) {
    for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
        *out = f16_to_f32(u16::from_le_bytes([b[0], b[1]]));
    }
}

/// Where one head's keys and values lie in a page: keys as `[head_dim][PAGE]`, so that a
/// register holds many tokens, values as `[PAGE][head_dim]`.
#[derive(Clone, Copy)]
pub struct HeadPages<'a, T> {
    /// The sequence's pages, oldest first.
    pub pages: &'a [PagePtr<T>],
    pub key_offset: usize,
    pub value_offset: usize,
}

/// One query against the positions `start..end`.
pub struct AttendArgs<'a, T> {
    pub query: &'a [f32],
    pub scale: f32,
    pub pages: HeadPages<'a, T>,
    pub start: usize,
    pub end: usize,
}

/// Softmax attention, page by page in order with a running maximum. What a position computes
/// depends on its own pages' contents at `start..end` alone.
#[inline(always)]
fn attend<T: KvElement>(args: &AttendArgs<T>, out: &mut [f32]) {
    let head_dim = args.query.len();
    out.fill(0.0);
    let (mut max, mut total) = (f32::NEG_INFINITY, 0.0f32);
    for page_index in args.start / PAGE..args.end.div_ceil(PAGE) {
        let first = page_index * PAGE;
        let (from, to) = (
            args.start.max(first) - first,
            args.end.min(first + PAGE) - first,
        );
        let page = args.pages.pages[page_index];
        // SAFETY: the step has written its tokens and waited for all threads before any of them
        // attends, and pages live as long as the cache.
        let (keys, values) = unsafe {
            (
                page.slice(args.pages.key_offset, head_dim * PAGE),
                page.slice(args.pages.value_offset, head_dim * PAGE),
            )
        };

        let mut weights = scores(args.query, keys, args.scale);
        let page_max = weights[from..to]
            .iter()
            .fold(max, |m, s| if *s > m { *s } else { m });
        for (i, weight) in weights.iter_mut().enumerate() {
            let seen = i >= from && i < to;
            let raised = exp(*weight - page_max);
            *weight = if seen { raised } else { 0.0 };
        }
        let correction = exp(max - page_max);
        let correction = if max == f32::NEG_INFINITY {
            0.0
        } else {
            correction
        };
        total = total.mul_add(
            correction,
            fold(std::array::from_fn(|i| weights[i] + weights[i + LANES])),
        );
        max = page_max;
        accumulate(
            &weights[from..to],
            &values[from * head_dim..to * head_dim],
            correction,
            out,
        );
    }
    let inverse = 1.0 / total;
    out.iter_mut().for_each(|value| *value *= inverse);
}

/// Query times every key of the page, including those that will be masked.
#[inline(always)]
fn scores<T: KvElement>(query: &[f32], keys: &[T], scale: f32) -> [f32; PAGE] {
    let mut even = [0.0f32; PAGE];
    let mut odd = [0.0f32; PAGE];
    let mut pairs = query.chunks_exact(2).zip(keys.chunks_exact(2 * PAGE));
    for (q, k) in pairs.by_ref() {
        for i in 0..PAGE {
            even[i] = q[0].mul_add(k[i].load(), even[i]);
        }
        for i in 0..PAGE {
            odd[i] = q[1].mul_add(k[PAGE + i].load(), odd[i]);
        }
    }
    if query.len() % 2 == 1 {
        let last = query.len() - 1;
        for i in 0..PAGE {
            even[i] = query[last].mul_add(keys[last * PAGE + i].load(), even[i]);
        }
    }
    std::array::from_fn(|i| (even[i] + odd[i]) * scale)
}

/// `out = out * correction + Σ weight · value`, token after token.
#[inline(always)]
fn accumulate<T: KvElement>(weights: &[f32], values: &[T], correction: f32, out: &mut [f32]) {
    let head_dim = out.len();
    let mut done = 0;
    // Four registers of the head at a time, so that their chains overlap.
    while done + CHAINS * LANES <= head_dim {
        accumulate_block::<T, { CHAINS * LANES }>(weights, values, correction, out, done);
        done += CHAINS * LANES;
    }
    while done + LANES <= head_dim {
        accumulate_block::<T, LANES>(weights, values, correction, out, done);
        done += LANES;
    }
    while done < head_dim {
        accumulate_block::<T, 1>(weights, values, correction, out, done);
        done += 1;
    }
}

#[inline(always)]
fn accumulate_block<T: KvElement, const N: usize>(
    weights: &[f32],
    values: &[T],
    correction: f32,
    out: &mut [f32],
    at: usize,
) {
    let head_dim = out.len();
    let mut sum = [0.0; N];
    sum.copy_from_slice(&out[at..at + N]);
    for value in &mut sum {
        *value *= correction;
    }
    for (weight, row) in weights.iter().zip(values.chunks_exact(head_dim)) {
        let row = &row[at..at + N];
        for i in 0..N {
            sum[i] = weight.mul_add(row[i].load(), sum[i]);
        }
    }
    out[at..at + N].copy_from_slice(&sum);
}

/// Builds every kernel under one set of target features, and the table that holds them.
macro_rules! build {
    ($module:ident, $name:literal, $tile:path, $(#[$feature:meta])*) => {
        pub mod $module {
            use super::{AttendArgs, Half, Quantized};
            use crate::kernels::Kernels;

            build!(@kernels $(#[$feature])*;
                fn dot(a: &[f32], b: &[f32]) -> f32;
                fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32);
                fn quantize(x: &[f32], out: Quantized);
                fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]);
                fn silu_gate(gate: &mut [f32], up: &[f32]);
                fn gelu_gate(gate: &mut [f32], up: &[f32]);
                fn softcap(values: &mut [f32], cap: f32);
                fn decode_bf16(bytes: &[u8], out: &mut [f32]);
                fn decode_f16(bytes: &[u8], out: &mut [f32]);
            );

            $(#[$feature])*
            fn attend_f32(args: &AttendArgs<f32>, out: &mut [f32]) {
                super::attend(args, out)
            }

            $(#[$feature])*
            fn attend_f16(args: &AttendArgs<Half>, out: &mut [f32]) {
                super::attend(args, out)
            }

            pub static TABLE: Kernels = Kernels {
                name: $name,
                dot,
                rms_norm,
                quantize,
                rotate,
                silu_gate,
                gelu_gate,
                softcap,
                decode_bf16,
                decode_f16,
                attend_f32,
                attend_f16,
                tile: $tile,
            };
        }
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

build!(portable, "portable", crate::kernels::tile::portable,);
#[cfg(target_arch = "x86_64")]
build!(avx2, "avx2", crate::kernels::tile_x86::avx2,
    #[target_feature(enable = "avx2,fma")]
);
#[cfg(target_arch = "x86_64")]
build!(avx512, "avx512-vnni", crate::kernels::tile_x86::avx512_vnni,
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
);
