//! The format of a block's file.
//!
//! A header of little-endian numbers (format, fingerprint of the model, tokens, bytes, the speed at
//! which the model computes prompts, checksum), the block's key, then its bytes. The checksum covers
//! everything else.

use std::io;

use crate::BlockKey;
use crate::checksum::{Checksum, checksum};

const MAGIC: [u8; 8] = *b"LOQBLK\0\x01";
/// Magic, model, tokens, length, speed, key; the checksum follows.
const CHECKED: usize = 8 + 4 * 8 + 32;
pub const HEADER: usize = CHECKED + 8;

/// What a file says about its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    pub key: BlockKey,
    pub model: u64,
    pub tokens: u64,
    pub bytes: u64,
    /// Prompt tokens per second when it was written; 0 if not measured.
    pub prompt_speed: u64,
}

/// A header whose checksum is being computed.
pub struct HeaderEncoding {
    header: [u8; HEADER],
    contents: Checksum,
}

impl HeaderEncoding {
    /// Adds a piece of the contents, as long as a multiple of [`GROUP`](crate::checksum::GROUP) unless
    /// it is the last one.
    pub fn add(&mut self, piece: &[u8]) {
        self.contents.add(piece);
    }

    /// With the checksum of the header and of all pieces.
    pub fn finish(mut self) -> [u8; HEADER] {
        let sum = self.contents.finish();
        self.header[CHECKED..].copy_from_slice(&sum.to_le_bytes());
        self.header
    }
}

impl BlockHeader {
    /// To be followed by the contents.
    pub fn begin(&self) -> HeaderEncoding {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        let numbers = [self.model, self.tokens, self.bytes, self.prompt_speed];
        for (place, number) in header[8..40].as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
            *place = number.to_le_bytes();
        }
        header[40..CHECKED].copy_from_slice(self.key.bytes());
        HeaderEncoding {
            contents: Checksum::after(checksum(&[&header[..CHECKED]])),
            header,
        }
    }

    /// Reads the start of a file of `len` bytes, which must be that of the block `key`.
    pub fn decode(header: &[u8; HEADER], key: &BlockKey, len: u64) -> Result<Self, Unusable> {
        if header[..6] != MAGIC[..6] {
            return Err(Unusable::Damaged("it does not start as a block does"));
        }
        match header[7] {
            version if version == MAGIC[7] => {}
            // Another version may need it.
            version if version > MAGIC[7] => return Err(Unusable::Newer),
            _ => return Err(Unusable::Damaged("it has an old format")),
        }
        if header[40..CHECKED] != *key.bytes() {
            return Err(Unusable::Damaged("it is another block"));
        }
        let number = |index: usize| {
            let number = header[8 + 8 * index..].first_chunk::<8>();
            number.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let decoded = Self {
            key: *key,
            model: number(0),
            tokens: number(1),
            bytes: number(2),
            prompt_speed: number(3),
        };
        if decoded.bytes.checked_add(HEADER as u64) != Some(len) {
            return Err(Unusable::Damaged("its length does not match its header"));
        }
        Ok(decoded)
    }

    /// Whether the header and the contents are undamaged.
    pub fn verify(header: &[u8; HEADER], contents: &[u8]) -> Result<(), Unusable> {
        let sum = checksum(&[&header[..CHECKED], contents]);
        if header[CHECKED..] == sum.to_le_bytes() {
            return Ok(());
        }
        Err(Unusable::Damaged("its checksum does not match"))
    }
}

/// Why a file is not used.
#[derive(Debug)]
pub enum Unusable {
    /// It is removed.
    Damaged(&'static str),
    /// It belongs to a later version of the program, and stays.
    Newer,
    /// It is gone, or cannot be read.
    Unreadable(io::Error),
}
