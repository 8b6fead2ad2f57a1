//! Small files with every type inside.

use loquat_weights::gguf::{Array, Metadata, Value};
use loquat_weights::{Blob, Dtype, RawTensor};

/// Types that GGUF files can hold; safetensors files hold the first sixteen of
/// [`Dtype::ALL`].
const GGUF_DTYPES: [Dtype; 16] = [
    Dtype::F64,
    Dtype::F32,
    Dtype::F16,
    Dtype::BF16,
    Dtype::I64,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
    Dtype::Q4_0,
    Dtype::Q4_1,
    Dtype::Q5_0,
    Dtype::Q5_1,
    Dtype::Q8_0,
    Dtype::Q4K,
    Dtype::Q5K,
    Dtype::Q6K,
];

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
    (metadata.into_iter().collect(), tensors(&GGUF_DTYPES))
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
