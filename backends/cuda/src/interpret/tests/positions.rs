//! Embeddings, rotary angles, and what else depends on ids and positions.

use super::super::fixture::{Bench, assert_close, rounded, values};
use crate::ops::{
    AddEmbedding, AddFeatures, Address, Angles, Embed, Format, Gather, MEDIA_ID, MatrixRef, Rope,
    SumRows, Temperature,
};

const WIDTH: usize = 5;

/// Three tokens, of which the second is media with features at levels 0 and 1.
fn bench() -> (Bench, Vec<f32>) {
    let mut bench = Bench::default();
    bench.tables.ids = bench.u32s(&[2, MEDIA_ID, 0]);
    bench.tables.positions = bench.u32s(&[4, 5, 1]);
    let features = values(2 * WIDTH, 7);
    let at = bench.f32s(&features);
    let none = Address::NONE;
    // Room for a fourth token between the levels.
    let table = [none, at, none, none, none, at.values(WIDTH), none, none];
    bench.tables.features = bench.addresses(&table);
    bench.tables.feature_stride = 4;
    (bench, features)
}

#[test]
fn embeddings_are_rows_or_features() {
    let (rows, positions) = (values(3 * WIDTH, 1), values(6 * WIDTH, 2));
    for format in [Format::F32, Format::Bf16] {
        for has_positions in [false, true] {
            let (mut bench, features) = bench();
            let mut learned = bench.matrix(&positions, 6, Format::F32);
            if !has_positions {
                learned.values = Address::NONE;
            }
            let op = Embed {
                out: bench.empty(3 * WIDTH),
                table: bench.matrix(&rows, 3, format),
                positions: learned,
                scale: 2.5,
                reserved: 0,
            };
            bench.run(op, 3);
            let found = bench.read(op.out, 3 * WIDTH);
            let rows = rounded(&rows, format);
            let mut expected: Vec<f32> = rows[2 * WIDTH..].iter().map(|x| x * 2.5).collect();
            expected.extend(&features[..WIDTH]);
            expected.extend(rows[..WIDTH].iter().map(|x| x * 2.5));
            if has_positions {
                for (token, position) in [4, 5, 1].into_iter().enumerate() {
                    for i in 0..WIDTH {
                        expected[token * WIDTH + i] += positions[position * WIDTH + i];
                    }
                }
            }
            assert_close(&found, &expected);
        }
    }
}

#[test]
fn added_embeddings_use_the_media_id() {
    let (rows, before) = (values(3 * WIDTH, 1), values(3 * WIDTH, 2));
    let (mut bench, _) = bench();
    let op = AddEmbedding {
        out: bench.f32s(&before),
        table: bench.matrix(&rows, 3, Format::F32),
        media_id: 1,
        scale: 0.5,
        factor: 3.0,
        reserved: 0,
    };
    bench.run(op, 3);
    let ids = [2, 1, 0];
    let expected: Vec<f32> = (0..3 * WIDTH)
        .map(|i| (before[i] + rows[ids[i / WIDTH] * WIDTH + i % WIDTH] * 0.5) * 3.0)
        .collect();
    assert_close(&bench.read(op.out, 3 * WIDTH), &expected);
}

#[test]
fn features_of_a_level_are_added() {
    for level in 0..2 {
        let (mut bench, features) = bench();
        let before = values(3 * WIDTH, 1);
        let op = AddFeatures {
            out: bench.f32s(&before),
            width: WIDTH as u32,
            level: level as u32,
        };
        bench.run(op, 3);
        let mut expected = before;
        for i in 0..WIDTH {
            expected[WIDTH + i] += features[level * WIDTH + i];
        }
        assert_close(&bench.read(op.out, 3 * WIDTH), &expected);
        // A step without media has no table.
        bench.tables.features = Address::NONE;
        bench.run(op, 3);
        assert_close(&bench.read(op.out, 3 * WIDTH), &expected);
    }
}

#[test]
fn gather_copies_indexed_vectors() {
    let input = values(4 * 6, 1);
    let mut bench = Bench::default();
    let op = Gather {
        input: bench.f32s(&input),
        out: bench.empty(3 * WIDTH),
        index: bench.u32s(&[3, 0, 3]),
        input_stride: 6,
        out_stride: WIDTH as u32,
        len: WIDTH as u32,
        reserved: 0,
    };
    bench.run(op, 3);
    let expected: Vec<f32> = [3, 0, 3]
        .iter()
        .flat_map(|i| &input[i * 6..i * 6 + WIDTH])
        .copied()
        .collect();
    assert_eq!(bench.read(op.out, 3 * WIDTH), expected);
    // Without an index, what the step emits.
    bench.tables.emitted = op.index;
    let out = bench.empty(3 * WIDTH);
    let index = Address::NONE;
    bench.run(Gather { out, index, ..op }, 3);
    assert_eq!(bench.read(out, 3 * WIDTH), expected);
}

#[test]
fn rows_are_summed_by_weight() {
    let table = values(3 * WIDTH, 1);
    let before = values(3 * WIDTH, 2);
    for adds in [0, 1] {
        let mut bench = Bench::default();
        let op = SumRows {
            matrix: bench.matrix(&table, 3, Format::F32),
            out: bench.f32s(&before),
            terms: bench.u32s(&[0, 2, 2, 3]),
            rows: bench.u32s(&[0, 2, 1]),
            weights: bench.f32s(&[0.5, -2.0, 1.0]),
            out_stride: WIDTH as u32,
            adds,
        };
        bench.run(op, 3);
        let row = |row: usize, i: usize| table[row * WIDTH + i];
        let expected: Vec<f32> = (0..3 * WIDTH)
            .map(|at| {
                let i = at % WIDTH;
                let sums = [row(0, i) * 0.5 - row(2, i) * 2.0, 0.0, row(1, i)];
                sums[at / WIDTH] + before[at] * adds as f32
            })
            .collect();
        assert_close(&bench.read(op.out, 3 * WIDTH), &expected);
    }
}

#[test]
fn angles_follow_positions_or_axes() {
    let frequencies = [1.0, 0.25, 0.01, 0.003];
    let axes = [0, 2, 1, 1];
    let rope = [[3, 8, 9], [1000, 7, 31]];
    for has_axes in [false, true] {
        let mut bench = Bench::default();
        bench.tables.positions = bench.u32s(&[17, 40_000]);
        bench.tables.rope = bench.u32s(rope.as_flattened());
        let op = Angles {
            cos: bench.empty(8),
            sin: bench.empty(8),
            frequencies: bench.f32s(&frequencies),
            axes: if has_axes {
                bench.u32s(&axes)
            } else {
                Address::NONE
            },
            pairs: 4,
            factor: 1.5,
        };
        bench.run(op, 2);
        let angle = |i: usize| {
            let (token, pair) = (i / 4, i % 4);
            let position = if has_axes {
                rope[token][axes[pair] as usize]
            } else {
                [17, 40_000][token]
            };
            // The product is rounded, as positions are at the model's training.
            f64::from(position as f32 * frequencies[pair])
        };
        let cos: Vec<f32> = (0..8).map(|i| (angle(i).cos() * 1.5) as f32).collect();
        let sin: Vec<f32> = (0..8).map(|i| (angle(i).sin() * 1.5) as f32).collect();
        assert_close(&bench.read(op.cos, 8), &cos);
        assert_close(&bench.read(op.sin, 8), &sin);
    }
}

#[test]
fn rope_rotates_the_first_pairs_of_each_head() {
    let (tokens, heads, head_step, pairs, stride) = (2, 3, 7, 3, 23);
    let before = values(tokens * stride, 1);
    let angles = values(tokens * pairs, 2);
    let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
    for interleaved in [0, 1] {
        let mut bench = Bench::default();
        let op = Rope {
            values: bench.f32s(&before),
            cos: bench.f32s(&cos),
            sin: bench.f32s(&sin),
            stride: stride as u32,
            heads: heads as u32,
            head_step: head_step as u32,
            pairs: pairs as u32,
            interleaved,
            reserved: 0,
        };
        bench.run(op, tokens);
        let mut expected = before.clone();
        for token in 0..tokens {
            for head in 0..heads {
                for pair in 0..pairs {
                    let first = token * stride + head * head_step;
                    let (a, b) = if interleaved == 1 {
                        (first + 2 * pair, first + 2 * pair + 1)
                    } else {
                        (first + pair, first + pair + pairs)
                    };
                    let (sin, cos) = angles[token * pairs + pair].sin_cos();
                    (expected[a], expected[b]) = (
                        before[a] * cos - before[b] * sin,
                        before[a] * sin + before[b] * cos,
                    );
                }
            }
        }
        assert_close(&bench.read(op.values, tokens * stride), &expected);
    }
}

#[test]
fn temperature_grows_with_spans() {
    let mut bench = Bench::default();
    bench.tables.positions = bench.u32s(&[0, 9, 10, 57]);
    let op = Temperature {
        values: bench.f32s(&[2.0; 8]),
        stride: 2,
        len: 1,
        beta: 0.1,
        span: 10,
        offset: 1,
        reserved: 0,
    };
    bench.run(op, 4);
    let factor = |spans: f32| 2.0 * (1.0 + 0.1 * (1.0 + spans).ln());
    let expected = [0.0, 1.0, 1.0, 5.0].map(|spans| [factor(spans), 2.0]);
    assert_close(&bench.read(op.values, 8), expected.as_flattened());
    let refusal = bench.refusal(Temperature { span: 0, ..op }, 1);
    assert!(refusal.contains("Temperature to span"), "{refusal}");
}

#[test]
fn media_without_features_are_refused() {
    let (mut bench, _) = bench();
    let table = bench.matrix(&values(3 * WIDTH, 1), 3, Format::F32);
    let op = Embed {
        out: bench.empty(3 * WIDTH),
        table,
        positions: MatrixRef {
            values: Address::NONE,
            ..table
        },
        scale: 1.0,
        reserved: 0,
    };
    bench.tables.features = bench.addresses(&[Address::NONE; 8]);
    let refusal = bench.refusal(op, 3);
    assert_eq!(
        refusal,
        "invalid access by Embed to features: the address is none"
    );
}
