use super::super::fixture::{Bench, assert_close, values};
use crate::ops::{
    Activate, ActivationFunction, Add, Address, Affine, Clamp, CopyParts, FinishLogits, Largest,
    Multiply, NOT_A_NUMBER, Norm, NormFunction,
};

const TOKENS: usize = 3;
const NONE: Address = Address::NONE;

/// A row of a buffer with this stride.
fn row(values: &[f32], token: usize, stride: usize, len: usize) -> &[f32] {
    &values[token * stride..token * stride + len]
}

fn expected_activation(function: ActivationFunction, x: f32, up: f32) -> f32 {
    let (x, up) = (f64::from(x), f64::from(up));
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    // Gauss's integral by Simpson's rule, which is exact enough here.
    let normal = |x: f64| {
        let steps = 2000;
        let width = x / f64::from(steps);
        let density = |i: i32| (-(f64::from(i) * width).powi(2) / 2.0).exp();
        let inner: f64 = (1..steps)
            .map(|i| density(i) * if i % 2 == 1 { 4.0 } else { 2.0 })
            .sum();
        let integral = (density(0) + inner + density(steps)) * width / 3.0;
        0.5 + integral / (2.0 * std::f64::consts::PI).sqrt()
    };
    let result = match function {
        ActivationFunction::Identity => x,
        ActivationFunction::Silu => x * sigmoid(x),
        ActivationFunction::Gelu => x * normal(x),
        ActivationFunction::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        ActivationFunction::QuickGelu => x * sigmoid(1.702 * x),
        ActivationFunction::Relu => x.max(0.0),
        ActivationFunction::Relu2 => x.max(0.0).powi(2),
        ActivationFunction::ClampedSwiglu => {
            let gate = x.min(1.5);
            return (gate * sigmoid(1.7 * gate) * (up.clamp(-1.5, 1.5) + 1.0)) as f32;
        }
        ActivationFunction::Sigmoid => sigmoid(x),
    };
    (result * up) as f32
}

#[test]
fn activations_multiply_by_up() {
    use ActivationFunction as F;
    let functions = [
        F::Identity,
        F::Silu,
        F::Gelu,
        F::GeluTanh,
        F::QuickGelu,
        F::Relu,
        F::Relu2,
        F::ClampedSwiglu,
        F::Sigmoid,
    ];
    let (len, stride) = (7, 9);
    let gates: Vec<f32> = values(TOKENS * stride, 1).iter().map(|x| 4.0 * x).collect();
    let ups: Vec<f32> = values(TOKENS * len, 2).iter().map(|x| 3.0 * x).collect();
    for function in functions {
        for (has_up, up_is_scalar) in [(false, 0), (true, 0), (true, 1)] {
            let mut bench = Bench::default();
            let gate = bench.f32s(&gates);
            let op = Activate {
                gate,
                up: if has_up { bench.f32s(&ups) } else { NONE },
                out: gate,
                gate_stride: stride as u32,
                up_stride: len as u32,
                out_stride: stride as u32,
                len: len as u32,
                function,
                scale: 0.75,
                alpha: 1.7,
                limit: 1.5,
                up_is_scalar,
                reserved: 0,
            };
            if function == F::ClampedSwiglu && !has_up {
                assert!(bench.refusal(op, TOKENS).contains("Activate to up"));
                continue;
            }
            bench.run(op, TOKENS);
            let found = bench.read(gate, TOKENS * stride);
            for token in 0..TOKENS {
                let up = |i: usize| match (has_up, up_is_scalar) {
                    (false, _) => 1.0,
                    (true, 0) => ups[token * len + i],
                    (true, _) => ups[token * len],
                };
                let gates = row(&gates, token, stride, stride);
                let mut expected: Vec<f32> = (0..len)
                    .map(|i| expected_activation(function, gates[i] * 0.75, up(i)))
                    .collect();
                expected.extend(&gates[len..]);
                assert_close(row(&found, token, stride, stride), &expected);
            }
        }
    }
}

#[test]
fn activations_keep_nan() {
    use ActivationFunction as F;
    for function in [
        F::Silu,
        F::Gelu,
        F::GeluTanh,
        F::Relu,
        F::Relu2,
        F::ClampedSwiglu,
    ] {
        let mut bench = Bench::default();
        let gate = bench.f32s(&[f32::NAN]);
        let op = Activate {
            gate,
            up: bench.f32s(&[1.0]),
            out: gate,
            gate_stride: 1,
            up_stride: 1,
            out_stride: 1,
            len: 1,
            function,
            scale: 1.0,
            alpha: 1.0,
            limit: 1.0,
            up_is_scalar: 0,
            reserved: 0,
        };
        bench.run(op, 1);
        assert!(bench.read(gate, 1)[0].is_nan(), "{function:?}");
    }
}

#[test]
fn norms_apply_factors_weights_and_biases() {
    let (parts, len, stride) = (3, 5, 17);
    let input = values(TOKENS * stride, 1);
    let (weight, bias) = (values(parts * len, 2), values(parts * len, 3));
    let functions = [
        NormFunction::None,
        NormFunction::Rms,
        NormFunction::Layer,
        NormFunction::UnitLength,
    ];
    for function in functions {
        for (has_weight, has_bias, weight_stride) in [
            (false, false, 0),
            (true, false, 0),
            (true, true, len),
            (false, true, 0),
        ] {
            let mut bench = Bench::default();
            let out = bench.empty(TOKENS * parts * len);
            let op = Norm {
                input: bench.f32s(&input),
                out,
                input_stride: stride as u32,
                out_stride: (parts * len) as u32,
                parts: parts as u32,
                len: len as u32,
                weight: if has_weight {
                    bench.f32s(&weight)
                } else {
                    NONE
                },
                bias: if has_bias { bench.f32s(&bias) } else { NONE },
                weight_stride: weight_stride as u32,
                function,
                eps: 1e-3,
                before: 0.5,
                after: 3.0,
                reserved: 0,
            };
            if function == NormFunction::None && (has_weight || has_bias) {
                assert!(bench.refusal(op, TOKENS).contains("Norm to weight"));
                continue;
            }
            bench.run(op, TOKENS);
            let found = bench.read(out, TOKENS * parts * len);
            for token in 0..TOKENS {
                for part in 0..parts {
                    let x = &input[token * stride + part * len..][..len];
                    let x: Vec<f64> = x.iter().map(|x| f64::from(*x) * 0.5).collect();
                    let mean = x.iter().sum::<f64>() / len as f64;
                    let squares = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
                    let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
                    let normed: Vec<f64> = match function {
                        NormFunction::None => x,
                        NormFunction::Rms => {
                            let scale = (squares(&x) / len as f64 + 1e-3).sqrt();
                            x.iter().map(|x| x / scale).collect()
                        }
                        NormFunction::Layer => {
                            let scale = (squares(&centred) / len as f64 + 1e-3).sqrt();
                            centred.iter().map(|x| x / scale).collect()
                        }
                        NormFunction::UnitLength => {
                            let scale = (squares(&x) + 1e-3).sqrt();
                            x.iter().map(|x| x / scale).collect()
                        }
                    };
                    let expected: Vec<f32> = (0..len)
                        .map(|i| {
                            let at = part * weight_stride + i;
                            let weight = if has_weight {
                                f64::from(weight[at])
                            } else {
                                1.0
                            };
                            let bias = if has_bias { f64::from(bias[at]) } else { 0.0 };
                            ((normed[i] * weight + bias) * 3.0) as f32
                        })
                        .collect();
                    let found = &found[(token * parts + part) * len..][..len];
                    assert_close(found, &expected);
                }
            }
        }
    }
}

#[test]
fn sums_and_products_may_be_in_place() {
    let len = 11;
    let (a_values, b_values) = (values(TOKENS * len, 1), values(TOKENS * len, 2));
    for target in 0..3 {
        let mut bench = Bench::default();
        let (a, b) = (bench.f32s(&a_values), bench.f32s(&b_values));
        let out = [a, b, bench.empty(TOKENS * len)][target];
        let stride = len as u32;
        bench.run(
            Add {
                a,
                b,
                out,
                a_stride: stride,
                b_stride: stride,
                out_stride: stride,
                len: stride,
                left: 2.0,
                right: -0.5,
            },
            TOKENS,
        );
        let pairs = a_values.iter().zip(&b_values);
        let expected: Vec<f32> = pairs.clone().map(|(a, b)| 2.0 * a - 0.5 * b).collect();
        assert_close(&bench.read(out, TOKENS * len), &expected);
        let (a, b) = (bench.f32s(&a_values), bench.f32s(&b_values));
        let out = [a, b, bench.empty(TOKENS * len)][target];
        bench.run(
            Multiply {
                a,
                b,
                out,
                a_stride: stride,
                b_stride: stride,
                out_stride: stride,
                len: stride,
            },
            TOKENS,
        );
        let expected: Vec<f32> = pairs.map(|(a, b)| a * b).collect();
        assert_close(&bench.read(out, TOKENS * len), &expected);
    }
}

#[test]
fn launches_cover_only_their_tokens() {
    let mut bench = Bench::default();
    let values = bench.f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let (scale, bias) = (bench.f32s(&[10.0, 20.0]), bench.f32s(&[0.5, 0.25]));
    let op = Affine {
        values,
        scale,
        bias,
        stride: 2,
        len: 2,
    };
    bench.try_run(op, 1, 2).unwrap();
    let expected = [1.0, 2.0, 30.5, 80.25, 50.5, 120.25, 7.0, 8.0];
    assert_eq!(bench.read(values, 8), expected);
    let op = Affine {
        scale: NONE,
        bias,
        ..op
    };
    bench.try_run(op, 3, 1).unwrap();
    assert_eq!(bench.read(values, 8)[6..], [7.5, 8.25]);
}

#[test]
fn parts_are_copied_within_tokens() {
    let (parts, input_step, out_step, len) = (3, 4, 7, 2);
    let (input_stride, out_stride) = (13, 22);
    let input = values(TOKENS * input_stride, 1);
    let before = values(TOKENS * out_stride, 2);
    let mut bench = Bench::default();
    let op = CopyParts {
        input: bench.f32s(&input),
        out: bench.f32s(&before),
        input_stride: input_stride as u32,
        out_stride: out_stride as u32,
        parts: parts as u32,
        input_step: input_step as u32,
        out_step: out_step as u32,
        len: len as u32,
    };
    bench.run(op, TOKENS);
    let mut expected = before;
    for token in 0..TOKENS {
        for part in 0..parts {
            let from = token * input_stride + part * input_step;
            let to = token * out_stride + part * out_step;
            expected[to..to + len].copy_from_slice(&input[from..from + len]);
        }
    }
    assert_eq!(bench.read(op.out, TOKENS * out_stride), expected);
}

#[test]
fn clamp_keeps_nan() {
    let mut bench = Bench::default();
    let input = bench.f32s(&[-5.0, -1.0, 0.5, f32::NAN, f32::INFINITY]);
    let op = Clamp {
        input,
        out: input,
        input_stride: 5,
        out_stride: 5,
        len: 5,
        min: -1.5,
        max: 2.0,
        reserved: 0,
    };
    bench.run(op, 1);
    assert_close(&bench.read(input, 5), &[-1.5, -1.0, 0.5, f32::NAN, 2.0]);
}

#[test]
fn logits_are_scaled_then_capped() {
    let raw = values(2 * 13, 1);
    for softcap in [0.0, 0.8] {
        let mut bench = Bench::default();
        let logits = bench.f32s(&raw);
        let op = FinishLogits {
            logits,
            vocab: 13,
            scale: 3.0,
            softcap,
            reserved: 0,
        };
        bench.run(op, 2);
        let cap = |x: f32| {
            if softcap == 0.0 {
                x
            } else {
                (x / softcap).tanh() * softcap
            }
        };
        let expected: Vec<f32> = raw.iter().map(|x| cap(x * 3.0)).collect();
        assert_close(&bench.read(logits, 26), &expected);
    }
}

#[test]
fn largest_is_the_first_of_equal_ones() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let table = [
        ([1.0, 3.0, 3.0], 1),
        ([-0.0, 0.0, -1.0], 0),
        ([-inf, -inf, -inf], 0),
        ([-inf, f32::MIN, -inf], 1),
        ([1.0, inf, inf], 1),
        ([9.0, nan, 1.0], NOT_A_NUMBER),
        ([nan, nan, nan], NOT_A_NUMBER),
    ];
    let mut bench = Bench::default();
    let rows: Vec<f32> = table.iter().flat_map(|(row, _)| *row).collect();
    let op = Largest {
        logits: bench.f32s(&rows),
        out: bench.empty(table.len()),
        vocab: 3,
        reserved: 0,
    };
    bench.run(op, table.len());
    let expected: Vec<u32> = table.iter().map(|(_, expected)| *expected).collect();
    assert_eq!(bench.read_u32s(op.out, table.len()), expected);
}
