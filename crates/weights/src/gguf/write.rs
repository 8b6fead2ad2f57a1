//! The GGUF writer, for tests and tools.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::{Array, MAGIC, Metadata, Value, alignment};
use crate::{RawTensor, TensorInfo, WeightsError};

/// A file's header, for writers that stream the tensors' data.
pub struct GgufLayout {
    /// Everything before the tensors' data, including padding.
    pub header: Vec<u8>,
    /// Where each tensor's data begins, in bytes from the file's start.
    pub starts: Vec<u64>,
    /// Bytes of the whole file.
    pub len: u64,
}

/// The layout of a version 3 file with `tensors` in this order.
pub fn gguf_layout(
    metadata: &Metadata,
    tensors: &[TensorInfo],
) -> Result<GgufLayout, WeightsError> {
    let Header {
        bytes: mut header,
        alignment,
    } = header(metadata, tensors)?;
    header.resize(header.len().next_multiple_of(alignment), 0);
    let mut end = header.len();
    let mut starts = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let start = end.next_multiple_of(alignment);
        starts.push(start as u64);
        end = start + tensor.bytes()?;
    }
    Ok(GgufLayout {
        header,
        starts,
        len: end as u64,
    })
}

/// A whole version 3 file with `tensors` in this order.
pub fn write_gguf(metadata: &Metadata, tensors: &[RawTensor]) -> Result<Vec<u8>, WeightsError> {
    let Header {
        bytes: mut out,
        alignment,
    } = header(metadata, &infos(tensors)?)?;
    for tensor in tensors {
        out.resize(out.len().next_multiple_of(alignment), 0);
        out.extend_from_slice(&tensor.data);
    }
    Ok(out)
}

/// The same, written to a new file at `path`.
pub fn save_gguf(
    path: &Path,
    metadata: &Metadata,
    tensors: &[RawTensor],
) -> Result<(), WeightsError> {
    let header = header(metadata, &infos(tensors)?)?;
    stream(path, &header, tensors).map_err(|source| WeightsError::Write {
        path: path.to_owned(),
        source,
    })
}

fn stream(path: &Path, header: &Header, tensors: &[RawTensor]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&header.bytes)?;
    let mut len = header.bytes.len();
    for tensor in tensors {
        let padding = len.next_multiple_of(header.alignment) - len;
        file.write_all(&vec![0; padding])?;
        file.write_all(&tensor.data)?;
        len += padding + tensor.data.len();
    }
    file.into_inner()?.sync_all()
}

/// Everything before the tensors' data.
struct Header {
    bytes: Vec<u8>,
    alignment: usize,
}

/// The header's tensor records.
fn infos(tensors: &[RawTensor]) -> Result<Vec<TensorInfo>, WeightsError> {
    let checked = tensors.iter().map(|tensor| {
        tensor.check_len()?;
        Ok(tensor.info())
    });
    checked.collect()
}

fn header(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Header, WeightsError> {
    let alignment = alignment(metadata)
        .map_err(|_| refuse(super::ALIGNMENT_KEY, "it is not a valid alignment"))?
        as usize;
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.iter().len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut out, key);
        put_value(&mut out, value);
    }
    let mut names = HashSet::new();
    let mut start = 0usize;
    for tensor in tensors {
        if !names.insert(&tensor.name) {
            return Err(refuse(&tensor.name, "another tensor has its name"));
        }
        put_record(&mut out, tensor, start)?;
        start = (start + tensor.bytes()?).next_multiple_of(alignment);
    }
    Ok(Header {
        bytes: out,
        alignment,
    })
}

fn put_record(out: &mut Vec<u8>, tensor: &TensorInfo, start: usize) -> Result<(), WeightsError> {
    if tensor.shape.len() > 4 || tensor.shape.contains(&0) {
        return Err(refuse(
            &tensor.name,
            "it must have at most 4 dimensions, none of them 0",
        ));
    }
    let code = (tensor.dtype.ggml_code())
        .ok_or_else(|| refuse(&tensor.name, "its type has no GGUF code"))?;
    put_string(out, &tensor.name);
    out.extend((tensor.shape.len() as u32).to_le_bytes());
    for &dim in tensor.shape.iter().rev() {
        out.extend((dim as u64).to_le_bytes());
    }
    out.extend(code.to_le_bytes());
    out.extend((start as u64).to_le_bytes());
    Ok(())
}

fn refuse(item: &str, why: &'static str) -> WeightsError {
    WeightsError::Unwritable {
        item: item.to_owned(),
        format: "GGUF",
        why,
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |code: u32, bytes: &[u8]| {
        out.extend(code.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(v) => put(0, &v.to_le_bytes()),
        Value::I8(v) => put(1, &v.to_le_bytes()),
        Value::U16(v) => put(2, &v.to_le_bytes()),
        Value::I16(v) => put(3, &v.to_le_bytes()),
        Value::U32(v) => put(4, &v.to_le_bytes()),
        Value::I32(v) => put(5, &v.to_le_bytes()),
        Value::F32(v) => put(6, &v.to_le_bytes()),
        Value::Bool(v) => put(7, &[u8::from(*v)]),
        Value::U64(v) => put(10, &v.to_le_bytes()),
        Value::I64(v) => put(11, &v.to_le_bytes()),
        Value::F64(v) => put(12, &v.to_le_bytes()),
        Value::String(v) => {
            put(8, &[]);
            put_string(out, v);
        }
        Value::Array(v) => {
            put(9, &[]);
            put_array(out, v);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    match array {
        Array::U8(v) => put_items(out, 0, v, |v| v.to_le_bytes()),
        Array::I8(v) => put_items(out, 1, v, |v| v.to_le_bytes()),
        Array::U16(v) => put_items(out, 2, v, |v| v.to_le_bytes()),
        Array::I16(v) => put_items(out, 3, v, |v| v.to_le_bytes()),
        Array::U32(v) => put_items(out, 4, v, |v| v.to_le_bytes()),
        Array::I32(v) => put_items(out, 5, v, |v| v.to_le_bytes()),
        Array::F32(v) => put_items(out, 6, v, |v| v.to_le_bytes()),
        Array::Bool(v) => put_items(out, 7, v, |v| [u8::from(*v)]),
        Array::U64(v) => put_items(out, 10, v, |v| v.to_le_bytes()),
        Array::I64(v) => put_items(out, 11, v, |v| v.to_le_bytes()),
        Array::F64(v) => put_items(out, 12, v, |v| v.to_le_bytes()),
        Array::String(v) => {
            put_items(out, 8, v, |_| []);
            v.iter().for_each(|text| put_string(out, text));
        }
    }
}

fn put_items<T, const N: usize>(
    out: &mut Vec<u8>,
    code: u32,
    items: &[T],
    bytes: impl Fn(&T) -> [u8; N],
) {
    out.extend(code.to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    out.extend(items.iter().flat_map(bytes));
}
