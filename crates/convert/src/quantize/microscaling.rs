//! MLX's groups of small floats with one scale: mxfp4, mxfp8 and nvfp4.
//!
//! MLX's CPU computes these in the weights' own type, rounding after every operation, and so
//! does this code; its Metal and CUDA kernels compute in `f32` and may choose the adjacent code for
//! a value between two.

use std::sync::OnceLock;

use half::{bf16, f16};
use loquat_weights::Dtype;
use loquat_weights::decode::MlxMode;

use super::affine::Bits;
use super::{Encoded, rounded};

/// 4-bit floats by their code, without the sign.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
const MOST_E2M1: f32 = 6.0;
const MOST_E4M3: f32 = 448.0;

pub(super) fn encode(mode: MlxMode, float: Dtype, row: &[f32], out: &mut Encoded) {
    let mut stream = Bits::default();
    for values in row.chunks(mode.group()) {
        let values: Vec<f32> = values.iter().map(|value| rounded(float, *value)).collect();
        let top = values
            .iter()
            .fold(0.0f32, |top, value| top.max(value.abs()));
        let most = match mode {
            MlxMode::Mxfp8 => MOST_E4M3,
            _ => MOST_E2M1,
        };
        let divisor = match mode {
            MlxMode::Nvfp4 => {
                let code = e4m3(rounded(float, top / most));
                out.scales.push(code);
                rounded(float, from_e4m3(code))
            }
            _ => {
                // The least power of two under which the largest value fits.
                let power = match top {
                    0.0 => 0,
                    top => ((top / most).log2().ceil() as i32).clamp(-127, 127),
                };
                out.scales.push((power + 127) as u8);
                2f32.powi(power)
            }
        };
        for value in values {
            // MLX divides 0 by 0 for such a small scale; the codes are then 0.
            let value = match divisor {
                0.0 => 0.0,
                divisor => rounded(float, value / divisor),
            };
            match mode {
                MlxMode::Mxfp8 => out.codes.push(e4m3(value)),
                _ => stream.push(e2m1(float, value), 4, &mut out.codes),
            }
        }
    }
}

/// The nearest 4-bit float to a value that is of type `float`.
fn e2m1(float: Dtype, value: f32) -> u32 {
    static OF_BF16: OnceLock<Vec<u8>> = OnceLock::new();
    static OF_F16: OnceLock<Vec<u8>> = OnceLock::new();
    // There are few enough values for a table.
    let all = |decode: fn(u16) -> f32| -> Vec<u8> {
        let values = (0..=u16::MAX).map(decode);
        values.map(|value| nearest(float, value) as u8).collect()
    };
    let (codes, bits) = match float {
        Dtype::BF16 => (
            OF_BF16.get_or_init(|| all(|bits| bf16::from_bits(bits).to_f32())),
            bf16::from_f32(value).to_bits(),
        ),
        Dtype::F16 => (
            OF_F16.get_or_init(|| all(|bits| f16::from_bits(bits).to_f32())),
            f16::from_f32(value).to_bits(),
        ),
        _ => return nearest(float, value),
    };
    codes[usize::from(bits)].into()
}

/// Ties go to the lower code.
fn nearest(float: Dtype, value: f32) -> u32 {
    let both = E2M1.iter().copied().chain(E2M1.iter().map(|value| -value));
    let mut best = (0, f32::INFINITY);
    for (code, at) in (0..).zip(both) {
        let apart = rounded(float, value - at).abs();
        if apart < best.1 {
            best = (code, apart);
        }
    }
    best.0
}

/// The nearest 8-bit float, at most 448.
fn e4m3(value: f32) -> u8 {
    /// The first value that would overflow.
    const ABOVE_ALL: u32 = 543 << 21;
    /// Below this, values are subnormal.
    const SMALL: u32 = 121 << 23;
    /// Adding this rounds to subnormal steps.
    const FRACTIONS: u32 = 141 << 23;
    let bits = value.to_bits();
    let (sign, bits) = (bits & 0x8000_0000, bits & 0x7FFF_FFFF);
    let code = if bits >= ABOVE_ALL {
        0x7E
    } else if bits < SMALL {
        let shifted = f32::from_bits(bits) + f32::from_bits(FRACTIONS);
        (shifted.to_bits() - FRACTIONS) as u8
    } else {
        let odd = bits >> 20 & 1;
        let rebiased = bits.wrapping_add((7u32.wrapping_sub(127)) << 23);
        ((rebiased + 0x7FFFF + odd) >> 20) as u8
    };
    code | (sign >> 24) as u8
}

fn from_e4m3(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(code >> 3 & 0xF), f32::from(code & 7));
    sign * match exponent {
        0 => fraction / 512.0,
        exponent => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    }
}
