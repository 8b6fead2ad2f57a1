//! The hub's block-scaled 8-bit floats, as DeepSeek-V3 and Qwen's FP8 models are published.

use crate::folder::Folder;
use loquat_spec::{LayerRole, Role};
use loquat_weights::{Blob, Dtype, RawTensor, WeightsError};
use serde_json::json;

const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";

/// The llama golden with one matrix, 64 by 64, in blocks of 32 by 16.
fn quantized(scales_shape: &[usize]) -> Folder {
    let mut folder = Folder::golden("llama");
    folder.config["quantization_config"] =
        json!({"quant_method": "fp8", "weight_block_size": [32, 16]});
    folder.tensors.retain(|tensor| tensor.name != QUERY);
    let add = |folder: &mut Folder, name: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
        let tensor = RawTensor::new(name, dtype, shape.to_vec(), Blob::from_vec(bytes));
        folder.tensors.push(tensor.unwrap());
    };
    // 0x38 is 1, 0x40 is 2: rows alternate.
    let codes = (0..64 * 64).map(|at| if at / 64 % 2 == 0 { 0x38 } else { 0x40 });
    add(
        &mut folder,
        QUERY,
        Dtype::F8E4M3,
        &[64, 64],
        codes.collect(),
    );
    let count: usize = scales_shape.iter().product();
    let scales = (0..count).flat_map(|at| (at as f32 + 0.5).to_le_bytes());
    let name = format!("{QUERY}_scale_inv");
    add(
        &mut folder,
        &name,
        Dtype::F32,
        scales_shape,
        scales.collect(),
    );
    folder
}

#[test]
fn values_use_their_blocks_scale() {
    let weights = quantized(&[2, 4]).open().unwrap().bind().unwrap();
    let matrix = weights.matrix(Role::Layer(0, LayerRole::Query)).unwrap();
    assert_eq!(matrix.format(), "F8_E4M3 g16");
    assert_eq!(matrix.bytes(), 64 * 64 + 2 * 4 * 4);
    let mut row = vec![0.0; 64];
    for index in 0..64 {
        matrix.decode_row(index, &mut row).unwrap();
        for (col, value) in row.iter().enumerate() {
            let scale = (index / 32 * 4 + col / 16) as f32 + 0.5;
            let code = if index % 2 == 0 { 1.0 } else { 2.0 };
            assert_eq!(*value, code * scale, "row {index}, column {col}");
        }
    }
}

#[test]
fn scales_that_fit_no_block_are_refused() {
    // Five blocks cannot cover 64 columns evenly.
    let bound = quantized(&[2, 5]).open().unwrap().bind();
    let Err(WeightsError::Binding(mismatch)) = bound else {
        panic!("bound");
    };
    let names: Vec<&str> = mismatch
        .misshapen
        .iter()
        .map(|(name, ..)| &**name)
        .collect();
    assert_eq!(names, [format!("{QUERY}_scale_inv")]);
}

#[test]
fn eight_bit_floats_without_scales_are_refused() {
    let mut folder = quantized(&[2, 4]);
    folder.tensors.pop();
    let Err(WeightsError::Binding(mismatch)) = folder.open().unwrap().bind() else {
        panic!("bound");
    };
    assert_eq!(mismatch.mistyped, [(QUERY.to_owned(), Dtype::F8E4M3)]);
}
