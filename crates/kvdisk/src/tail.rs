//! The record of a tail: what completes a sequence of blocks at one exact length.

/// A tail's record. It is the last of its files to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailRecord {
    /// The files of the tail, named [`part`](crate::BlockKey::part) from 0 on.
    pub parts: u64,
    /// The session's bytes for the tokens after the last block.
    pub rest: Vec<u8>,
}

impl TailRecord {
    /// The contents of its file.
    pub fn encode(&self) -> Vec<u8> {
        let parts = self.parts.to_le_bytes();
        [&parts[..], &self.rest].concat()
    }

    pub(crate) fn decode(contents: &[u8]) -> Option<Self> {
        let (parts, rest) = contents.split_first_chunk()?;
        Some(Self {
            parts: u64::from_le_bytes(*parts),
            rest: rest.to_vec(),
        })
    }
}
