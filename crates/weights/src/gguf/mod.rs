//! GGUF files, versions 2 and 3, little-endian.
//!
//! A file is a magic number, a version, two counts, the metadata, one record
//! per tensor, padding up to `general.alignment`, and the tensors' data.

mod cursor;
mod read;
mod value;
mod write;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Blob, GgufFault, RawTensor, WeightsError};

pub use value::{Array, Metadata, Value};
pub use write::{GgufLayout, gguf_layout, save_gguf, write_gguf};

const MAGIC: [u8; 4] = *b"GGUF";
const ALIGNMENT_KEY: &str = "general.alignment";
/// The alignment of a file that does not state one.
const DEFAULT_ALIGNMENT: u32 = 32;
/// Far above any page size; a larger value means a damaged file.
const MAX_ALIGNMENT: u32 = 1 << 20;

/// An open GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    metadata: Metadata,
    tensors: Vec<RawTensor>,
}

impl Gguf {
    /// Maps and parses a file. Its pages are read only as tensors are used.
    pub fn open(path: &Path) -> Result<Gguf, WeightsError> {
        Gguf::parse(Blob::map(path)?, path)
    }

    /// Whether the file begins with GGUF's magic number.
    pub fn is_at(path: &Path) -> bool {
        let mut magic = [0; MAGIC.len()];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
        read.is_ok() && magic == MAGIC
    }

    /// Parses a whole file; `path` is named in errors and not opened.
    pub fn parse(blob: Blob, path: &Path) -> Result<Gguf, WeightsError> {
        read::file(&blob).map_err(|fault| WeightsError::Gguf {
            path: path.to_owned(),
            fault,
        })
    }

    /// Builds one from memory, for generated models.
    pub fn from_parts(metadata: Metadata, tensors: Vec<RawTensor>) -> Gguf {
        Gguf { metadata, tensors }
    }

    pub(crate) fn into_parts(self) -> (Metadata, Vec<RawTensor>) {
        (self.metadata, self.tensors)
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the file's order.
    pub fn tensors(&self) -> &[RawTensor] {
        &self.tensors
    }
}

/// The alignment in `metadata`, or the default.
fn alignment(metadata: &Metadata) -> Result<u32, GgufFault> {
    let found = match metadata.get(ALIGNMENT_KEY) {
        None => return Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(value)) if value.is_power_of_two() && value <= MAX_ALIGNMENT => {
            return Ok(value);
        }
        Some(Value::U32(value)) => value.to_string(),
        Some(other) => format!("of type {}", other.type_name()),
    };
    Err(GgufFault::Alignment {
        found,
        max: MAX_ALIGNMENT,
    })
}
