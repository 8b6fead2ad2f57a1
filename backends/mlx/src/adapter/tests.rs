use std::sync::Arc;

use loquat_spec::{LayerRole, Role};
use loquat_testkit::goldens;
use loquat_weights::Weights;

use super::*;
use crate::adapted::{Applied, Segment, StepAdapters};
use crate::linear::{Linear, StackChoice};
use crate::loader::Loader;
use crate::testing::{self, noise, read};

const RANK: usize = 3;

fn layer(role: LayerRole) -> Role {
    Role::Layer(0, role)
}

fn factor(rows: usize, cols: usize, seed: u32) -> Arc<Factor> {
    Arc::new(Factor::new(rows, cols, noise(rows * cols, seed)).unwrap())
}

/// A change of a matrix of this shape.
fn low_rank(rows: usize, cols: usize, rank: usize, scale: f32, magnitude: bool) -> LowRank {
    LowRank {
        a: factor(rank, cols, 1 + rank as u32),
        b: factor(rows, rank, 2 + rank as u32),
        scale,
        magnitude: magnitude.then(|| noise(rows, 5).iter().map(|value| 1.0 + value).collect()),
        lengths_of: LengthsOf::Rows,
    }
}

/// `W x` with the changes of adapters at their scales, computed from decoded values.
fn expected(matrix: &Matrix, x: &[f32], changes: &[(&LowRank, f32)]) -> Vec<f32> {
    let mut values = vec![0.0; matrix.cols()];
    let row = |row: usize| {
        matrix.decode_row(row, &mut values).unwrap();
        let dot = |weights: &[f64]| -> f64 {
            let products = weights.iter().zip(x).map(|(w, x)| w * f64::from(*x));
            products.sum()
        };
        let base: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        let plain = dot(&base);
        let changes = changes.iter().map(|(change, scale)| {
            let mut sum = base.clone();
            for (k, b) in change.b.row(row).iter().enumerate() {
                for (sum, a) in sum.iter_mut().zip(change.a.row(k)) {
                    *sum += f64::from(scale * change.scale) * f64::from(*b) * f64::from(*a);
                }
            }
            let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
            let factor = match &change.magnitude {
                Some(magnitude) => f64::from(magnitude[row]) / length,
                None => 1.0,
            };
            dot(&sum) * factor - plain
        });
        (plain + changes.sum::<f64>()) as f32
    };
    (0..matrix.rows()).map(row).collect()
}

fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected
        .iter()
        .fold(1.0f32, |max, value| max.max(value.abs()));
    for (found, expected) in found.iter().zip(expected) {
        let difference = (found - expected).abs();
        assert!(
            difference < 1e-5 * largest,
            "{what}: {found} and {expected}"
        );
    }
}

fn loaded(ops: &Ops, loader: Loader, role: Role, members: &[Option<LowRank>]) -> LoadedAdapter {
    let adaptable = loader.into_adaptable();
    let base = &adaptable.matrices[&role];
    assert!(base.fits(members));
    let change = Change::load(ops, Type::F32, base, members).unwrap();
    let mut adapter = LoadedAdapter::default();
    adapter.low_rank.insert(role, change);
    adapter
}

/// Packed and plain models.
fn sources(folders: &[&str]) -> impl Iterator<Item = (String, Arc<Weights>)> {
    let folders = folders.iter().map(|folder| {
        let source = goldens::source(&goldens::fixtures().join(folder)).unwrap();
        ((*folder).to_owned(), source.weights)
    });
    folders.collect::<Vec<_>>().into_iter()
}

#[test]
fn lengths_hold_at_every_scale_and_for_joined_parts() {
    let Some(ops) = testing::ops() else { return };
    let folders = [
        "goldens/llama",
        "goldens-mlx/llama__affine4_g32",
        "goldens-mlx/llama__mxfp4",
    ];
    for (name, weights) in sources(&folders) {
        // Keys are below the queries in one array.
        let role = layer(LayerRole::Key);
        let matrix = weights.matrix(role).unwrap();
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let changes = [(true, 0.7), (false, 1.5)].map(|(magnitude, scale)| {
            let rank = RANK + usize::from(magnitude);
            low_rank(rows, cols, rank, scale, magnitude)
        });
        let load = |change: &LowRank| {
            let loader = Loader::new(&ops, &weights, Type::F32, 8);
            let roles = [(layer(LayerRole::Query), None), (role, None)];
            let joined = loader.joined(&roles).unwrap();
            (loaded(&ops, loader, role, &[Some(change.clone())]), joined)
        };
        let [(first, joined), (second, _)] = changes.each_ref().map(load);
        let x = noise(cols, 9);
        let input = ops.upload_f32(&x, &[1, cols as i32]).unwrap();
        for scales in [[1.0, 0.0], [0.5, 0.0], [-2.0, 0.0], [0.0, 1.0], [1.0, 0.25]] {
            let adapters = [&first, &second].into_iter().zip(scales);
            let applied = adapters.map(|(adapter, scale)| Applied { adapter, scale });
            let segment = Segment {
                tokens: 0..1,
                applied: applied.filter(|applied| applied.scale != 0.0).collect(),
            };
            let adapters = StepAdapters::of_segments(vec![segment]);
            let found = joined.apply(&ops, &input, &adapters).unwrap();
            let used = changes
                .iter()
                .zip(scales)
                .filter(|(_, scale)| *scale != 0.0);
            let expected = expected(matrix, &x, &used.collect::<Vec<_>>());
            assert_close(
                &format!("{name}, {scales:?}"),
                &read(&ops, &found[1]),
                &expected,
            );
        }
    }
}

/// Some experts have no change, others another rank or scale.
#[test]
fn uneven_changes_of_a_stack_reach_their_matrices() {
    let Some(ops) = testing::ops() else { return };
    let folders = ["goldens/qwen3_moe", "goldens-mlx/qwen3_moe__affine4_g32"];
    for (name, weights) in sources(&folders) {
        let role = layer(LayerRole::ExpertDown);
        let stack = weights.stack(role).unwrap();
        let (count, rows, cols) = (stack.len(), stack[0].rows(), stack[0].cols());
        let member = |index: usize| match index % 4 {
            0 => Some(low_rank(rows, cols, RANK, 1.5, false)),
            1 => None,
            2 => Some(low_rank(rows, cols, RANK, -0.5, true)),
            _ => Some(low_rank(rows, cols, RANK + 2, 1.0, false)),
        };
        let members: Vec<Option<LowRank>> = (0..count).map(member).collect();
        let loader = Loader::new(&ops, &weights, Type::F32, 8);
        let linear = loader.stack(role, None).unwrap();
        let adapter = loaded(&ops, loader, role, &members);
        let x = noise(count * cols, 9);
        let input = ops.upload_f32(&x, &[count as i32, 1, cols as i32]).unwrap();
        let order: Vec<u32> = (0..count as u32).rev().collect();
        let chosen = ops.upload_u32(&order, &[count as i32]).unwrap();
        for scale in [1.0, 0.5] {
            let applied = [Applied {
                adapter: &adapter,
                scale,
            }];
            let expected = |index: usize, member: usize| {
                let x = &x[index * cols..(index + 1) * cols];
                let change = members[member].as_ref();
                let change: Vec<_> = change.map(|change| (change, scale)).into_iter().collect();
                expected(&stack[member], x, &change)
            };
            let choice = StackChoice {
                matrices: &chosen,
                sorted: false,
            };
            let found = linear.apply(&ops, &input, choice, &applied).unwrap();
            let reversed = (0..count).flat_map(|index| expected(index, count - 1 - index));
            let reversed: Vec<f32> = reversed.collect();
            assert_close(&format!("{name}, chosen"), &read(&ops, &found), &reversed);
            let segment = Segment {
                tokens: 0..1,
                applied: applied.to_vec(),
            };
            let adapters = StepAdapters::of_segments(vec![segment]);
            let found = linear.apply_each(&ops, &input, &adapters).unwrap();
            let each: Vec<f32> = (0..count)
                .flat_map(|index| expected(index, index))
                .collect();
            assert_close(&format!("{name}, each"), &read(&ops, &found), &each);
        }
    }
}

/// Tokens without adapters keep the product of the model, and only theirs.
#[test]
fn segments_change_their_own_tokens() {
    let Some(ops) = testing::ops() else { return };
    let source = goldens::source(&goldens::family("llama")).unwrap();
    let role = layer(LayerRole::Output);
    let matrix = source.weights.matrix(role).unwrap();
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let change = low_rank(rows, cols, RANK, 2.0, false);
    let loader = Loader::new(&ops, &source.weights, Type::F32, 8);
    let linear: Linear = loader.linear(role, None).unwrap();
    let adapter = loaded(&ops, loader, role, &[Some(change.clone())]);
    let segment = |tokens, scale: Option<f32>| Segment {
        tokens,
        applied: scale
            .map(|scale| Applied {
                adapter: &adapter,
                scale,
            })
            .into_iter()
            .collect(),
    };
    let scales = [None, Some(1.0), Some(1.0), None, Some(-0.5)];
    let adapters = StepAdapters::of_segments(vec![
        segment(0..1, None),
        segment(1..3, Some(1.0)),
        segment(3..4, None),
        segment(4..5, Some(-0.5)),
    ]);
    let x = noise(scales.len() * cols, 4);
    let input = ops
        .upload_f32(&x, &[scales.len() as i32, cols as i32])
        .unwrap();
    let found = read(&ops, &linear.adapted(&ops, &input, &adapters).unwrap());
    let rows_of = scales.iter().zip(x.chunks(cols)).zip(found.chunks(rows));
    for ((scale, x), found) in rows_of {
        let changes: Vec<_> = scale.iter().map(|scale| (&change, *scale)).collect();
        assert_close(&format!("{scale:?}"), found, &expected(matrix, x, &changes));
    }
    let later = adapters.within(2..5);
    let input = ops.upload_f32(&x[2 * cols..], &[3, cols as i32]).unwrap();
    let again = read(&ops, &linear.adapted(&ops, &input, &later).unwrap());
    assert_close("the last three", &again, &found[2 * rows..]);
}
