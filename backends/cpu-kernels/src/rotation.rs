//! The orthogonal rotation that keys and values are coded in: random signs, then a Hadamard
//! transform. It spreads a channel that is much larger than the others over all of them, and makes
//! coordinates nearly normal, whatever the vector.
//!
//! A length that is no power of two has two overlapping transforms, over its first and its last
//! channels, so that all channels mix.

use super::LANES;

/// Channels after which signs repeat.
const SIGNS: usize = 1024;
/// The signs of the first transform and of the second, one bit each.
const SIGN_BITS: [[u64; SIGNS / 64]; 2] = sign_bits(0x6c6f_7175_6174);

/// splitmix64.
const fn sign_bits(seed: u64) -> [[u64; SIGNS / 64]; 2] {
    let mut bits = [[0; SIGNS / 64]; 2];
    let (mut state, mut at) = (seed, 0);
    while at < 2 * (SIGNS / 64) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits[at % 2][at / 2] = word ^ (word >> 31);
        at += 1;
    }
    bits
}

/// Rotates a head's key, value or query.
#[inline(always)]
pub(super) fn rotate_codes(head: &mut [f32]) {
    let (first, second) = spans(head.len());
    flip(head, 0);
    hadamard(&mut head[first]);
    if let Some(second) = second {
        flip(head, 1);
        hadamard(&mut head[second]);
    }
}

/// Undoes [`rotate_codes`].
#[inline(always)]
pub(super) fn unrotate_codes(head: &mut [f32]) {
    let (first, second) = spans(head.len());
    if let Some(second) = second {
        hadamard(&mut head[second]);
        flip(head, 1);
    }
    hadamard(&mut head[first]);
    flip(head, 0);
}

/// The channels of the first transform, and of the second if the first does not cover all.
#[inline(always)]
fn spans(len: usize) -> (std::ops::Range<usize>, Option<std::ops::Range<usize>>) {
    let size = 1 << len.max(1).ilog2();
    (0..size.min(len), (size < len).then(|| len - size..len))
}

/// Gives each channel its sign of that transform.
#[inline(always)]
fn flip(head: &mut [f32], transform: usize) {
    for (words, values) in (0..).zip(head.chunks_mut(64)) {
        let word = SIGN_BITS[transform][words % (SIGNS / 64)];
        for (i, value) in values.iter_mut().enumerate() {
            let sign = (word >> i & 1) as u32;
            *value = f32::from_bits(value.to_bits() ^ sign << 31);
        }
    }
}

/// The normalized Walsh-Hadamard transform of a power of two of values; its own inverse.
#[inline(always)]
fn hadamard(values: &mut [f32]) {
    let len = values.len();
    let mut stride = len / 2;
    while stride >= LANES {
        for block in values.chunks_exact_mut(2 * stride) {
            let (low, high) = block.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride /= 2;
    }
    let factor = 1.0 / (len as f32).sqrt();
    let (blocks, rest) = values.as_chunks_mut::<LANES>();
    for block in blocks {
        *block = butterfly::<8>(*block);
        *block = butterfly::<4>(*block);
        *block = butterfly::<2>(*block);
        *block = butterfly::<1>(*block);
        *block = block.map(|value| value * factor);
    }
    // All of fewer than sixteen.
    while stride > 0 {
        for pair in 0..rest.len() / 2 {
            let at = pair / stride * 2 * stride + pair % stride;
            let (a, b) = (rest[at], rest[at + stride]);
            (rest[at], rest[at + stride]) = (a + b, a - b);
        }
        stride /= 2;
    }
    rest.iter_mut().for_each(|value| *value *= factor);
}

/// One stage inside a register.
#[inline(always)]
fn butterfly<const STRIDE: usize>(values: [f32; LANES]) -> [f32; LANES] {
    std::array::from_fn(|i| {
        let other = values[i ^ STRIDE];
        if i & STRIDE == 0 {
            values[i] + other
        } else {
            other - values[i]
        }
    })
}
