use loquat_spec::{LayerRole, Role};
use loquat_testkit::goldens;
use loquat_weights::{Dtype, Matrix};

use super::*;
use crate::testing;

const FLOATS: [Type; 3] = [Type::F32, Type::F16, Type::BF16];

/// All of a matrix's values, exactly.
fn decoded(matrix: &Matrix) -> Vec<f32> {
    let mut values = vec![0.0; matrix.rows() * matrix.cols()];
    for (row, values) in values.chunks_exact_mut(matrix.cols()).enumerate() {
        matrix.decode_row(row, values).unwrap();
    }
    values
}

fn upload(ops: &Ops, matrix: &Matrix, dtype: Type) -> UploadedMatrix {
    let form = Form::for_matrix(matrix, dtype);
    UploadedMatrix::upload(ops, form, &[matrix], &[matrix.rows()]).unwrap()
}

/// The values that the device decodes from the uploaded matrix.
fn uploaded_values(ops: &Ops, matrix: &Matrix, dtype: Type) -> Vec<f32> {
    let ids = ops.arange(0, matrix.rows() as i32, Type::I32).unwrap();
    let table = upload(ops, matrix, dtype).table();
    testing::read(ops, &table.rows(ops, &ids, Type::F32).unwrap())
}

/// Types of GGUF's and of floats, each as the embedding.
fn every_type() -> impl Iterator<Item = (Dtype, Matrix)> {
    let readable = |dtype: &Dtype| dtype.block_len() > 1 || float_type(*dtype).is_some();
    Dtype::ALL.into_iter().filter(readable).map(|dtype| {
        let weights = testing::weights(19, 512, |role| match role {
            Role::Embedding => dtype,
            _ => Dtype::BF16,
        });
        (dtype, weights.matrix(Role::Embedding).unwrap().clone())
    })
}

#[test]
fn single_precision_keeps_every_type_exactly() {
    let Some(ops) = testing::ops() else { return };
    for (dtype, matrix) in every_type() {
        let kept = uploaded_values(&ops, &matrix, Type::F32);
        assert!(kept == decoded(&matrix), "{dtype}");
    }
}

#[test]
fn half_precision_rounds_only_scales_and_results() {
    let Some(ops) = testing::ops() else { return };
    for (to, step) in [(Type::F16, 2f32.powi(-11)), (Type::BF16, 2f32.powi(-8))] {
        for (dtype, matrix) in every_type() {
            // Powers of two that no half holds.
            if dtype == Dtype::Mxfp4 {
                continue;
            }
            let kept = uploaded_values(&ops, &matrix, to);
            let exact = decoded(&matrix);
            for (at, (kept, exact)) in kept.iter().zip(&exact).enumerate() {
                let row = matrix.encoded_row(at / matrix.cols());
                let group = at % matrix.cols() / blocks::GROUP;
                let bias = match row {
                    Some(EncodedRow::Plain { dtype, bytes }) if dtype.block_len() > 1 => {
                        blocks::factors(dtype, bytes)
                            .nth(group)
                            .map_or(0.0, |both| both.1)
                    }
                    _ => 0.0,
                };
                // Scale, bias, product and sum are each rounded once. The smallest halves are
                // 2^-24 apart.
                let tolerance = step * (3.0 * exact.abs() + 4.0 * bias.abs()) + 2f32.powi(-23);
                assert!(
                    (kept - exact).abs() <= tolerance,
                    "{dtype} as {to:?}, value {at}: {kept} for {exact}"
                );
            }
        }
    }
}

#[test]
fn mlx_formats_are_uploaded_unchanged() {
    let Some(ops) = testing::ops() else { return };
    let mut packed = 0;
    for folder in goldens::mlx().unwrap() {
        let source = goldens::source(&folder).unwrap();
        for (role, matrix) in source.weights.matrices() {
            let kept = uploaded_values(&ops, matrix, Type::F32);
            assert!(kept == decoded(matrix), "{} {role}", folder.display());
            packed += usize::from(Form::for_matrix(matrix, Type::F32).packing().is_some());
        }
    }
    assert!(packed > 0);
}

#[test]
fn products_equal_those_of_decoded_values() {
    let Some(ops) = testing::ops() else { return };
    for (dtype, matrix) in every_type() {
        let x = testing::noise(matrix.cols(), 3);
        let kernel = upload(&ops, &matrix, Type::F32).kernel(&ops).unwrap();
        let linear = crate::linear::Linear {
            kernel,
            bias: None,
            parts: Vec::new(),
        };
        let input = ops.upload_f32(&x, &[1, matrix.cols() as i32]).unwrap();
        let answer = testing::read(&ops, &linear.apply(&ops, &input).unwrap());
        let values = decoded(&matrix);
        for (answer, row) in answer.iter().zip(values.chunks_exact(matrix.cols())) {
            let (mut sum, mut size) = (0.0, 0.0);
            for (x, weight) in x.iter().zip(row) {
                sum += f64::from(*x) * f64::from(*weight);
                size += f64::from(x * weight).abs();
            }
            let off = (f64::from(*answer) - sum).abs();
            assert!(off <= 1e-5 * size, "{dtype}: {answer} for {sum}");
        }
    }
}

#[test]
fn predicted_bytes_are_exact() {
    let Some(ops) = testing::ops() else { return };
    let bytes = |array: &Array| {
        let count: i32 = array.shape().iter().product();
        count as u64 * array.dtype().bytes() as u64
    };
    for dtype in FLOATS {
        for (of, matrix) in every_type() {
            let taken = match upload(&ops, &matrix, dtype) {
                UploadedMatrix::Plain(rows) => bytes(&rows),
                UploadedMatrix::Packed(packed) => {
                    let parts = [
                        Some(&packed.codes),
                        Some(&packed.scales),
                        packed.biases.as_ref(),
                    ];
                    parts.into_iter().flatten().map(bytes).sum()
                }
            };
            let foretold = report::predict_bytes(std::slice::from_ref(&matrix), dtype);
            assert_eq!(foretold, taken, "{of} as {dtype:?}");
        }
    }
}

#[test]
fn large_matrix_converts_on_many_threads() {
    let rows = 4 * MIN_THREAD_BYTES / 512 + 3;
    let weights = testing::weights(rows, 512, |_| Dtype::Q8_0);
    let matrix = weights.matrix(Role::Embedding).unwrap();
    let made = convert_plane(Form::Plain(Type::F32), Plane::Values, &[matrix]).unwrap();
    let values = made
        .as_chunks()
        .0
        .iter()
        .map(|four| f32::from_le_bytes(*four));
    assert!(values.eq(decoded(matrix)));
}

#[test]
fn report_lists_each_format() {
    let cases = [
        (Dtype::BF16, Type::BF16, "unchanged"),
        (Dtype::BF16, Type::F32, "f32, decoded"),
        (Dtype::Q4K, Type::F16, "affine 4-bit g32, repacked"),
        (Dtype::Q5_1, Type::F16, "affine 5-bit g32, repacked"),
        (Dtype::Q8_0, Type::F16, "affine 8-bit g32, repacked"),
        (Dtype::Mxfp4, Type::BF16, "mxfp4 g32, repacked"),
        (Dtype::Q6K, Type::F16, "f16, decoded"),
    ];
    for (dtype, to, kept) in cases {
        let notes = report(&testing::weights(300, 256, |_| dtype), to, |_| true);
        let texts: Vec<_> = notes
            .iter()
            .map(|note| (&*note.format, &*note.stored))
            .collect();
        assert_eq!(texts, [(dtype.name(), kept)]);
    }
}

#[test]
fn report_starts_with_largest_format() {
    let mixed = testing::weights(300, 256, |role| match role {
        Role::Layer(_, LayerRole::Value) => Dtype::Q6K,
        _ => Dtype::Q4K,
    });
    let notes = report(&mixed, Type::F16, |_| true);
    let formats: Vec<&str> = notes.iter().map(|note| note.format.as_str()).collect();
    assert_eq!(formats, ["Q4_K", "Q6_K"]);
}

#[test]
fn report_names_rounded_scales() {
    let folder = goldens::fixtures().join("goldens-mlx/llama__affine4_g32");
    let source = goldens::source(&folder).unwrap();
    let cases = [
        (Type::BF16, "unchanged"),
        (Type::F32, "unchanged, scales in f32"),
    ];
    for (dtype, kept) in cases {
        assert_eq!(report(&source.weights, dtype, |_| true)[0].stored, kept);
    }
}
