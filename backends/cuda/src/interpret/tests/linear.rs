use super::super::fixture::{Bench, assert_close, rounded, values};
use crate::ops::{Address, Format, Linear};

const NONE: Address = Address::NONE;

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

#[test]
fn products_are_of_each_row_and_token() {
    for (rows, cols, tokens) in [(1, 1, 1), (5, 3, 4), (17, 31, 2), (2, 67, 7)] {
        for format in [Format::F32, Format::Bf16] {
            for has_bias in [false, true] {
                let matrix = values(rows * cols, 1);
                let input = values(tokens * (cols + 2), 2);
                let bias = values(rows, 3);
                let mut bench = Bench::default();
                let op = Linear {
                    matrix: bench.matrix(&matrix, rows, format),
                    input: bench.f32s(&input),
                    out: bench.empty(tokens * (rows + 1)),
                    bias: if has_bias { bench.f32s(&bias) } else { NONE },
                    input_stride: cols as u32 + 2,
                    out_stride: rows as u32 + 1,
                    batch: 1,
                    input_step: 0,
                    out_step: 0,
                    reserved: 0,
                };
                bench.run(op, tokens);
                let matrix = rounded(&matrix, format);
                for token in 0..tokens {
                    let input = &input[token * (cols + 2)..][..cols];
                    let products = matrix.chunks_exact(cols).map(|row| dot(row, input));
                    let expected: Vec<f32> = products
                        .zip(&bias)
                        .map(|(x, bias)| x as f32 + if has_bias { *bias } else { 0.0 })
                        .collect();
                    let found = bench.read(op.out.values(token * (rows + 1)), rows);
                    assert_close(&found, &expected);
                }
            }
        }
    }
}

#[test]
fn batched_products_step_through_heads() {
    let (heads, rows, cols, tokens) = (3, 4, 5, 2);
    let (input_step, out_step) = (7, 4);
    let matrices = values(heads * rows * cols, 1);
    let input = values(tokens * heads * input_step, 2);
    let mut bench = Bench::default();
    let mut matrix = bench.matrix(&matrices, heads * rows, Format::F32);
    matrix.rows = rows as u32;
    let op = Linear {
        matrix,
        input: bench.f32s(&input),
        out: bench.empty(tokens * heads * out_step),
        bias: NONE,
        input_stride: (heads * input_step) as u32,
        out_stride: (heads * out_step) as u32,
        batch: heads as u32,
        input_step: input_step as u32,
        out_step: out_step as u32,
        reserved: 0,
    };
    bench.run(op, tokens);
    let found = bench.read(op.out, tokens * heads * out_step);
    for token in 0..tokens {
        for head in 0..heads {
            let input = &input[(token * heads + head) * input_step..][..cols];
            let matrix = &matrices[head * rows * cols..][..rows * cols];
            let expected: Vec<f32> = matrix
                .chunks_exact(cols)
                .map(|row| dot(row, input) as f32)
                .collect();
            assert_close(
                &found[(token * heads + head) * out_step..][..rows],
                &expected,
            );
        }
    }
    let biased = Linear {
        bias: op.input,
        ..op
    };
    assert!(bench.refusal(biased, tokens).contains("Linear to bias"));
}
