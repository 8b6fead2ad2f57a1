use super::super::fixture::{Bench, assert_close, values};
use crate::ops::AttendDense;

#[test]
fn dense_attention_sees_ranges_of_tokens() {
    let (tokens, heads, head_dim) = (9, 2, 5);
    let stride = heads * head_dim + 3;
    let ranges = [
        [0, 9],
        [0, 1],
        [3, 5],
        [8, 9],
        [0, 4],
        [2, 9],
        [6, 7],
        [1, 8],
        [0, 9],
    ];
    let [query, key, value] = [1, 2, 3].map(|seed| values(tokens * stride, seed));
    let mut bench = Bench::default();
    let op = AttendDense {
        query: bench.f32s(&query),
        key: bench.f32s(&key),
        value: bench.f32s(&value),
        out: bench.empty(tokens * stride),
        ranges: bench.u32s(ranges.as_flattened()),
        stride: stride as u32,
        heads: heads as u32,
        head_dim: head_dim as u32,
        scale: 0.7,
    };
    bench.run(op, tokens);
    for (token, range) in ranges.iter().enumerate() {
        for head in 0..heads {
            let of = |values: &'_ [f32], token: usize| -> Vec<f64> {
                let first = token * stride + head * head_dim;
                values[first..first + head_dim]
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect()
            };
            let query = of(&query, token);
            let weight = |other: usize| {
                let pairs = query.iter().zip(of(&key, other));
                (0.7 * pairs.map(|(a, b)| a * b).sum::<f64>()).exp()
            };
            let seen = range[0] as usize..range[1] as usize;
            let total: f64 = seen.clone().map(weight).sum();
            let expected: Vec<f32> = (0..head_dim)
                .map(|dim| {
                    let mixed: f64 = seen.clone().map(|p| weight(p) * of(&value, p)[dim]).sum();
                    (mixed / total) as f32
                })
                .collect();
            let found = bench.read(op.out.values(token * stride + head * head_dim), head_dim);
            assert_close(&found, &expected);
        }
    }
}
