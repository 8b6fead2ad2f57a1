use loquat_spec::{LayerRole, Role};
use loquat_testkit::goldens;
use loquat_weights::Dtype;

use super::*;
use crate::adapted::StepAdapters;
use crate::linear::StackChoice;
use crate::testing;

const ROWS: usize = 40;
const COLS: usize = 256;

fn layer(role: LayerRole) -> Role {
    Role::Layer(0, role)
}

/// Queries and keys of one form, values of another.
fn mixed() -> Weights {
    testing::weights(ROWS, COLS, |role| match role {
        Role::Layer(_, LayerRole::Query) => Dtype::Q4K,
        Role::Layer(_, LayerRole::Key) => Dtype::Q4_0,
        _ => Dtype::Q6K,
    })
}

fn input(ops: &Ops) -> Array {
    let values = testing::noise(3 * COLS, 7);
    ops.upload_f32(&values, &[3, COLS as i32]).unwrap()
}

#[test]
fn joined_matrices_equal_single_ones() {
    let Some(ops) = testing::ops() else { return };
    let weights = mixed();
    let loader = Loader::new(&ops, &weights, Type::F32, 8);
    let roles = [LayerRole::Query, LayerRole::Key, LayerRole::Value].map(layer);
    // The norm's vector is as long as the queries, so it can be used as their bias.
    let bias = Some(layer(LayerRole::MixerPreNorm));
    for bias in [None, bias] {
        let joined = [(roles[0], bias), (roles[1], None), (roles[2], None)];
        let together = loader.joined(&joined).unwrap();
        let together = together
            .apply(&ops, &input(&ops), &StepAdapters::default())
            .unwrap();
        assert_eq!(together.len(), roles.len());
        for (answer, (role, bias)) in together.iter().zip(joined) {
            let alone = loader.linear(role, bias).unwrap();
            let alone = alone.apply(&ops, &input(&ops)).unwrap();
            assert_eq!(answer.shape(), alone.shape());
            assert_eq!(
                testing::read(&ops, answer),
                testing::read(&ops, &alone),
                "{role}"
            );
        }
    }
}

#[test]
fn adjacent_matrices_of_one_form_join() {
    let Some(ops) = testing::ops() else { return };
    let cases = [
        ([Dtype::Q4K, Dtype::Q4_0, Dtype::Q6K], vec![2, 1]),
        ([Dtype::Q5K, Dtype::Q4_1, Dtype::Q4_0], vec![1, 2]),
        ([Dtype::Q4K, Dtype::Q8_0, Dtype::Q4K], vec![1, 1, 1]),
        // Decoded, they are all the same.
        ([Dtype::BF16, Dtype::F32, Dtype::Q6K], vec![3]),
    ];
    for (dtypes, expected) in cases {
        let weights = testing::weights(ROWS, COLS, |role| match role {
            Role::Layer(_, LayerRole::Query) => dtypes[0],
            Role::Layer(_, LayerRole::Key) => dtypes[1],
            _ => dtypes[2],
        });
        let loader = Loader::new(&ops, &weights, Type::F16, 8);
        let roles = [LayerRole::Query, LayerRole::Key, LayerRole::Value];
        let parts = loader
            .parts(&roles.map(|role| (layer(role), None)))
            .unwrap();
        let runs: Vec<usize> = parts
            .chunk_by(RoleMatrices::joins)
            .map(<[RoleMatrices]>::len)
            .collect();
        assert_eq!(runs, expected, "{dtypes:?}");
    }
}

#[test]
fn joined_stacks_equal_single_ones() {
    let Some(ops) = testing::ops() else { return };
    let folders = [
        "goldens/gpt_oss",
        "goldens-mlx/gpt_oss__mxfp4",
        "goldens/gpt_oss_mxfp4",
    ];
    for folder in folders {
        let source = goldens::source(&goldens::fixtures().join(folder)).unwrap();
        let loader = Loader::new(&ops, &source.weights, Type::F32, 8);
        let roles = [
            (
                layer(LayerRole::ExpertGate),
                Some(layer(LayerRole::ExpertGateBias)),
            ),
            (
                layer(LayerRole::ExpertUp),
                Some(layer(LayerRole::ExpertUpBias)),
            ),
        ];
        let cols = source.weights.matrix(roles[0].0).unwrap().cols();
        let x = testing::noise(2 * cols, 4);
        let x = ops.upload_f32(&x, &[2, 1, 1, cols as i32]).unwrap();
        let choice = StackChoice {
            matrices: &ops.upload_u32(&[0, 2, 1, 1], &[2, 2]).unwrap(),
            sorted: false,
        };
        let together = loader.joined_stack(&roles).unwrap();
        let together = together.apply(&ops, &x, choice, &[]).unwrap();
        for (answer, (role, bias)) in together.iter().zip(roles) {
            let alone = loader.stack(role, bias).unwrap();
            let alone = alone.apply(&ops, &x, choice, &[]).unwrap();
            assert_eq!(answer.shape(), alone.shape());
            assert_eq!(
                testing::read(&ops, answer),
                testing::read(&ops, &alone),
                "{folder} {role}"
            );
        }
    }
}

#[test]
fn tied_head_is_uploaded_once() {
    let Some(ops) = testing::ops() else { return };
    let weights = testing::weights(ROWS, COLS, |_| Dtype::Q8_0);
    let loader = Loader::new(&ops, &weights, Type::F32, 8);
    let head = loader.linear(Role::Embedding, None).unwrap();
    let table = loader.table(Role::Embedding).unwrap();
    assert_eq!(loader.uploaded.borrow().len(), 1);
    let id = ops.upload_i32(&[5], &[1]).unwrap();
    let row = table.rows(&ops, &id, Type::F32).unwrap();
    let logits = testing::read(&ops, &head.apply(&ops, &row).unwrap());
    let square: f32 = testing::read(&ops, &row)
        .iter()
        .map(|value| value * value)
        .sum();
    assert!((logits[5] - square).abs() <= 1e-5 * square);
}

#[test]
fn activation_type_follows_the_checkpoint() {
    let folder = |name: &str| goldens::source(&goldens::fixtures().join(name)).unwrap();
    let (plain, scaled) = (folder("goldens/llama").spec, folder("goldens/gemma2").spec);
    assert!(plain.embedding.scale == 1.0 && scaled.embedding.scale != 1.0);
    let cases = [
        (Dtype::BF16, Type::BF16, Type::BF16),
        (Dtype::F16, Type::F16, Type::BF16),
        (Dtype::F32, Type::F32, Type::F32),
        (Dtype::Q4K, Type::F16, Type::BF16),
        (Dtype::Mxfp4, Type::BF16, Type::BF16),
    ];
    for (dtype, own, under_scale) in cases {
        // One small matrix of another type does not change the result.
        let weights = testing::weights(ROWS, COLS, |role| match role {
            Role::Layer(_, LayerRole::Key) => Dtype::F32,
            _ => dtype,
        });
        let of = |spec, precision| activation_type(spec, &weights, precision);
        assert_eq!(of(&plain, Precision::Fast), own, "{dtype}");
        assert_eq!(of(&scaled, Precision::Fast), under_scale, "{dtype}");
        assert_eq!(of(&plain, Precision::Reference), Type::F32, "{dtype}");
    }
}
