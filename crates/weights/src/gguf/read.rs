//! The GGUF parser.

use std::collections::HashSet;
use std::ops::Range;

use super::cursor::Cursor;
use super::{Array, Gguf, MAGIC, Metadata, Value, alignment};
use crate::tensor::byte_len;
use crate::{Blob, Dtype, GgufFault, RawTensor};

/// A key's length, a value's type and one byte of value.
const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;
/// A name's length, a rank, a type and an offset.
const MIN_TENSOR_BYTES: usize = 8 + 4 + 4 + 8;
const MAX_RANK: u32 = 4;

const STRING_CODE: u32 = 8;
const ARRAY_CODE: u32 = 9;

pub(super) fn file(blob: &Blob) -> Result<Gguf, GgufFault> {
    let mut cursor = Cursor::new(blob);
    let found = cursor.array("magic")?;
    if found != MAGIC {
        return Err(GgufFault::Magic { found });
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => {}
        // The version fits the low byte unless the byte order is reversed.
        _ if version != 0 && version.trailing_zeros() >= 16 => return Err(GgufFault::BigEndian),
        _ => return Err(GgufFault::Version { version }),
    }
    let tensor_count = cursor.count(MIN_TENSOR_BYTES, "tensor count")?;
    let entry_count = cursor.count(MIN_ENTRY_BYTES, "metadata count")?;
    let metadata = metadata(&mut cursor, entry_count)?;
    let alignment = alignment(&metadata)?;
    let records = records(&mut cursor, tensor_count)?;
    let tensors = tensor_views(blob, records, cursor.at(), alignment)?;
    Ok(Gguf { metadata, tensors })
}

fn metadata(cursor: &mut Cursor, count: usize) -> Result<Metadata, GgufFault> {
    let mut metadata = Metadata::default();
    for _ in 0..count {
        let offset = cursor.at();
        let key = cursor.string("metadata key")?;
        let value = value(cursor, &key)?;
        if metadata.get(&key).is_some() {
            return Err(GgufFault::DuplicateKey { key, offset });
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn value(cursor: &mut Cursor, key: &str) -> Result<Value, GgufFault> {
    let offset = cursor.at();
    Ok(match cursor.u32(key)? {
        0 => Value::U8(u8::from_le_bytes(cursor.array(key)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(key)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(key)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(key)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(key)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(key)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        7 => {
            let offset = cursor.at();
            let [byte] = cursor.array(key)?;
            Value::Bool(boolean(byte, key, offset)?)
        }
        STRING_CODE => Value::String(cursor.string(key)?),
        ARRAY_CODE => Value::Array(array(cursor, key)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(key)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        code => {
            return Err(GgufFault::ValueType {
                key: key.to_owned(),
                offset,
                code,
            });
        }
    })
}

fn array(cursor: &mut Cursor, key: &str) -> Result<Array, GgufFault> {
    let offset = cursor.at();
    Ok(match cursor.u32(key)? {
        0 => Array::U8(numbers(cursor, key, u8::from_le_bytes)?),
        1 => Array::I8(numbers(cursor, key, i8::from_le_bytes)?),
        2 => Array::U16(numbers(cursor, key, u16::from_le_bytes)?),
        3 => Array::I16(numbers(cursor, key, i16::from_le_bytes)?),
        4 => Array::U32(numbers(cursor, key, u32::from_le_bytes)?),
        5 => Array::I32(numbers(cursor, key, i32::from_le_bytes)?),
        6 => Array::F32(numbers(cursor, key, f32::from_le_bytes)?),
        7 => Array::Bool(booleans(cursor, key)?),
        STRING_CODE => Array::String(strings(cursor, key)?),
        ARRAY_CODE => {
            return Err(GgufFault::NestedArray {
                key: key.to_owned(),
                offset,
            });
        }
        10 => Array::U64(numbers(cursor, key, u64::from_le_bytes)?),
        11 => Array::I64(numbers(cursor, key, i64::from_le_bytes)?),
        12 => Array::F64(numbers(cursor, key, f64::from_le_bytes)?),
        code => {
            return Err(GgufFault::ValueType {
                key: key.to_owned(),
                offset,
                code,
            });
        }
    })
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor,
    key: &str,
    from_le_bytes: fn([u8; N]) -> T,
) -> Result<Vec<T>, GgufFault> {
    let count = cursor.count(N, key)?;
    let bytes = cursor.take((count * N) as u64, key)?;
    let (items, _) = bytes.as_chunks::<N>();
    Ok(items.iter().map(|&item| from_le_bytes(item)).collect())
}

fn booleans(cursor: &mut Cursor, key: &str) -> Result<Vec<bool>, GgufFault> {
    let count = cursor.count(1, key)?;
    let start = cursor.at();
    let bytes = cursor.take(count as u64, key)?;
    bytes
        .iter()
        .enumerate()
        .map(|(index, &byte)| boolean(byte, key, start + index))
        .collect()
}

fn boolean(byte: u8, key: &str, offset: usize) -> Result<bool, GgufFault> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(GgufFault::Bool {
            key: key.to_owned(),
            offset,
            byte,
        }),
    }
}

fn strings(cursor: &mut Cursor, key: &str) -> Result<Vec<String>, GgufFault> {
    // Each string is at least its 8-byte length.
    let count = cursor.count(8, key)?;
    (0..count).map(|_| cursor.string(key)).collect()
}

/// One tensor's record in the header.
struct Record {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    len: usize,
    /// From the start of the data section.
    start: u64,
}

fn records(cursor: &mut Cursor, count: usize) -> Result<Vec<Record>, GgufFault> {
    let mut seen = HashSet::new();
    let mut records = Vec::new();
    for _ in 0..count {
        let offset = cursor.at();
        let record = record(cursor)?;
        if !seen.insert(record.name.clone()) {
            return Err(GgufFault::DuplicateTensor {
                tensor: record.name,
                offset,
            });
        }
        records.push(record);
    }
    Ok(records)
}

fn record(cursor: &mut Cursor) -> Result<Record, GgufFault> {
    let tensor = cursor.string("tensor name")?;
    let offset = cursor.at();
    let rank = cursor.u32(&tensor)?;
    if rank > MAX_RANK {
        return Err(GgufFault::Rank {
            tensor,
            offset,
            rank,
        });
    }
    let mut dims = Vec::new();
    for axis in 0..rank as usize {
        let dim_offset = cursor.at();
        let dim = cursor.u64(&tensor)?;
        if dim == 0 {
            return Err(GgufFault::ZeroDimension {
                tensor,
                offset: dim_offset,
                axis,
            });
        }
        dims.push(dim);
    }
    let type_offset = cursor.at();
    let code = cursor.u32(&tensor)?;
    let start = cursor.u64(&tensor)?;
    let Some(dtype) = Dtype::from_ggml(code) else {
        return Err(GgufFault::TensorType {
            tensor,
            offset: type_offset,
            code,
            name: ggml_name(code),
        });
    };
    let (shape, len) = measure(&tensor, dtype, &dims, offset)?;
    Ok(Record {
        name: tensor,
        dtype,
        shape,
        len,
        start,
    })
}

/// The row-major shape and the size in bytes of a tensor whose file lists its
/// dimensions innermost first.
fn measure(
    tensor: &str,
    dtype: Dtype,
    dims: &[u64],
    offset: usize,
) -> Result<(Vec<usize>, usize), GgufFault> {
    let overflow = || GgufFault::Overflow {
        tensor: tensor.to_owned(),
        offset,
        shape: dims.iter().rev().copied().collect(),
    };
    let shape = dims
        .iter()
        .rev()
        .map(|&dim| usize::try_from(dim).map_err(|_| overflow()))
        .collect::<Result<Vec<usize>, _>>()?;
    let cols = shape.last().copied().unwrap_or(1);
    if !cols.is_multiple_of(dtype.block_len()) {
        return Err(GgufFault::PartialBlock {
            tensor: tensor.to_owned(),
            cols,
            dtype,
        });
    }
    let len = byte_len(dtype, &shape).ok_or_else(overflow)?;
    Ok((shape, len))
}

/// Turns records into views of the data section, which begins at the first
/// multiple of `alignment` from `header_end`.
fn tensor_views(
    blob: &Blob,
    records: Vec<Record>,
    header_end: usize,
    alignment: u32,
) -> Result<Vec<RawTensor>, GgufFault> {
    let mut ranges: Vec<(Range<usize>, usize)> = Vec::new();
    let mut tensors = Vec::new();
    let base = header_end.checked_next_multiple_of(alignment as usize);
    for record in records {
        if !record.start.is_multiple_of(u64::from(alignment)) {
            return Err(GgufFault::Misaligned {
                tensor: record.name,
                start: record.start,
                alignment,
            });
        }
        let view = base.and_then(|base| {
            let start = base.checked_add(usize::try_from(record.start).ok()?)?;
            let range = start..start.checked_add(record.len)?;
            Some((blob.slice(range.clone())?, range))
        });
        let Some((data, range)) = view else {
            return Err(GgufFault::OutOfFile {
                tensor: record.name,
                start: record.start,
                len: record.len,
                file_len: blob.len(),
            });
        };
        ranges.push((range, tensors.len()));
        tensors.push(RawTensor {
            name: record.name,
            dtype: record.dtype,
            shape: record.shape,
            data,
        });
    }
    refuse_overlap(ranges, &tensors)?;
    Ok(tensors)
}

fn refuse_overlap(
    mut ranges: Vec<(Range<usize>, usize)>,
    tensors: &[RawTensor],
) -> Result<(), GgufFault> {
    ranges.sort_unstable_by_key(|(range, index)| (range.start, *index));
    for pair in ranges.windows(2) {
        if let [(before, first), (after, second)] = pair
            && before.end > after.start
        {
            return Err(GgufFault::Overlap {
                first: tensors[*first].name.clone(),
                second: tensors[*second].name.clone(),
            });
        }
    }
    Ok(())
}

impl Dtype {
    fn from_ggml(code: u32) -> Option<Dtype> {
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.ggml_code() == Some(code))
    }

    /// The type's number in GGUF files, if it has one.
    pub(super) fn ggml_code(self) -> Option<u32> {
        Some(match self {
            Dtype::F32 => 0,
            Dtype::F16 => 1,
            Dtype::Q4_0 => 2,
            Dtype::Q4_1 => 3,
            Dtype::Q5_0 => 6,
            Dtype::Q5_1 => 7,
            Dtype::Q8_0 => 8,
            Dtype::Q4K => 12,
            Dtype::Q5K => 13,
            Dtype::Q6K => 14,
            Dtype::Mxfp4 => 39,
            Dtype::I8 => 24,
            Dtype::I16 => 25,
            Dtype::I32 => 26,
            Dtype::I64 => 27,
            Dtype::F64 => 28,
            Dtype::BF16 => 30,
            Dtype::F8E4M3
            | Dtype::F8E5M2
            | Dtype::F8E8M0
            | Dtype::U64
            | Dtype::U32
            | Dtype::U16
            | Dtype::U8
            | Dtype::Bool => return None,
        })
    }
}

/// ggml's names for unsupported tensor types, so that errors distinguish an exotic quantization
/// from a damaged file.
fn ggml_name(code: u32) -> &'static str {
    match code {
        9 => "Q8_1",
        10 => "Q2_K",
        11 => "Q3_K",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => "unknown",
    }
}
