//! A sequence as bytes, and back.

use loquat_session::SessionError;

use super::model::History;

const MAGIC: &[u8; 8] = b"loqfake1";

pub fn export(history: &History) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(history.digest(history.len()).to_le_bytes());
    bytes.extend(
        history
            .tokens()
            .iter()
            .flat_map(|token| token.to_le_bytes()),
    );
    bytes
}

/// The tokens of an export over the same vocabulary.
pub fn import(bytes: &[u8], vocab_size: usize) -> Result<Vec<u32>, SessionError> {
    let bad = |why: &str| SessionError::BadImport(why.into());
    let body = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| bad("it does not start like an export of the fake"))?;
    let (digest, body) = body
        .split_first_chunk::<8>()
        .ok_or_else(|| bad("it is cut short"))?;
    let (words, rest) = body.as_chunks::<4>();
    let tokens: Vec<u32> = words.iter().map(|w| u32::from_le_bytes(*w)).collect();
    let mut history = History::default();
    history.append(&tokens);
    if !rest.is_empty() || u64::from_le_bytes(*digest) != history.digest(tokens.len()) {
        return Err(bad("it is damaged"));
    }
    if tokens.iter().any(|token| *token as usize >= vocab_size) {
        return Err(bad("it is from another vocabulary"));
    }
    Ok(tokens)
}
