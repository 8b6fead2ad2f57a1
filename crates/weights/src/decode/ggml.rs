//! ggml's quantized blocks.
//!
//! A `_0` block scales signed codes, a `_1` block adds a minimum. A `_K` block
//! of 256 values holds 6- or 8-bit scales for its sub-blocks, themselves scaled
//! by one or two half-precision numbers. Nibbles pair value `i` with value
//! `i + n`, never with its neighbour.

use half::f16;

use super::float8::{e2m1, e8m0};

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Scale, then 16 bytes of nibbles less 8.
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        out[i] = (i32::from(byte & 0xF) - 8) as f32 * d;
        out[i + 16] = (i32::from(byte >> 4) - 8) as f32 * d;
    }
}

/// Scale, minimum, then 16 bytes of nibbles.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        out[i] = f32::from(byte & 0xF) * d + m;
        out[i + 16] = f32::from(byte >> 4) * d + m;
    }
}

/// A power of two, then 16 bytes of 4-bit floats.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = e8m0(block[0]);
    for (i, &byte) in block[1..].iter().enumerate() {
        out[i] = scale * e2m1(byte & 0xF);
        out[i + 16] = scale * e2m1(byte >> 4);
    }
}

/// The 5-bit codes of a 32-value block: 32 high bits, then 16 bytes of nibbles.
fn five_bit_codes(bytes: &[u8], mut emit: impl FnMut(usize, u8)) {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let bit = |i: usize| ((high >> i & 1) as u8) << 4;
    for (i, &byte) in bytes[4..20].iter().enumerate() {
        emit(i, byte & 0xF | bit(i));
        emit(i + 16, byte >> 4 | bit(i + 16));
    }
}

/// Scale, then 5-bit codes less 16.
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    five_bit_codes(&block[2..], |i, code| {
        out[i] = (i32::from(code) - 16) as f32 * d;
    });
}

/// Scale, minimum, then 5-bit codes.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    five_bit_codes(&block[4..], |i, code| out[i] = f32::from(code) * d + m);
}

/// Scale, then 32 signed bytes.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (value, &byte) in out.iter_mut().zip(&block[2..]) {
        *value = f32::from(byte as i8) * d;
    }
}

/// The 6-bit scale and minimum of sub-block `j` of 8, from the 12 bytes that
/// hold all sixteen: the last four sub-blocks keep their low nibbles in the last
/// four bytes and their high bits atop the first eight.
fn scale_min(scales: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        (
            scales[j + 4] & 0xF | scales[j - 4] >> 6 << 4,
            scales[j + 4] >> 4 | scales[j] >> 6 << 4,
        )
    };
    (f32::from(scale), f32::from(min))
}

/// Scale, minimum scale, 12 bytes of sub-block scales, 128 bytes of nibbles.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    k_with_min(block, &block[4..16], &block[16..], None, out);
}

/// As `q4_k`, with a plane of 32 bytes of high bits before the nibbles.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    k_with_min(
        block,
        &block[4..16],
        &block[48..],
        Some(&block[16..48]),
        out,
    );
}

fn k_with_min(
    head: &[u8],
    scales: &[u8],
    nibbles: &[u8],
    high: Option<&[u8]>,
    out: &mut [f32; 256],
) {
    let (d, dmin) = (half(head, 0), half(head, 2));
    for (j, values) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, j);
        let (scale, min) = (d * scale, dmin * min);
        for (l, value) in values.iter_mut().enumerate() {
            let nibble = nibbles[j / 2 * 32 + l] >> (j % 2 * 4) & 0xF;
            let top = high.map_or(0, |high| (high[l] >> j & 1) << 4);
            *value = scale * f32::from(nibble | top) - min;
        }
    }
}

/// 128 bytes of nibbles, 64 of high bit pairs, 16 signed scales, one scale of
/// scales; codes less 32.
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, d) = rest.split_at(16);
    let d = half(d, 0);
    for (i, value) in out.iter_mut().enumerate() {
        // Each half of 128 values has four runs of 32.
        let (part, run, l) = (i / 128, i % 128 / 32, i % 32);
        let nibble = low[part * 64 + run % 2 * 32 + l] >> (run / 2 * 4) & 0xF;
        let pair = high[part * 32 + l] >> (run * 2) & 3;
        let code = i32::from(nibble | pair << 4) - 32;
        *value = d * f32::from(scales[i / 16] as i8) * code as f32;
    }
}
