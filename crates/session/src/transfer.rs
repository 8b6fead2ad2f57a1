//! Exported sequences, for backends: the envelope around a sequence's bytes, and the fingerprint
//! of a model.

use loquat_weights::EncodedRow;

use crate::{ModelSource, SessionError};

const MAGIC: &[u8; 8] = b"LOQKV\0\0\x02";
/// Magic, fingerprint, length, checksum.
const HEADER: usize = 8 + 8 + 8 + 8;

/// An export in progress: its bytes are appended, then sealed.
pub struct Envelope {
    bytes: Vec<u8>,
}

impl Envelope {
    /// For a sequence of `len` tokens of the model `fingerprint`, in about `size` bytes.
    pub fn new(fingerprint: u64, len: usize, size: usize) -> Self {
        let mut bytes = Vec::with_capacity(HEADER + size);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&fingerprint.to_le_bytes());
        bytes.extend_from_slice(&(len as u64).to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        Self { bytes }
    }

    /// The sequence's own bytes, to append to.
    pub fn contents(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Writes the checksum and returns the exported bytes.
    pub fn seal(mut self) -> Vec<u8> {
        let checksum = fnv1a(&self.bytes[HEADER..]);
        self.bytes[24..HEADER].copy_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

/// The length and the contents of an exported sequence. It must be undamaged, of the model
/// `fingerprint`, and of the size that `size` returns for its length.
pub fn unseal(
    bytes: &[u8],
    fingerprint: u64,
    max_context: usize,
    size: impl Fn(usize) -> Option<usize>,
) -> Result<(usize, &[u8]), SessionError> {
    let refuse = |why: &str| Err(SessionError::BadImport(why.to_owned()));
    let Some((header, contents)) = bytes.split_at_checked(HEADER) else {
        return refuse("it is shorter than its header");
    };
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    if header[..8] != *MAGIC {
        return refuse("it does not start with the header of an exported sequence");
    }
    if number(8) != fingerprint {
        return refuse("it comes from another model or another KV format");
    }
    let len = usize::try_from(number(16)).ok();
    let Some(len) = len.filter(|len| size(*len) == Some(contents.len())) else {
        return refuse("its size does not match its length field");
    };
    if len > max_context {
        return Err(SessionError::ContextExceeded {
            wanted: len,
            max_context,
        });
    }
    if number(24) != fnv1a(contents) {
        return refuse("its checksum does not match: the bytes were damaged");
    }
    Ok((len, contents))
}

/// Identifies a model and its KV format: a hash of the spec, the format, all vectors, and each
/// matrix's first bytes, so that a fine-tune of the same shape is another model.
pub fn fingerprint(source: &ModelSource, kv_format: &str) -> u64 {
    const SAMPLED: usize = 256;
    let mut sample = format!("{:?} {kv_format}", source.spec).into_bytes();
    for (_, matrix) in source.weights.matrices() {
        sample.extend_from_slice(matrix.format().as_bytes());
        let parts = match matrix.encoded_row(0) {
            Some(EncodedRow::Plain { bytes, .. }) => [bytes, &[], &[]],
            Some(EncodedRow::Mlx {
                codes,
                scales,
                biases,
                ..
            }) => [codes, scales.0, biases.map_or(&[][..], |biases| biases.0)],
            Some(EncodedRow::Fp8 { codes, scales, .. }) => [codes, scales.0, &[]],
            None => [&[][..]; 3],
        };
        for part in parts {
            sample.extend_from_slice(&part[..part.len().min(SAMPLED)]);
        }
    }
    for (_, vector) in source.weights.vectors() {
        sample.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
    }
    fnv1a(&sample)
}

/// Detects damage. It is no protection: who can forge an export controls the process already.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
