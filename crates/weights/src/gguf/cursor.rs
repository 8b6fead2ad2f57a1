//! A bounds-checked reader over a GGUF header.

use crate::GgufFault;

/// Reads little-endian fields front to back. Every method takes the name of the
/// field it reads, for the error.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, len: u64, field: &str) -> Result<&'a [u8], GgufFault> {
        let end = usize::try_from(len)
            .ok()
            .and_then(|len| self.at.checked_add(len));
        let Some(taken) = end.and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(GgufFault::Truncated {
                field: field.to_owned(),
                offset: self.at,
                needs: len,
                left: self.left(),
            });
        };
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufFault> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, field)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, field: &str) -> Result<u32, GgufFault> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &str) -> Result<u64, GgufFault> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A count of items of at least `item_bytes` bytes each, refused if the rest of the file cannot
    /// hold that many. An accepted count is safe to allocate for.
    pub(super) fn count(&mut self, item_bytes: usize, field: &str) -> Result<usize, GgufFault> {
        let offset = self.at;
        let count = self.u64(field)?;
        let max = self.left() / item_bytes;
        match usize::try_from(count) {
            Ok(count) if count <= max => Ok(count),
            _ => Err(GgufFault::Count {
                field: field.to_owned(),
                offset,
                count,
                max,
            }),
        }
    }

    pub(super) fn string(&mut self, field: &str) -> Result<String, GgufFault> {
        let len = self.u64(field)?;
        let offset = self.at;
        let bytes = self.take(len, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(GgufFault::Utf8 {
                field: field.to_owned(),
                offset: offset + error.valid_up_to(),
            }),
        }
    }
}
