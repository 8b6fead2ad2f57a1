//! MLX's affine groups: `scale * code + bias`; the edge farther from zero is exact.

use loquat_weights::Dtype;

use super::{Encoded, put_float, rounded};

/// The least scale, so that a group of equal values does not divide by zero.
const LEAST_SCALE: f32 = 1e-7;

pub(super) fn encode(bits: u8, group: usize, float: Dtype, row: &[f32], out: &mut Encoded) {
    let most = ((1u16 << bits) - 1) as f32;
    let mut stream = Bits::default();
    for values in row.chunks(group) {
        let values: Vec<f32> = values.iter().map(|value| rounded(float, *value)).collect();
        let (scale, bias) = fit(&values, most);
        for value in &values {
            let code = ((value - bias) / scale).round_ties_even().clamp(0.0, most);
            stream.push(code as u32, bits, &mut out.codes);
        }
        put_float(float, scale, &mut out.scales);
        put_float(float, bias, &mut out.biases);
    }
}

/// The group's scale and bias.
fn fit(values: &[f32], most: f32) -> (f32, f32) {
    let greatest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let from_below = least.abs() > greatest.abs();
    let width = ((greatest - least) / most).max(LEAST_SCALE);
    let (scale, edge) = if from_below {
        (width, least)
    } else {
        (-width, greatest)
    };
    // Zero gets a code if it is within range of the edge.
    match (edge / scale).round_ties_even() {
        0.0 => (scale, 0.0),
        codes => (edge / codes, edge),
    }
}

/// Codes of any width as one little-endian stream of bits. A group is whole bytes.
#[derive(Default)]
pub(super) struct Bits {
    held: u32,
    count: u8,
}

impl Bits {
    pub(super) fn push(&mut self, code: u32, bits: u8, out: &mut Vec<u8>) {
        self.held |= code << self.count;
        self.count += bits;
        while self.count >= 8 {
            out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }
}
