//! ggml's blocks of 256 values, whose sub-blocks have small scales of their own: each sub-block's
//! scale (and minimum) is searched for the least weighted error, then all are rounded together.

use half::f16;

/// Below this a sub-block counts as zero.
const NOTHING: f32 = 1e-15;

/// ggml's rounding: to nearest, ties to even.
fn nearest(value: f32) -> i32 {
    value.round_ties_even() as i32
}

/// How a sub-block with a minimum is searched: codes up to `most`, and scales for
/// `most + first + 0.1 * step` of them, `steps` steps from the first.
struct Search {
    most: i32,
    first: f32,
    steps: usize,
}

const FOUR_BITS: Search = Search {
    most: 15,
    first: -1.0,
    steps: 20,
};
const FIVE_BITS: Search = Search {
    most: 31,
    first: -0.5,
    steps: 15,
};

pub(super) fn q4_k(values: &[f32; 256]) -> [u8; 144] {
    let block = with_minima(values, &FOUR_BITS);
    let mut out = [0; 144];
    out[..16].copy_from_slice(&block.head);
    put_nibbles(&block.codes, &mut out[16..]);
    out
}

pub(super) fn q5_k(values: &[f32; 256]) -> [u8; 176] {
    let block = with_minima(values, &FIVE_BITS);
    let mut out = [0; 176];
    out[..16].copy_from_slice(&block.head);
    for (i, code) in block.codes.iter().enumerate() {
        out[16 + i % 32] |= (code >> 4 & 1) << (i / 32);
    }
    put_nibbles(&block.codes, &mut out[48..]);
    out
}

/// Nibbles pair a sub-block with the one after it.
fn put_nibbles(codes: &[u8; 256], out: &mut [u8]) {
    let pairs = codes.as_chunks::<64>().0.iter();
    for (pair, bytes) in pairs.zip(out.as_chunks_mut::<32>().0) {
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = (pair[i] & 0xF) | (pair[i + 32] & 0xF) << 4;
        }
    }
}

struct WithMinima {
    /// Both scales of scales, and the 6-bit scales and minima.
    head: [u8; 16],
    codes: [u8; 256],
}

fn with_minima(values: &[f32; 256], search: &Search) -> WithMinima {
    let parts = values.as_chunks::<32>().0;
    let mut codes = [0; 256];
    let (mut scales, mut minima) = ([0.0f32; 8], [0.0f32; 8]);
    for (j, (part, codes)) in parts.iter().zip(codes.as_chunks_mut().0).enumerate() {
        (scales[j], minima[j]) = search.run(part, codes);
    }
    let most = |of: &[f32; 8]| of.iter().copied().fold(0.0, f32::max);
    let (top_scale, top_minimum) = (most(&scales), most(&minima));
    let inverse = |top: f32| if top > 0.0 { 63.0 / top } else { 0.0 };
    let six_bits = |value: f32, top: f32| (nearest(inverse(top) * value) as u8).min(63);
    let scales = scales.map(|scale| six_bits(scale, top_scale));
    let minima = minima.map(|minimum| six_bits(minimum, top_minimum));
    let (d, dmin) = (
        f16::from_f32(top_scale / 63.0),
        f16::from_f32(top_minimum / 63.0),
    );
    // The codes again, for the rounded scales.
    for (j, (part, codes)) in parts.iter().zip(codes.as_chunks_mut::<32>().0).enumerate() {
        let scale = d.to_f32() * f32::from(scales[j]);
        let minimum = dmin.to_f32() * f32::from(minima[j]);
        if scale == 0.0 {
            continue;
        }
        for (code, value) in codes.iter_mut().zip(part) {
            *code = nearest((value + minimum) / scale).clamp(0, search.most) as u8;
        }
    }
    let mut head = [0; 16];
    head[..2].copy_from_slice(&d.to_le_bytes());
    head[2..4].copy_from_slice(&dmin.to_le_bytes());
    head[4..].copy_from_slice(&packed_scales(&scales, &minima));
    WithMinima { head, codes }
}

/// The last four sub-blocks keep their low nibbles in the last four bytes and their high bits
/// above the first eight.
fn packed_scales(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    let mut out = [0; 12];
    for j in 0..4 {
        out[j] = scales[j] | (scales[j + 4] >> 4) << 6;
        out[j + 4] = minima[j] | (minima[j + 4] >> 4) << 6;
        out[j + 8] = (scales[j + 4] & 0xF) | (minima[j + 4] & 0xF) << 4;
    }
    out
}

impl Search {
    /// The scale and the subtracted minimum of one sub-block; sets `codes`.
    fn run(&self, values: &[f32; 32], codes: &mut [u8; 32]) -> (f32, f32) {
        let squares: f32 = values.iter().fold(0.0, |sum, value| sum + value * value);
        let typical = (squares / 32.0).sqrt();
        let weights = values.map(|value| typical + value.abs());
        let (mut least, mut greatest) = (values[0], values[0]);
        let (mut sum_w, mut sum_x) = (weights[0], weights[0] * values[0]);
        for (value, weight) in values.iter().zip(&weights).skip(1) {
            least = least.min(*value);
            greatest = greatest.max(*value);
            sum_w += weight;
            sum_x += weight * value;
        }
        least = least.min(0.0);
        if greatest == least {
            *codes = [0; 32];
            return (0.0, -least);
        }
        let most = self.most as f32;
        let trial = |inverse: f32| {
            values.map(|value| nearest(inverse * (value - least)).clamp(0, self.most) as u8)
        };
        let error = |codes: &[u8; 32], scale: f32, minimum: f32| {
            let all = codes.iter().zip(values).zip(&weights);
            all.fold(0.0f32, |sum, ((code, value), weight)| {
                let apart = scale * f32::from(*code) + minimum - value;
                sum + weight * (apart * apart)
            })
        };
        let inverse = most / (greatest - least);
        *codes = trial(inverse);
        let (mut scale, mut minimum) = (1.0 / inverse, least);
        let mut best = error(codes, scale, minimum);
        for step in 0..=self.steps {
            let inverse = (self.first + 0.1 * step as f32 + most) / (greatest - least);
            let tried = trial(inverse);
            let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0f32, 0.0f32, 0.0f32);
            for ((code, value), weight) in tried.iter().zip(values).zip(&weights) {
                let code = f32::from(*code);
                sum_l += weight * code;
                sum_l2 += weight * code * code;
                sum_xl += weight * code * value;
            }
            let determinant = sum_w * sum_l2 - sum_l * sum_l;
            if determinant <= 0.0 {
                continue;
            }
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_minimum > 0.0 {
                this_minimum = 0.0;
                this_scale = sum_xl / sum_l2;
            }
            let this_error = error(&tried, this_scale, this_minimum);
            if this_error < best {
                (*codes, best) = (tried, this_error);
                (scale, minimum) = (this_scale, this_minimum);
            }
        }
        (scale, -minimum)
    }
}

pub(super) fn q6_k(values: &[f32; 256]) -> [u8; 210] {
    let mut out = [0; 210];
    let parts = values.as_chunks::<16>().0;
    let mut codes = [0u8; 256];
    let mut scales = [0.0f32; 16];
    for (j, (part, codes)) in parts.iter().zip(codes.as_chunks_mut().0).enumerate() {
        scales[j] = around_zero(part, codes);
    }
    let mut top = 0.0f32;
    for scale in scales {
        if scale.abs() > top.abs() {
            top = scale;
        }
    }
    if top.abs() < NOTHING {
        return out;
    }
    let inverse = -128.0 / top;
    let d = f16::from_f32(1.0 / inverse);
    let scales = scales.map(|scale| nearest(inverse * scale).min(127) as i8);
    for (j, (part, codes)) in parts.iter().zip(codes.as_chunks_mut::<16>().0).enumerate() {
        let scale = d.to_f32() * f32::from(scales[j]);
        if scale == 0.0 {
            continue;
        }
        for (code, value) in codes.iter_mut().zip(part) {
            *code = (nearest(value / scale).clamp(-32, 31) + 32) as u8;
        }
    }
    for (i, code) in codes.iter().enumerate() {
        // Each half of 128 values has four runs of 32.
        let (part, run, l) = (i / 128, i % 128 / 32, i % 32);
        out[part * 64 + run % 2 * 32 + l] |= (code & 0xF) << (run / 2 * 4);
        out[128 + part * 32 + l] |= (code >> 4) << (run * 2);
    }
    for (byte, scale) in out[192..208].iter_mut().zip(scales) {
        *byte = scale as u8;
    }
    out[208..].copy_from_slice(&d.to_le_bytes());
    out
}

/// The scale of a sub-block of signed 6-bit codes; sets `codes`, with 32 added.
fn around_zero(values: &[f32; 16], codes: &mut [u8; 16]) -> f32 {
    const MOST: i32 = 32;
    let mut top = 0.0f32;
    for &value in values {
        if value.abs() > top.abs() {
            top = value;
        }
    }
    if top.abs() < NOTHING {
        *codes = [0; 16];
        return 0.0;
    }
    let trial = |inverse: f32| values.map(|value| nearest(inverse * value).clamp(-MOST, MOST - 1));
    let sums = |tried: &[i32; 16]| {
        let mut sums = (0.0f32, 0.0f32);
        for (code, value) in tried.iter().zip(values) {
            let (code, weight) = (*code as f32, value * value);
            sums.0 += weight * value * code;
            sums.1 += weight * code * code;
        }
        sums
    };
    let shifted = |tried: [i32; 16]| tried.map(|code| (code + MOST) as u8);
    let tried = trial(-(MOST as f32) / top);
    let (sum_lx, sum_l2) = sums(&tried);
    *codes = shifted(tried);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for step in (-9..=9).filter(|step| *step != 0) {
        let tried = trial(-(MOST as f32 + 0.1 * step as f32) / top);
        let (sum_lx, sum_l2) = sums(&tried);
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            *codes = shifted(tried);
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    scale
}
