//! Safetensors files and sharded checkpoints.
//!
//! A file is the length of a JSON header, the header, and the tensors' data
//! back to back. The header is read here rather than by the `safetensors`
//! crate, which keeps the last of two tensors with the same name, does not name
//! the invalid tensor, and adds a hostile end offset to the header's length
//! unchecked. That crate's record types and writer are used.

mod index;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::Path;

use ::safetensors::SafeTensorError;
use ::safetensors::tensor::{Dtype as FileDtype, TensorInfo, View, serialize, serialize_to_file};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

use crate::tensor::byte_len;
use crate::{Blob, Dtype, RawTensor, SafetensorsFault, TensorInfo as Info, WeightsError};

pub use index::open_index;

/// The format's own limit on its header.
const MAX_HEADER_BYTES: usize = 100_000_000;
const LENGTH_BYTES: usize = 8;
const FILE_METADATA_KEY: &str = "__metadata__";

/// Maps and parses a file. Its pages are read only as tensors are used.
pub fn open(path: &Path) -> Result<Vec<RawTensor>, WeightsError> {
    parse(Blob::map(path)?, path)
}

/// All tensors of a whole file, in the order of their data; `path` is named in
/// errors and not opened.
pub fn parse(blob: Blob, path: &Path) -> Result<Vec<RawTensor>, WeightsError> {
    read(&blob).map_err(|fault| WeightsError::Safetensors {
        path: path.to_owned(),
        fault,
    })
}

/// A whole file, for tests and tools. Tensors are in the format's order.
pub fn write_safetensors(tensors: &[RawTensor]) -> Result<Vec<u8>, WeightsError> {
    serialize(views(tensors)?, None).map_err(|_| header_too_long())
}

/// The same, written to a new file at `path`.
pub fn save_safetensors(path: &Path, tensors: &[RawTensor]) -> Result<(), WeightsError> {
    match serialize_to_file(views(tensors)?, None, path) {
        Ok(()) => Ok(()),
        Err(SafeTensorError::IoError(source)) => Err(WeightsError::Write {
            path: path.to_owned(),
            source,
        }),
        Err(_) => Err(header_too_long()),
    }
}

/// A file's header, for writers that stream the tensors' data, which follows in the given order.
/// `format` is the file's `format` metadata.
pub fn safetensors_header(tensors: &[Info], format: &str) -> Result<Vec<u8>, WeightsError> {
    let mut fields = serde_json::Map::new();
    fields.insert(
        FILE_METADATA_KEY.to_owned(),
        serde_json::json!({ "format": format }),
    );
    let mut start = 0;
    for tensor in tensors {
        let dtype = (to_file(tensor.dtype))
            .ok_or_else(|| refuse(&tensor.name, "its type exists only in GGUF"))?;
        let end = start + tensor.bytes()?;
        let record = serde_json::json!({
            "dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end],
        });
        if fields.insert(tensor.name.clone(), record).is_some() {
            return Err(refuse(&tensor.name, "another tensor has its name"));
        }
        start = end;
    }
    let mut json = serde_json::Value::Object(fields).to_string().into_bytes();
    // The data begins at a multiple of eight; padding is spaces.
    json.resize(json.len().next_multiple_of(LENGTH_BYTES), b' ');
    if json.len() > MAX_HEADER_BYTES {
        return Err(header_too_long());
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend(json);
    Ok(header)
}

/// The input of the format's own writer; duplicate names and unsupported types are errors.
fn views(tensors: &[RawTensor]) -> Result<Vec<(&str, FileView<'_>)>, WeightsError> {
    let mut names = HashSet::new();
    let mut views = Vec::new();
    for tensor in tensors {
        tensor.check_len()?;
        if tensor.name == FILE_METADATA_KEY {
            return Err(refuse(&tensor.name, "the format reserves this name"));
        }
        if !names.insert(&tensor.name) {
            return Err(refuse(&tensor.name, "another tensor has its name"));
        }
        let dtype = (to_file(tensor.dtype))
            .ok_or_else(|| refuse(&tensor.name, "its type exists only in GGUF"))?;
        views.push((tensor.name.as_str(), FileView { tensor, dtype }));
    }
    Ok(views)
}

fn header_too_long() -> WeightsError {
    refuse(FILE_METADATA_KEY, "the header is too long")
}

fn refuse(item: &str, why: &'static str) -> WeightsError {
    WeightsError::Unwritable {
        item: item.to_owned(),
        format: "safetensors",
        why,
    }
}

fn read(blob: &Blob) -> Result<Vec<RawTensor>, SafetensorsFault> {
    let (&length, rest) =
        blob.split_first_chunk::<LENGTH_BYTES>()
            .ok_or(SafetensorsFault::NoHeader {
                file_len: blob.len(),
            })?;
    let len = u64::from_le_bytes(length);
    let max = rest.len().min(MAX_HEADER_BYTES);
    let header = usize::try_from(len)
        .ok()
        .filter(|&len| len <= max)
        .and_then(|len| rest.get(..len))
        .ok_or(SafetensorsFault::HeaderLength { len, max })?;
    let Header(mut records) =
        serde_json::from_slice(header).map_err(|error| SafetensorsFault::Header {
            why: error.to_string(),
        })?;
    records.sort_by(|(a_name, a), (b_name, b)| {
        (a.data_offsets, a_name).cmp(&(b.data_offsets, b_name))
    });
    tensor_views(blob, LENGTH_BYTES + header.len(), records)
}

/// Turns records into views of the data section, which begins at `base` and
/// which they must cover end to end, in order.
fn tensor_views(
    blob: &Blob,
    base: usize,
    records: Vec<(String, TensorInfo)>,
) -> Result<Vec<RawTensor>, SafetensorsFault> {
    let present = blob.len() - base;
    let mut tensors = Vec::new();
    let mut expected = 0;
    for (name, info) in records {
        let (start, end) = info.data_offsets;
        let Some(dtype) = from_file(info.dtype) else {
            return Err(SafetensorsFault::TensorType {
                tensor: name,
                dtype: info.dtype.to_string(),
            });
        };
        let Some(needs) = byte_len(dtype, &info.shape) else {
            return Err(SafetensorsFault::Overflow {
                tensor: name,
                shape: info.shape,
            });
        };
        if start != expected {
            return Err(SafetensorsFault::Offset {
                tensor: name,
                start,
                expected,
            });
        }
        if end.checked_sub(start) != Some(needs) {
            return Err(SafetensorsFault::Span {
                tensor: name,
                start,
                end,
                needs,
            });
        }
        let data = base
            .checked_add(end)
            .and_then(|end| blob.slice(base + start..end))
            .ok_or(SafetensorsFault::DataLength {
                described: end,
                present,
            })?;
        expected = end;
        tensors.push(RawTensor {
            name,
            dtype,
            shape: info.shape,
            data,
        });
    }
    if expected != present {
        return Err(SafetensorsFault::DataLength {
            described: expected,
            present,
        });
    }
    Ok(tensors)
}

/// The header's tensor records, each name once.
struct Header(Vec<(String, TensorInfo)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut seen = HashSet::new();
        let mut records = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let blame = |error| A::Error::custom(format_args!("`{name}`: {error}"));
            if !seen.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("`{name}` appears twice")));
            }
            if name == FILE_METADATA_KEY {
                // MLX writes null if there is no metadata.
                map.next_value::<Option<HashMap<String, String>>>()
                    .map_err(blame)?;
            } else {
                let info = map.next_value().map_err(blame)?;
                records.push((name, info));
            }
        }
        Ok(Header(records))
    }
}

/// The supported types; the format has more.
const FILE_DTYPES: [(FileDtype, Dtype); 16] = [
    (FileDtype::F64, Dtype::F64),
    (FileDtype::F32, Dtype::F32),
    (FileDtype::F16, Dtype::F16),
    (FileDtype::BF16, Dtype::BF16),
    (FileDtype::F8_E4M3, Dtype::F8E4M3),
    (FileDtype::F8_E5M2, Dtype::F8E5M2),
    (FileDtype::F8_E8M0, Dtype::F8E8M0),
    (FileDtype::I64, Dtype::I64),
    (FileDtype::I32, Dtype::I32),
    (FileDtype::I16, Dtype::I16),
    (FileDtype::I8, Dtype::I8),
    (FileDtype::U64, Dtype::U64),
    (FileDtype::U32, Dtype::U32),
    (FileDtype::U16, Dtype::U16),
    (FileDtype::U8, Dtype::U8),
    (FileDtype::BOOL, Dtype::Bool),
];

fn from_file(dtype: FileDtype) -> Option<Dtype> {
    let pair = FILE_DTYPES.iter().find(|(file, _)| *file == dtype)?;
    Some(pair.1)
}

fn to_file(dtype: Dtype) -> Option<FileDtype> {
    let pair = FILE_DTYPES
        .iter()
        .find(|(_, loquat_dtype)| *loquat_dtype == dtype)?;
    Some(pair.0)
}

struct FileView<'a> {
    tensor: &'a RawTensor,
    dtype: FileDtype,
}

impl View for FileView<'_> {
    fn dtype(&self) -> FileDtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.tensor.data)
    }

    fn data_len(&self) -> usize {
        self.tensor.data.len()
    }
}
