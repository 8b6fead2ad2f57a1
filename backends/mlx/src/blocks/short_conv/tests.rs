use super::ShortConv;
use crate::blocks::attention::plain::{assert_close, identity, linear, product, vector};
use crate::blocks::recurrent::plain::PlainConv;
use crate::testing::{noise, ops, two_sequences};

const CHANNELS: usize = 5;

fn expected(input: &[f32], bias: &[f32], conv: &PlainConv, x: &[f32]) -> Vec<f32> {
    let (mut inner, mut out) = (Vec::new(), Vec::new());
    for token in x.chunks_exact(CHANNELS) {
        let mut projected = product(input, token);
        projected
            .iter_mut()
            .zip(bias)
            .for_each(|(x, bias)| *x += bias);
        let (b, rest) = projected.split_at(CHANNELS);
        let (c, x) = rest.split_at(CHANNELS);
        inner.push(b.iter().zip(x).map(|(b, x)| b * x).collect());
        out.extend(conv.last(&inner).iter().zip(c).map(|(sum, c)| sum * c));
    }
    out
}

#[test]
fn short_conv_equals_plain_arithmetic() {
    let Some(ops) = ops() else { return };
    for (kernel, biased) in [(1, false), (3, false), (4, true)] {
        let conv = PlainConv {
            kernel,
            weights: noise(CHANNELS * kernel, 1),
            bias: biased.then(|| noise(CHANNELS, 2)),
        };
        let input = noise(3 * CHANNELS * CHANNELS, 3);
        let bias = noise(3 * CHANNELS, 4);
        let mut block = ShortConv {
            channels: CHANNELS as i32,
            input: linear(&ops, &input, CHANNELS),
            conv: conv.upload(&ops, |_| 1.0),
            output: identity(&ops, CHANNELS),
        };
        block.input.bias = Some(vector(&ops, &bias));
        let passed = two_sequences(&ops, 1, CHANNELS, |step, x| block.run(step, 0, x).unwrap());
        for sequence in passed {
            let expected = expected(&input, &bias, &conv, &sequence.inputs);
            assert_close(&format!("kernel {kernel}"), &sequence.outputs, &expected);
        }
    }
}
