use super::super::fixture::{Bench, assert_close, values};
use crate::ops::{
    Address, EmbedLowRank, Format, LowRank, MAX_ADAPTERS, MEDIA_ID, MatrixRef, ScaleRows,
};

const NONE: Address = Address::NONE;

/// Of plausible lengths: `[matrix][4][count]`.
fn lengths(matrices: usize, count: usize, seed: u64) -> Vec<f32> {
    let random = values(matrices * 4 * count, seed);
    let parts = random.chunks_exact(count).enumerate();
    let shifted = parts.flat_map(|(part, values)| {
        let shift = [1.5, 2.0, 0.0, 1.0][part % 4];
        values.iter().map(move |value| value * 0.5 + shift)
    });
    shifted.collect()
}

fn length(lengths: &[f32], count: usize, row: usize, scale: f32) -> f64 {
    let part = |part: usize| f64::from(lengths[part * count + row]);
    let scale = f64::from(scale);
    part(0) / (part(1) + scale * (2.0 * part(2) + scale * part(3))).sqrt()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
    products.sum()
}

#[test]
fn low_rank_adds_to_each_part() {
    let (rows, cols, rank, tokens, parts, matrices) = (7, 5, 3, 4, 2, 6);
    let (a, b) = (
        values(matrices * rank * cols, 1),
        values(matrices * rows * rank, 2),
    );
    let (input_step, out_step) = (cols + 1, rows + 2);
    let input = values(tokens * parts * input_step, 3);
    let before = values(tokens * parts * out_step, 4);
    let (all_lengths, weights) = (lengths(matrices, rows, 5), values(tokens * parts, 6));
    let experts: Vec<u32> = vec![0, 5, 1, 2, 3, 4, 2, 5];
    for (has_lengths, has_experts) in [(false, false), (true, false), (true, true), (false, true)] {
        let mut bench = Bench::default();
        let optional = |bench: &mut Bench, present: bool, values: &[f32]| {
            if present { bench.f32s(values) } else { NONE }
        };
        let op = LowRank {
            a: bench.f32s(&a),
            b: bench.f32s(&b),
            lengths: optional(&mut bench, has_lengths, &all_lengths),
            input: bench.f32s(&input),
            out: bench.f32s(&before),
            experts: if has_experts {
                bench.u32s(&experts)
            } else {
                NONE
            },
            weights: optional(&mut bench, has_experts, &weights),
            rows: rows as u32,
            cols: cols as u32,
            rank: rank as u32,
            parts: parts as u32,
            input_stride: (parts * input_step) as u32,
            input_step: input_step as u32,
            out_stride: (parts * out_step) as u32,
            out_step: out_step as u32,
            scale: 0.5,
            reserved: 0,
        };
        bench.try_run(op, 1, tokens - 1).unwrap();
        let found = bench.read(op.out, before.len());
        let mut expected = before.clone();
        for route in parts..tokens * parts {
            let (matrix, weight) = if has_experts {
                (experts[route] as usize, weights[route])
            } else {
                (route % parts, 1.0)
            };
            let a = &a[matrix * rank * cols..][..rank * cols];
            let input: Vec<f32> = input[route * input_step..][..cols]
                .iter()
                .map(|x| x * weight)
                .collect();
            let inner: Vec<f32> = a
                .chunks_exact(cols)
                .map(|row| dot(row, &input) as f32)
                .collect();
            for row in 0..rows {
                let change = 0.5 * dot(&b[(matrix * rows + row) * rank..][..rank], &inner);
                let own = &all_lengths[matrix * 4 * rows..];
                let length = if has_lengths {
                    length(own, rows, row, 0.5)
                } else {
                    1.0
                };
                expected[route * out_step + row] += (length * change) as f32;
            }
        }
        assert_close(&found, &expected);
    }
}

#[test]
fn rows_are_scaled_without_their_bias() {
    let (rows, tokens, parts, matrices) = (5, 3, 2, 4);
    let before = values(tokens * parts * rows, 1);
    let bias = values(matrices * rows, 2);
    let of_adapters = [lengths(matrices, rows, 3), lengths(matrices, rows, 4)];
    let experts: Vec<u32> = vec![0, 1, 1, 3, 0, 2];
    for has_bias in [false, true] {
        let mut bench = Bench::default();
        let mut all_lengths = [NONE; MAX_ADAPTERS];
        let mut scales = [0.0; MAX_ADAPTERS];
        for (index, lengths) in of_adapters.iter().enumerate() {
            all_lengths[index] = bench.f32s(lengths);
            scales[index] = 1.0 - index as f32 / 4.0;
        }
        let op = ScaleRows {
            out: bench.f32s(&before),
            bias: if has_bias { bench.f32s(&bias) } else { NONE },
            experts: bench.u32s(&experts),
            lengths: all_lengths,
            scales,
            rows: rows as u32,
            parts: parts as u32,
            out_stride: (parts * rows) as u32,
            out_step: rows as u32,
        };
        bench.run(op, tokens);
        let found = bench.read(op.out, before.len());
        let mut expected = before.clone();
        for (index, value) in expected.iter_mut().enumerate() {
            let (matrix, row) = (experts[index / rows] as usize, index % rows);
            let lengths = of_adapters.iter().zip(scales);
            let factors = lengths
                .map(|(own, scale)| length(&own[matrix * 4 * rows..], rows, row, scale) - 1.0);
            let factor = 1.0 + factors.sum::<f64>();
            let bias = if has_bias {
                f64::from(bias[matrix * rows + row])
            } else {
                0.0
            };
            *value = ((f64::from(*value) - bias) * factor + bias) as f32;
        }
        assert_close(&found, &expected);
    }
}

#[test]
fn embeddings_change_except_of_media() {
    let (ids, width, rank) = (6, 4, 3);
    let (a, b) = (values(rank * width, 1), values(ids * rank, 2));
    let table = values(ids * width, 3);
    let lengths = lengths(1, width, 4);
    let tokens = [5, MEDIA_ID, 0];
    let before = values(tokens.len() * width, 5);
    for has_lengths in [false, true] {
        let mut bench = Bench::default();
        bench.tables.ids = bench.u32s(&tokens);
        let table_ref: MatrixRef = bench.matrix(&table, ids, Format::F32);
        let op = EmbedLowRank {
            out: bench.f32s(&before),
            table: table_ref,
            a: bench.f32s(&a),
            b: bench.f32s(&b),
            lengths: if has_lengths {
                bench.f32s(&lengths)
            } else {
                NONE
            },
            rank: rank as u32,
            scale: 0.5,
            factor: 3.0,
            reserved: 0,
        };
        bench.run(op, tokens.len());
        let found = bench.read(op.out, before.len());
        let mut expected = before.clone();
        for (index, value) in expected.iter_mut().enumerate() {
            let (id, col) = (tokens[index / width], index % width);
            if id == MEDIA_ID {
                continue;
            }
            let id = id as usize;
            let column: Vec<f32> = a.iter().skip(col).step_by(width).copied().collect();
            let change = 0.5 * dot(&b[id * rank..][..rank], &column);
            let own = f64::from(table[id * width + col]);
            let length = if has_lengths {
                length(&lengths, width, col, 0.5)
            } else {
                1.0
            };
            *value += (3.0 * ((length - 1.0) * own + length * change)) as f32;
        }
        assert_close(&found, &expected);
    }
}
