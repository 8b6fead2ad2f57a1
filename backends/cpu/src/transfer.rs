//! A sequence's keys, values and recurrent state as bytes, and back.

use loquat_session::{ModelSource, SequenceId, SessionError};
use loquat_weights::EncodedRow;

use crate::kernels::KvElement;
use crate::kv::Cache;

const MAGIC: &[u8; 8] = b"LOQKV\0\0\x02";
/// Magic, fingerprint, length, checksum.
const HEADER: usize = 8 + 8 + 8 + 8;

pub fn export<T: KvElement>(
    cache: &Cache<T>,
    sequence: SequenceId,
    fingerprint: u64,
) -> Result<Vec<u8>, SessionError> {
    let len = cache.len(sequence)?;
    let mut bytes = Vec::with_capacity(HEADER + cache.export_len(len).unwrap_or(0));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&fingerprint.to_le_bytes());
    bytes.extend_from_slice(&(len as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    cache.export_tokens(sequence, &mut bytes)?;
    let checksum = fnv1a(&bytes[HEADER..]);
    bytes[24..HEADER].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

pub fn import<T: KvElement>(
    cache: &mut Cache<T>,
    bytes: &[u8],
    fingerprint: u64,
    max_context: usize,
) -> Result<SequenceId, SessionError> {
    let refuse = |why: &str| Err(SessionError::BadImport(why.to_owned()));
    let Some((header, data)) = bytes.split_at_checked(HEADER) else {
        return refuse("it is shorter than its header");
    };
    let number = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    if header[..8] != *MAGIC {
        return refuse("it does not open with the mark of an exported sequence");
    }
    if number(8) != fingerprint {
        return refuse("it comes from another model or another KV format");
    }
    let expected = usize::try_from(number(16)).ok();
    let expected = expected.filter(|len| cache.export_len(*len) == Some(data.len()));
    let Some(len) = expected else {
        return refuse("its size does not match its length field");
    };
    if len > max_context {
        return Err(SessionError::ContextExceeded {
            wanted: len,
            max_context,
        });
    }
    if number(24) != fnv1a(data) {
        return refuse("its checksum does not match: the bytes were damaged");
    }
    cache.import_tokens(len, data)
}

/// Tells models and KV formats apart: the spec, the format, all vectors, and each matrix's first
/// bytes, so that a fine-tune of the same shape counts as another model.
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

/// Damage detection, not security: whoever can forge an export owns the process already.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}
