//! SplitMix64 values, drawn in their encoded form.
//!
//! Codes are random bits; scales give the values the requested deviation from zero. Every encoding
//! has a mean of zero: otherwise each layer would push all activations further in one direction,
//! until every token looked the same.

use half::{bf16, f16};
use loquat_weights::Dtype;

use crate::format::{AFFINE_GROUP, Encoding, MXFP4_GROUP};
use crate::random::SplitMix64;

/// The bytes of each of the encoding's parts for `values` random values whose root mean square is
/// `deviation`.
pub(crate) fn fill(
    encoding: Encoding,
    values: usize,
    deviation: f32,
    random: &mut SplitMix64,
) -> Vec<Vec<u8>> {
    match encoding {
        Encoding::Plain(dtype) => {
            let mut bytes = vec![0; values / dtype.block_len() * dtype.block_bytes()];
            plain(dtype, deviation, random, &mut bytes);
            vec![bytes]
        }
        Encoding::Affine { bits } => {
            let mut codes = vec![0; values / 8 * usize::from(bits)];
            random.bytes(&mut codes);
            let [scales, biases] = affine(bits, values / AFFINE_GROUP, deviation, random);
            vec![codes, scales, biases]
        }
        Encoding::Mxfp4 => {
            let mut codes = vec![0; values / 2];
            random.bytes(&mut codes);
            let scale = power_of_two(deviation / E2M1_SPREAD);
            vec![codes, vec![scale; values / MXFP4_GROUP]]
        }
    }
}

fn plain(dtype: Dtype, deviation: f32, random: &mut SplitMix64, out: &mut [u8]) {
    // A uniform distribution over -1..1 has a standard deviation of sqrt(1/3).
    let limit = deviation * 3f32.sqrt();
    match dtype {
        Dtype::F32 => floats(out, || random.within(limit).to_le_bytes()),
        Dtype::F16 => floats(out, || f16::from_f32(random.within(limit)).to_le_bytes()),
        Dtype::BF16 => floats(out, || bf16::from_f32(random.within(limit)).to_le_bytes()),
        _ => {
            random.bytes(out);
            let blocks = out.chunks_exact_mut(dtype.block_bytes());
            blocks.for_each(|block| set_scales(dtype, deviation, random, block));
        }
    }
}

fn floats<const N: usize>(out: &mut [u8], mut draw: impl FnMut() -> [u8; N]) {
    for value in out.as_chunks_mut::<N>().0 {
        *value = draw();
    }
}

/// The standard deviation of uniform `bits`-bit codes.
fn spread(bits: u8) -> f32 {
    ((4f32.powi(bits.into()) - 1.0) / 12.0).sqrt()
}

/// The mean of uniform `bits`-bit codes.
fn middle(bits: u8) -> f32 {
    (2f32.powi(bits.into()) - 1.0) / 2.0
}

/// The standard deviation of 4-bit floats: the root of the mean of 0, ½², 1², 1½², 2², 3², 4² and
/// 6².
const E2M1_SPREAD: f32 = 2.926_2;

/// The nearest power of two, in the 8 bits of a microscaling scale.
fn power_of_two(scale: f32) -> u8 {
    (127.0 + scale.log2().round()).clamp(0.0, 254.0) as u8
}

/// A scale and a bias for each group.
fn affine(bits: u8, groups: usize, deviation: f32, random: &mut SplitMix64) -> [Vec<u8>; 2] {
    let (mut scales, mut biases) = (Vec::new(), Vec::new());
    for _ in 0..groups {
        let scale = bf16::from_f32(random.sign() * deviation / spread(bits));
        let bias = bf16::from_f32(-scale.to_f32() * middle(bits));
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
    }
    [scales, biases]
}

/// Sub-scales and minima of `_K` blocks: both fit 6 bits, and the minimum cancels the codes' mean.
const Q4_K_SUB: (u8, u8) = (8, 60);
const Q5_K_SUB: (u8, u8) = (4, 62);
const Q6_K_SUB: i8 = 8;

/// Writes the scales of a GGUF block.
fn set_scales(dtype: Dtype, deviation: f32, random: &mut SplitMix64, block: &mut [u8]) {
    match dtype {
        // A signed range has one more negative code: a random sign of the scale cancels it.
        Dtype::Q4_0 => put(block, 0, random.sign() * deviation / spread(4)),
        Dtype::Q5_0 => put(block, 0, random.sign() * deviation / spread(5)),
        Dtype::Q8_0 => put(block, 0, random.sign() * deviation / spread(8)),
        Dtype::Q4_1 => with_minimum(4, deviation, block),
        Dtype::Q5_1 => with_minimum(5, deviation, block),
        Dtype::Q4K => k_with_minimum(4, Q4_K_SUB, deviation, block),
        Dtype::Q5K => k_with_minimum(5, Q5_K_SUB, deviation, block),
        Dtype::Q6K => {
            for scale in &mut block[192..208] {
                // The low bit is already random.
                let sign = (*scale & 1) as i8 * 2 - 1;
                *scale = (sign * Q6_K_SUB) as u8;
            }
            put(block, 208, deviation / (spread(6) * f32::from(Q6_K_SUB)));
        }
        Dtype::Mxfp4 => block[0] = power_of_two(deviation / E2M1_SPREAD),
        // No format uses other types.
        _ => {}
    }
}

fn put(block: &mut [u8], at: usize, scale: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
}

fn with_minimum(bits: u8, deviation: f32, block: &mut [u8]) {
    let scale = deviation / spread(bits);
    put(block, 0, scale);
    put(block, 2, -scale * middle(bits));
}

fn k_with_minimum(bits: u8, (sub, minimum): (u8, u8), deviation: f32, block: &mut [u8]) {
    let scale = deviation / (spread(bits) * f32::from(sub));
    put(block, 0, scale);
    put(block, 2, scale);
    // The last four of eight store their high bits above the first four.
    block[4..8].fill(sub | sub >> 4 << 6);
    block[8..12].fill(minimum | minimum >> 4 << 6);
    block[12..16].fill(sub & 0xF | minimum << 4);
}

#[cfg(test)]
mod tests {
    use loquat_weights::decode::{MlxMode, decode_mlx_row, decode_row};

    use super::*;

    const VALUES: usize = 1 << 16;

    fn decoded(encoding: Encoding, deviation: f32, seed: u64) -> Vec<f32> {
        let bytes = fill(encoding, VALUES, deviation, &mut SplitMix64::new(seed));
        for (part, bytes) in encoding.parts().iter().zip(&bytes) {
            assert_eq!(bytes.len(), part.bytes(VALUES), "{encoding:?}");
        }
        let mut values = vec![0.0; VALUES];
        let mlx = |mode, values: &mut [f32]| {
            let dtype = encoding.parts()[1].dtype;
            let biases = bytes.get(2).map(|biases| (biases.as_slice(), dtype));
            decode_mlx_row(mode, &bytes[0], &bytes[1], dtype, biases, values)
        };
        let outcome = match encoding {
            Encoding::Plain(dtype) => decode_row(dtype, &bytes[0], &mut values),
            Encoding::Affine { bits } => {
                let group = AFFINE_GROUP;
                mlx(MlxMode::Affine { bits, group }, &mut values)
            }
            Encoding::Mxfp4 => mlx(MlxMode::Mxfp4, &mut values),
        };
        outcome.unwrap();
        values
    }

    #[test]
    fn values_have_zero_mean_and_requested_deviation() {
        let floats = [Dtype::F32, Dtype::F16, Dtype::BF16];
        let is_filled = |dtype: &Dtype| dtype.block_len() > 1 || floats.contains(dtype);
        let plain = Dtype::ALL.into_iter().filter(is_filled);
        let mlx = [
            Encoding::Affine { bits: 4 },
            Encoding::Affine { bits: 8 },
            Encoding::Mxfp4,
        ];
        let encodings: Vec<_> = plain.map(Encoding::Plain).chain(mlx).collect();
        // For hidden sizes of 256, 2,048 and 16,384.
        for deviation in [0.0625, 0.022_097, 0.007_812_5] {
            for &encoding in &encodings {
                let values = decoded(encoding, deviation, 7);
                let count = VALUES as f32;
                let mean = values.iter().sum::<f32>() / count / deviation;
                let square = values.iter().map(|value| value * value).sum::<f32>();
                let share = (square / count).sqrt() / deviation;
                // Four standard errors of 65,536 draws; the seed is fixed.
                assert!(mean.abs() < 0.016, "{encoding:?}: a mean of {mean}");
                // A scale that can only be a power of two is off by up to the root of two.
                let microscaled =
                    matches!(encoding, Encoding::Mxfp4 | Encoding::Plain(Dtype::Mxfp4));
                let off = if microscaled { 1.42 } else { 1.02 };
                assert!((1.0 / off..off).contains(&share), "{encoding:?}: {share}");
            }
        }
    }

    #[test]
    fn equal_seeds_give_equal_values() {
        let draw = |seed| decoded(Encoding::Plain(Dtype::Q4K), 0.02, seed);
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
