use super::super::fixture::{Bench, assert_close, rounded, values};
use crate::ops::{Address, CombineExperts, ExpertLinear, Format, Route};

const NONE: Address = Address::NONE;

/// A router that only differs from the default in what a test says.
fn router(bench: &mut Bench, logits: &[f32], tokens: usize, top_k: usize) -> Route {
    Route {
        logits: bench.f32s(logits),
        correction: NONE,
        expert_scale: NONE,
        experts: bench.empty(tokens * top_k),
        weights: bench.empty(tokens * top_k),
        count: (logits.len() / tokens) as u32,
        top_k: top_k as u32,
        sigmoid: 0,
        groups: 0,
        keep_groups: 0,
        best_two: 0,
        normalise: 0,
        normalise_eps: 0.0,
        scale: 1.0,
        reserved: 0,
    }
}

#[test]
fn choices_follow_scores() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    // Logits, and the experts of a softmax router that chooses two.
    let table: [(&[f32], [u32; 2]); 8] = [
        (&[0.1, 0.4, 0.3, 0.2], [1, 2]),
        (&[0.4, 0.1, 0.2, 0.3], [0, 3]),
        // Of equal ones, the lower index.
        (&[0.5, 0.5, 0.5, 0.5], [0, 1]),
        (&[0.1, 0.5, 0.1, 0.1], [0, 1]),
        (&[0.1, 0.2, 0.5, 0.2], [1, 2]),
        // A broken row still has experts.
        (&[1.0, nan, 2.0, 3.0], [0, 1]),
        (&[nan, nan, nan, nan], [0, 1]),
        (&[-inf, -inf, 1.0, -inf], [0, 2]),
    ];
    for (logits, expected) in table {
        let mut bench = Bench::default();
        let op = router(&mut bench, logits, 1, 2);
        bench.run(op, 1);
        assert_eq!(bench.read_u32s(op.experts, 2), expected, "{logits:?}");
    }
    // One sigmoid leaves the others alone, so that only the NaN counts as smallest.
    let mut bench = Bench::default();
    let op = router(&mut bench, &[1.0, nan, 2.0, 3.0], 1, 3);
    let op = Route { sigmoid: 1, ..op };
    bench.run(op, 1);
    assert_eq!(bench.read_u32s(op.experts, 3), [0, 2, 3]);
}

#[test]
fn groups_limit_the_choice() {
    // Sigmoid is monotonic, so logits rank like scores within a group.
    let logits = [0.9, -3.0, 0.5, 0.6, 0.7, -2.0, 0.1, 0.2];
    let nan = f32::NAN;
    let table = [
        // Groups of two by their best: {0, 1} and {4, 5}.
        (logits, 4, 2, 0, [0, 4]),
        // By the sum of both: {2, 3} and {6, 7}.
        (logits, 4, 2, 1, [2, 3]),
        (logits, 2, 1, 0, [0, 3]),
        (logits, 1, 1, 1, [0, 4]),
        // Every group is kept.
        (logits, 4, 4, 0, [0, 4]),
        // Equal groups: the first. What is left out fills up from the lowest index.
        ([0.5; 8], 8, 1, 0, [0, 1]),
        ([0.5; 8], 4, 1, 1, [0, 1]),
        // A NaN spoils the sum of its group.
        ([5.0, nan, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], 2, 1, 0, [0, 2]),
        ([5.0, nan, 0.0, 0.0, 9.0, nan, 1.0, 1.0], 4, 1, 1, [6, 7]),
    ];
    for (logits, groups, keep_groups, best_two, expected) in table {
        let mut bench = Bench::default();
        let op = router(&mut bench, &logits, 1, 2);
        let op = Route {
            sigmoid: 1,
            groups,
            keep_groups,
            best_two,
            ..op
        };
        bench.run(op, 1);
        let found = bench.read_u32s(op.experts, 2);
        assert_eq!(
            found, expected,
            "{logits:?} in {groups}, best two: {best_two}"
        );
    }
}

#[test]
fn weights_are_scores_without_the_correction() {
    let (tokens, count, top_k) = (3, 7, 3);
    let logits = values(tokens * count, 1);
    let (correction, expert_scale) = (values(count, 2), values(count, 3));
    for case in 0..16 {
        let [sigmoid, normalise, corrected, scaled] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let mut bench = Bench::default();
        let op = router(&mut bench, &logits, tokens, top_k);
        let op = Route {
            correction: if corrected {
                bench.f32s(&correction)
            } else {
                NONE
            },
            expert_scale: if scaled {
                bench.f32s(&expert_scale)
            } else {
                NONE
            },
            sigmoid: sigmoid.into(),
            normalise: normalise.into(),
            normalise_eps: 0.01,
            scale: 2.5,
            ..op
        };
        bench.run(op, tokens);
        for (token, logits) in logits.chunks_exact(count).enumerate() {
            let logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
            let total: f64 = logits.iter().map(|x| x.exp()).sum();
            let scores: Vec<f64> = logits
                .iter()
                .map(|x| {
                    if sigmoid {
                        1.0 / (1.0 + (-x).exp())
                    } else {
                        x.exp() / total
                    }
                })
                .collect();
            let rank = |expert: usize| {
                scores[expert]
                    + if corrected {
                        f64::from(correction[expert])
                    } else {
                        0.0
                    }
            };
            let mut order: Vec<usize> = (0..count).collect();
            order.sort_by(|a, b| rank(*b).total_cmp(&rank(*a)));
            let mut chosen = order[..top_k].to_vec();
            chosen.sort_unstable();
            let sum: f64 = chosen.iter().map(|expert| scores[*expert]).sum();
            let weights: Vec<f32> = chosen
                .iter()
                .map(|expert| {
                    let own = if scaled {
                        f64::from(expert_scale[*expert])
                    } else {
                        1.0
                    };
                    let total = if normalise { sum + 0.01 } else { 1.0 };
                    (scores[*expert] / total * 2.5 * own) as f32
                })
                .collect();
            let experts: Vec<u32> = chosen.iter().map(|expert| *expert as u32).collect();
            assert_eq!(
                bench.read_u32s(op.experts.values(token * top_k), top_k),
                experts
            );
            assert_close(
                &bench.read(op.weights.values(token * top_k), top_k),
                &weights,
            );
            let expected: Vec<f32> = scores.iter().map(|score| *score as f32).collect();
            assert_close(
                &bench.read(op.logits.values(token * count), count),
                &expected,
            );
        }
    }
}

#[test]
fn invalid_routers_are_refused() {
    let mut bench = Bench::default();
    let op = router(&mut bench, &[0.0; 6], 1, 2);
    for (op, operand) in [
        (Route { top_k: 7, ..op }, "top_k"),
        (Route { groups: 4, ..op }, "groups"),
    ] {
        let refusal = bench.refusal(op, 1);
        assert!(
            refusal.contains(&format!("Route to {operand}")),
            "{refusal}"
        );
    }
}

#[test]
fn experts_multiply_their_tokens() {
    let (count, rows, cols, tokens, top_k) = (5, 7, 3, 4, 2);
    let matrices = values(count * rows * cols, 1);
    let bias = values(count * rows, 2);
    let weights = values(tokens * top_k, 3);
    let experts = [0, 4, 1, 2, 0, 1, 3, 4];
    for case in 0..16 {
        let [per_route, biased, weighed, is_bf16] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let format = if is_bf16 { Format::Bf16 } else { Format::F32 };
        let stride = cols + 2;
        let inputs = if per_route { tokens * top_k } else { tokens };
        let input = values(inputs * stride, 4);
        let mut bench = Bench::default();
        let mut matrix = bench.matrix(&matrices, count * rows, format);
        matrix.rows = rows as u32;
        let op = ExpertLinear {
            matrix,
            input: bench.f32s(&input),
            out: bench.empty(tokens * top_k * rows),
            bias: if biased { bench.f32s(&bias) } else { NONE },
            experts: bench.u32s(&experts),
            weights: if weighed { bench.f32s(&weights) } else { NONE },
            input_stride: stride as u32,
            top_k: top_k as u32,
            input_per_route: per_route.into(),
            reserved: 0,
        };
        bench.run(op, tokens);
        let found = bench.read(op.out, tokens * top_k * rows);
        let matrices = rounded(&matrices, format);
        for (route, found) in found.chunks_exact(rows).enumerate() {
            let expert = experts[route] as usize;
            let from = if per_route { route } else { route / top_k };
            let input = &input[from * stride..from * stride + cols];
            let weight = if weighed { weights[route] } else { 1.0 };
            let expected: Vec<f32> = (0..rows)
                .map(|row| {
                    let row_values = &matrices[(expert * rows + row) * cols..][..cols];
                    let pairs = row_values.iter().zip(input);
                    let product: f64 = pairs
                        .map(|(a, b)| f64::from(*a) * f64::from(b * weight))
                        .sum();
                    let bias = if biased {
                        f64::from(bias[expert * rows + row])
                    } else {
                        0.0
                    };
                    (product + bias) as f32
                })
                .collect();
            assert_close(found, &expected);
        }
        let beyond = ExpertLinear {
            experts: bench.u32s(&[5; 8]),
            ..op
        };
        let refusal = bench.refusal(beyond, tokens);
        assert!(refusal.contains("ExpertLinear to matrix"), "{refusal}");
    }
}

#[test]
fn outputs_of_experts_are_summed() {
    let (tokens, top_k, len) = (3, 4, 5);
    let input = values(tokens * top_k * len, 1);
    let weights = values(tokens * top_k, 2);
    for weighed in [false, true] {
        let mut bench = Bench::default();
        let op = CombineExperts {
            input: bench.f32s(&input),
            out: bench.empty(tokens * 6),
            weights: if weighed { bench.f32s(&weights) } else { NONE },
            out_stride: 6,
            len: len as u32,
            top_k: top_k as u32,
            reserved: 0,
        };
        bench.run(op, tokens);
        for token in 0..tokens {
            let expected: Vec<f32> = (0..len)
                .map(|i| {
                    let routes = token * top_k..(token + 1) * top_k;
                    let weight = |route: usize| if weighed { weights[route] } else { 1.0 };
                    routes
                        .map(|route| input[route * len + i] * weight(route))
                        .sum()
                })
                .collect();
            assert_close(&bench.read(op.out.values(token * 6), len), &expected);
        }
    }
}
