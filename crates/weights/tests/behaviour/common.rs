//! Small files with tensors of every type.

use loquat_weights::gguf::{Array, Metadata, Value};
use loquat_weights::{Blob, Dtype, RawTensor};

/// Types that GGUF files can hold; safetensors files hold the first sixteen of
/// [`Dtype::ALL`].
fn gguf_dtypes() -> impl Iterator<Item = Dtype> {
    use Dtype::{BF16, F16, F32, F64, I8, I16, I32, I64};
    let plain = [F64, F32, F16, BF16, I64, I32, I16, I8];
    let quantized = Dtype::ALL.into_iter().filter(|dtype| dtype.block_len() > 1);
    plain.into_iter().chain(quantized)
}

/// One metadata entry and one tensor of every type.
pub fn gguf_content() -> (Metadata, Vec<RawTensor>) {
    let metadata = [
        ("u8", Value::U8(8)),
        ("i8", Value::I8(-8)),
        ("u16", Value::U16(1600)),
        ("i16", Value::I16(-1600)),
        ("general.alignment", Value::U32(64)),
        ("i32", Value::I32(-320_000)),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f32", Value::F32(0.25)),
        ("f64", Value::F64(-0.1)),
        ("bool", Value::Bool(true)),
        ("general.architecture", Value::String("loquat".into())),
        ("empty", Value::String(String::new())),
        ("u8s", Value::Array(Array::U8(vec![1, 2, 3]))),
        ("i8s", Value::Array(Array::I8(vec![-1, 2]))),
        ("u16s", Value::Array(Array::U16(vec![1, 2]))),
        ("i16s", Value::Array(Array::I16(vec![-1, 2]))),
        ("u32s", Value::Array(Array::U32(vec![1, 2]))),
        ("i32s", Value::Array(Array::I32(vec![-1, 2]))),
        ("u64s", Value::Array(Array::U64(vec![1, 2]))),
        ("i64s", Value::Array(Array::I64(vec![-1, 2]))),
        ("f32s", Value::Array(Array::F32(vec![0.5, -2.0]))),
        ("f64s", Value::Array(Array::F64(vec![]))),
        ("bools", Value::Array(Array::Bool(vec![true, false]))),
        (
            "strings",
            Value::Array(Array::String(vec!["▁枇杷".into(), String::new()])),
        ),
    ];
    (
        metadata.into_iter().collect(),
        tensors(&gguf_dtypes().collect::<Vec<_>>()),
    )
}

/// One tensor of every type, a scalar and an empty one.
pub fn safetensors_content() -> Vec<RawTensor> {
    let mut content = tensors(&Dtype::ALL[..16]);
    content.push(tensor("scalar", Dtype::F32, vec![]));
    content.push(tensor("empty", Dtype::F16, vec![0, 4]));
    content
}

fn tensors(dtypes: &[Dtype]) -> Vec<RawTensor> {
    dtypes
        .iter()
        .map(|&dtype| tensor(dtype.name(), dtype, vec![2, dtype.block_len().max(3)]))
        .collect()
}

fn tensor(name: &str, dtype: Dtype, shape: Vec<usize>) -> RawTensor {
    let blocks = shape.iter().product::<usize>() / dtype.block_len();
    let data = (0..blocks * dtype.block_bytes())
        .map(|i| (i * 31 % 251) as u8)
        .collect();
    RawTensor::new(name, dtype, shape, Blob::from_vec(data)).unwrap()
}
