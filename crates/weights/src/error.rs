//! Errors of checkpoint files.

use std::path::PathBuf;

use crate::{Dtype, FileChange};

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error("cannot read {path}: {source}", path = path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} changed while it was in use: {change}", path = path.display())]
    FileChanged { path: PathBuf, change: FileChange },
    #[error("cannot write {path}: {source}", path = path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} is not a usable GGUF file: {fault}", path = path.display())]
    Gguf { path: PathBuf, fault: GgufFault },
    #[error("{path} is not a usable safetensors file: {fault}", path = path.display())]
    Safetensors {
        path: PathBuf,
        fault: SafetensorsFault,
    },
    #[error("{path} is not a usable safetensors index: {fault}", path = path.display())]
    Index { path: PathBuf, fault: IndexFault },
    #[error("tensor `{tensor}`: {bytes} bytes cannot be {dtype} of shape {shape:?}")]
    TensorBytes {
        tensor: String,
        dtype: Dtype,
        shape: Vec<usize>,
        bytes: usize,
    },
    #[error("`{item}` cannot be written to a {format} file: {why}")]
    Unwritable {
        item: String,
        format: &'static str,
        why: &'static str,
    },
    #[error("cannot decode: {0}")]
    Decode(#[from] DecodeFault),
    #[error("row {row} is out of range: the matrix has {rows} rows")]
    RowOutOfRange { row: usize, rows: usize },
    #[error("{path} is not a model: {why}", path = path.display())]
    NotAModel { path: PathBuf, why: String },
    #[error("{path}: {source}", path = path.display())]
    Spec {
        path: PathBuf,
        source: loquat_spec::SpecError,
    },
    #[error(transparent)]
    Config(#[from] loquat_spec::SpecError),
    #[error("`{field}` is {found}, but must be {expected}")]
    Quantization {
        field: String,
        found: String,
        expected: String,
    },
    #[error("the adapter {path} cannot be used: {fault}", path = path.display())]
    Adapter {
        path: PathBuf,
        fault: crate::AdapterFault,
    },
    #[error("`{tensor}` is {dtype} of shape {shape:?}, but must have {expected}")]
    MmprojTensor {
        tensor: String,
        dtype: Dtype,
        shape: Vec<usize>,
        expected: &'static str,
    },
    #[error(
        "{path} cannot be the vision tower of {model}: {source}",
        path = path.display(), model = model.display()
    )]
    Mmproj {
        path: PathBuf,
        model: PathBuf,
        source: Box<WeightsError>,
    },
    #[error("the checkpoint does not fit its config: {0}")]
    Binding(crate::Mismatch),
}

/// What is wrong inside a GGUF file. Offsets are bytes from the file's start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GgufFault {
    #[error("it starts with the bytes {found:02x?}, not with `GGUF`")]
    Magic { found: [u8; 4] },
    #[error("it is big-endian; convert it to little-endian")]
    BigEndian,
    #[error("it has version {version}; versions 2 and 3 are supported")]
    Version { version: u32 },
    #[error("`{field}` at byte {offset} needs {needs} more bytes, but the file has {left}")]
    Truncated {
        field: String,
        offset: usize,
        needs: u64,
        left: usize,
    },
    #[error(
        "`{field}` at byte {offset} counts {count} items, but the rest of the file holds at most {max}"
    )]
    Count {
        field: String,
        offset: usize,
        count: u64,
        max: usize,
    },
    #[error("`{field}` at byte {offset} is not UTF-8")]
    Utf8 { field: String, offset: usize },
    #[error("metadata key `{key}` at byte {offset} appears twice")]
    DuplicateKey { key: String, offset: usize },
    #[error("metadata key `{key}` at byte {offset} has the unknown value type {code}")]
    ValueType {
        key: String,
        offset: usize,
        code: u32,
    },
    #[error("metadata key `{key}` at byte {offset} is an array of arrays, which is not supported")]
    NestedArray { key: String, offset: usize },
    #[error("metadata key `{key}` at byte {offset} has the boolean {byte}; use 0 or 1")]
    Bool {
        key: String,
        offset: usize,
        byte: u8,
    },
    #[error("`general.alignment` is {found}, but must be a U32 power of two up to {max}")]
    Alignment { found: String, max: u32 },
    #[error("tensor `{tensor}` at byte {offset} appears twice")]
    DuplicateTensor { tensor: String, offset: usize },
    #[error("tensor `{tensor}` at byte {offset} has {rank} dimensions; at most 4 are supported")]
    Rank {
        tensor: String,
        offset: usize,
        rank: u32,
    },
    #[error("tensor `{tensor}` at byte {offset}: dimension {axis} is 0")]
    ZeroDimension {
        tensor: String,
        offset: usize,
        axis: usize,
    },
    #[error(
        "tensor `{tensor}` at byte {offset} has the type {name} ({code}), which is not supported"
    )]
    TensorType {
        tensor: String,
        offset: usize,
        code: u32,
        /// ggml's name for the code, or `unknown`.
        name: &'static str,
    },
    #[error("tensor `{tensor}` at byte {offset}: the size of its shape {shape:?} overflows")]
    Overflow {
        tensor: String,
        offset: usize,
        shape: Vec<u64>,
    },
    #[error("tensor `{tensor}`: rows of {cols} values are not whole blocks of {dtype}")]
    PartialBlock {
        tensor: String,
        cols: usize,
        dtype: Dtype,
    },
    #[error(
        "tensor `{tensor}`: data offset {start} is not a multiple of the alignment {alignment}"
    )]
    Misaligned {
        tensor: String,
        start: u64,
        alignment: u32,
    },
    #[error(
        "tensor `{tensor}`: its {len} bytes at data offset {start} end past the file's {file_len} bytes"
    )]
    OutOfFile {
        tensor: String,
        start: u64,
        len: usize,
        file_len: usize,
    },
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap { first: String, second: String },
}

/// What is wrong inside a safetensors file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SafetensorsFault {
    #[error("its {file_len} bytes are too few for the 8-byte header length")]
    NoHeader { file_len: usize },
    #[error("its header length is {len}, but this file allows at most {max}")]
    HeaderLength { len: u64, max: usize },
    #[error("its header is invalid: {why}")]
    Header { why: String },
    #[error("tensor `{tensor}` has the type {dtype}, which is not supported")]
    TensorType { tensor: String, dtype: String },
    #[error("tensor `{tensor}`: the size of its shape {shape:?} overflows")]
    Overflow { tensor: String, shape: Vec<usize> },
    #[error(
        "tensor `{tensor}`: data offsets {start}..{end} do not span the {needs} bytes of its shape"
    )]
    Span {
        tensor: String,
        start: usize,
        end: usize,
        needs: usize,
    },
    #[error(
        "tensor `{tensor}`: data offset {start} leaves a gap or an overlap; expected {expected}"
    )]
    Offset {
        tensor: String,
        start: usize,
        expected: usize,
    },
    #[error("its header describes {described} bytes of data, but {present} follow")]
    DataLength { described: usize, present: usize },
}

/// What is wrong with a `model.safetensors.index.json` or its shards.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum IndexFault {
    #[error("{why}")]
    Json { why: String },
    #[error("its `weight_map` is empty")]
    Empty,
    #[error("shard `{shard}` is not a plain file name")]
    ShardName { shard: String },
    #[error("shard `{shard}` is missing in the same folder")]
    MissingShard { shard: String },
    #[error("tensor `{tensor}` is not in the shard `{shard}` that the index names")]
    MissingTensor { tensor: String, shard: String },
}

/// Why bytes cannot be decoded to `f32`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeFault {
    #[error("{dtype} has no `f32` decoding")]
    Dtype { dtype: Dtype },
    #[error("{cols} values are not whole blocks of {block}")]
    PartialBlock { cols: usize, block: usize },
    #[error("`{what}` has {found} bytes, but must have {expected}")]
    Length {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    #[error("affine quantization of {bits} bits is not supported; 2, 3, 4, 5, 6 and 8 are")]
    Bits { bits: u8 },
    #[error("{cols} codes of {bits} bits do not fill whole 32-bit words")]
    PartialWord { cols: usize, bits: u8 },
    #[error("affine groups of {group} values are not supported; 32, 64 and 128 are")]
    Group { group: usize },
    #[error("{mode} scales of type {dtype} are not supported")]
    ScaleType { mode: &'static str, dtype: Dtype },
    #[error("{mode} quantization {rule}")]
    Biases {
        mode: &'static str,
        rule: &'static str,
    },
}
