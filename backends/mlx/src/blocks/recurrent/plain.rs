//! A plain implementation of the recurrent mixers' parts for tests.

use super::{Conv, taps};
use crate::array::Ops;
use crate::blocks::attention::plain::vector;

pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

pub fn softplus(x: f32) -> f32 {
    x.exp().ln_1p()
}

/// A convolution's weights, [channel][kernel].
pub struct PlainConv {
    pub kernel: usize,
    pub weights: Vec<f32>,
    pub bias: Option<Vec<f32>>,
}

impl PlainConv {
    /// For the last of these tokens.
    pub fn last(&self, tokens: &[Vec<f32>]) -> Vec<f32> {
        let channels = self.weights.chunks_exact(self.kernel).enumerate();
        let sums = channels.map(|(channel, weights)| {
            let newest_first = tokens.iter().rev().map(|token| token[channel]);
            let products = newest_first.zip(weights.iter().rev());
            let sum: f32 = products.map(|(x, weight)| x * weight).sum();
            sum + self.bias.as_ref().map_or(0.0, |bias| bias[channel])
        });
        sums.collect()
    }

    /// The same on MLX.
    pub fn upload(&self, ops: &Ops, scale: impl Fn(usize) -> f32) -> Conv {
        Conv {
            taps: taps(ops, &self.weights, self.kernel, scale).unwrap(),
            bias: self.bias.as_ref().map(|bias| vector(ops, bias)),
        }
    }
}
