//! Towers of `mmproj` files with quantized matrices are those with the values that they hold.

use std::path::Path;
use std::sync::Arc;

use half::f16;
use loquat_cpu::CpuBackend;
use loquat_session::conformance::max_difference;
use loquat_session::{Backend, ModelSource, Precision, SessionOptions};
use loquat_testkit::vision;
use loquat_weights::gguf::{Gguf, write_gguf};
use loquat_weights::{Blob, Checkpoint, Dtype, MmprojChoice, RawTensor, decode};

/// Values of a block.
const BLOCK: usize = 32;

/// A row's bytes in this format.
fn encode(dtype: Dtype, row: &[f32]) -> Vec<u8> {
    let scale = |largest: f32, most: f32| f16::from_f32(largest / most);
    match dtype {
        Dtype::F32 => row.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::F16 => row
            .iter()
            .flat_map(|x| f16::from_f32(*x).to_le_bytes())
            .collect(),
        Dtype::Q8_0 => {
            let blocks = row.chunks(BLOCK).flat_map(|block| {
                let largest = block.iter().fold(0f32, |most, x| most.max(x.abs()));
                let scale = scale(largest, 127.0);
                let codes = block
                    .iter()
                    .map(|x| (x / scale.to_f32()).round() as i8 as u8);
                scale
                    .to_le_bytes()
                    .into_iter()
                    .chain(codes.collect::<Vec<_>>())
            });
            blocks.collect()
        }
        Dtype::Q4_0 => {
            let blocks = row.chunks(BLOCK).flat_map(|block| {
                let largest = block
                    .iter()
                    .fold(0f32, |most, x| if x.abs() > most.abs() { *x } else { most });
                let scale = scale(largest, -8.0);
                let code = |x: f32| (x / scale.to_f32() + 8.5).clamp(0.0, 15.0) as u8;
                let (low, high) = block.split_at(BLOCK / 2);
                let codes = low
                    .iter()
                    .zip(high)
                    .map(|(low, high)| code(*low) | code(*high) << 4);
                scale
                    .to_le_bytes()
                    .into_iter()
                    .chain(codes.collect::<Vec<_>>())
            });
            blocks.collect()
        }
        other => panic!("{other:?}"),
    }
}

/// The tensor's matrices in another format, if it has any that fit its blocks.
fn converted(tensor: &RawTensor, dtype: Dtype) -> RawTensor {
    let is_matrix = tensor.shape.len() == 2 && tensor.name.ends_with(".weight");
    if !is_matrix || tensor.name.contains("position") || !tensor.cols().is_multiple_of(BLOCK) {
        return tensor.clone();
    }
    let bytes = (0..tensor.shape[0]).flat_map(|row| {
        let mut values = vec![0.0; tensor.cols()];
        let row = tensor.row(row).unwrap();
        decode::decode_row(tensor.dtype, row, &mut values).unwrap();
        encode(dtype, &values)
    });
    let data = Blob::from_vec(bytes.collect());
    RawTensor::new(&tensor.name, dtype, tensor.shape.clone(), data).unwrap()
}

fn open(folder: &Path, family: &str, tensors: &[RawTensor], metadata: &Gguf) -> ModelSource {
    let tower = folder.join("mmproj.gguf");
    std::fs::write(&tower, write_gguf(metadata.metadata(), tensors).unwrap()).unwrap();
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/testkit");
    let model = kit.join(format!("goldens-vision-gguf/{family}/{family}.gguf"));
    let checkpoint = Checkpoint::open_with(&model, MmprojChoice::At(&tower)).unwrap();
    ModelSource {
        weights: Arc::new(checkpoint.bind().unwrap()),
        paths: checkpoint.paths.clone(),
        spec: Arc::new(checkpoint.spec),
    }
}

/// The features of a picture.
fn features(source: &ModelSource, precision: Precision) -> Vec<f32> {
    let options = SessionOptions {
        precision,
        media_positions: Some(256),
        ..SessionOptions::default()
    };
    let mut session = CpuBackend::AUTO
        .open(source.clone(), &options, &mut |_| {})
        .unwrap();
    let media = vision::media(&source.spec).swap_remove(0);
    let handle = session.encode(&media).unwrap();
    session.media_features(handle.id).unwrap()
}

#[test]
fn quantized_towers_are_their_values() {
    let kit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/testkit");
    let folder = tempfile::tempdir().unwrap();
    for family in ["gemma3", "llava", "pixtral", "qwen2_5_vl", "qwen3_vl"] {
        let tower = kit.join(format!("goldens-vision-gguf/{family}/mmproj-{family}.gguf"));
        let tower = Gguf::open(&tower).unwrap();
        for dtype in [Dtype::F16, Dtype::Q8_0, Dtype::Q4_0] {
            let all = tower.tensors().iter();
            let quantized: Vec<RawTensor> = all.map(|tensor| converted(tensor, dtype)).collect();
            let count = quantized.iter().filter(|tensor| tensor.dtype == dtype);
            assert!(count.count() > 4, "{family} {dtype:?}");
            let all = quantized.iter();
            let values: Vec<RawTensor> = all.map(|tensor| converted(tensor, Dtype::F32)).collect();
            let found = open(folder.path(), family, &quantized, &tower);
            let reference = features(&found, Precision::Reference);
            let fast = features(&found, Precision::Fast);
            let held = open(folder.path(), family, &values, &tower);
            let expected = features(&held, Precision::Reference);
            assert_eq!(reference, expected, "{family} {dtype:?}");
            // Activations are rounded to 8 bits; the largest feature is the measure.
            let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            let difference = max_difference(&fast, &expected) / largest;
            assert!(difference < 0.05, "{family} {dtype:?}: {difference}");
        }
    }
}
