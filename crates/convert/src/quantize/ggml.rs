//! ggml's blocks of 32 values with one scale, and a minimum in the `_1` types.

use half::f16;

fn half_bytes(value: f32) -> [u8; 2] {
    f16::from_f32(value).to_le_bytes()
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The value farthest from zero, the first of several.
fn farthest(values: &[f32; 32]) -> f32 {
    let mut found = 0.0f32;
    for &value in values {
        if found.abs() < value.abs() {
            found = value;
        }
    }
    found
}

fn bounds(values: &[f32; 32]) -> (f32, f32) {
    let fold = |start, pick: fn(f32, f32) -> f32| values.iter().copied().fold(start, pick);
    (fold(f32::MAX, f32::min), fold(f32::MIN, f32::max))
}

/// Nibbles pair value `i` with value `i + 16`.
fn put_nibbles(codes: &[u8; 32], out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (codes[i] & 0xF) | (codes[i + 16] & 0xF) << 4;
    }
}

/// The fifth bits, one for each value.
fn high_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = codes.iter().enumerate();
    bits.fold(0u32, |all, (i, code)| all | u32::from(code >> 4 & 1) << i)
        .to_le_bytes()
}

/// Signed codes around `half`; the largest represents the value farthest from zero.
fn signed(values: &[f32; 32], half: i8) -> ([u8; 2], [u8; 32]) {
    let scale = farthest(values) / -f32::from(half);
    let inverse = inverse(scale);
    let most = 2 * half - 1;
    let code = |value: f32| ((value * inverse + (f32::from(half) + 0.5)) as i8).min(most) as u8;
    (half_bytes(scale), values.map(code))
}

/// Codes from 0 to `most` upwards from the least value.
fn from_least(values: &[f32; 32], most: u8) -> ([u8; 2], [u8; 2], [u8; 32]) {
    let (least, greatest) = bounds(values);
    let scale = (greatest - least) / f32::from(most);
    let inverse = inverse(scale);
    let code = |value: f32| (((value - least) * inverse + 0.5) as i8).min(most as i8) as u8;
    (half_bytes(scale), half_bytes(least), values.map(code))
}

pub(super) fn q4_0(values: &[f32; 32]) -> [u8; 18] {
    let (scale, codes) = signed(values, 8);
    let mut out = [0; 18];
    out[..2].copy_from_slice(&scale);
    put_nibbles(&codes, &mut out[2..]);
    out
}

pub(super) fn q4_1(values: &[f32; 32]) -> [u8; 20] {
    let (scale, least, codes) = from_least(values, 15);
    let mut out = [0; 20];
    out[..2].copy_from_slice(&scale);
    out[2..4].copy_from_slice(&least);
    put_nibbles(&codes, &mut out[4..]);
    out
}

pub(super) fn q5_0(values: &[f32; 32]) -> [u8; 22] {
    let (scale, codes) = signed(values, 16);
    let mut out = [0; 22];
    out[..2].copy_from_slice(&scale);
    out[2..6].copy_from_slice(&high_bits(&codes));
    put_nibbles(&codes, &mut out[6..]);
    out
}

pub(super) fn q5_1(values: &[f32; 32]) -> [u8; 24] {
    let (scale, least, codes) = from_least(values, 31);
    let mut out = [0; 24];
    out[..2].copy_from_slice(&scale);
    out[2..4].copy_from_slice(&least);
    out[4..8].copy_from_slice(&high_bits(&codes));
    put_nibbles(&codes, &mut out[8..]);
    out
}

pub(super) fn q8_0(values: &[f32; 32]) -> [u8; 34] {
    let scale = farthest(values).abs() / 127.0;
    let inverse = inverse(scale);
    let mut out = [0; 34];
    out[..2].copy_from_slice(&half_bytes(scale));
    for (byte, value) in out[2..].iter_mut().zip(values) {
        *byte = (value * inverse).round() as i8 as u8;
    }
    out
}
