//! Incremental detokenization, in whole characters.

use crate::Tokenizer;

/// Options of a [`Detokenizer`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DetokenizerOptions {
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// The tokens continue a text, so a leading space is theirs; otherwise it is the one that
    /// SentencePiece puts before every text, and is dropped.
    pub continues: bool,
}

/// Decodes token by token, holding back a character until all its bytes are there.
///
/// All pushes and [`finish`](Self::finish), joined, equal [`Tokenizer::decode`] of all tokens
/// (unless the tokens continue a text). Each push costs only its own token.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    strip_space: bool,
    /// Special tokens that appear in the text nevertheless.
    shown: Vec<u32>,
    /// An incomplete character: at most three bytes between pushes.
    held: Vec<u8>,
}

impl Detokenizer {
    /// A detokenizer at the start of a text.
    pub fn new(tokenizer: Tokenizer, options: DetokenizerOptions) -> Self {
        Self {
            strip_space: tokenizer.strips_leading_space() && !options.continues,
            skip_special: options.skip_special,
            tokenizer,
            shown: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Shows these special tokens even if `skip_special` is set.
    pub fn showing(mut self, ids: Vec<u32>) -> Self {
        self.shown = ids;
        self
    }

    /// Adds one token. Returns the text it completes, which may be empty.
    pub fn push(&mut self, id: u32) -> String {
        let skip_special = self.skip_special && !self.shown.contains(&id);
        let shown = self.tokenizer.shown(id, skip_special);
        let mut bytes = shown.unwrap_or_default();
        if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.held.extend_from_slice(bytes);
        let whole = self.held.len() - unfinished(&self.held);
        let text = String::from_utf8_lossy(&self.held[..whole]).into_owned();
        self.held.drain(..whole);
        text
    }

    /// Ends the text: bytes of an incomplete character become U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

/// The number of bytes at the end that start a character more bytes could complete.
fn unfinished(bytes: &[u8]) -> usize {
    let Some(last) = bytes.utf8_chunks().last() else {
        return 0;
    };
    match std::str::from_utf8(last.invalid()) {
        Err(error) if error.error_len().is_none() => last.invalid().len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_incomplete_characters_are_held_back() {
        let cases: [(&[u8], usize); 7] = [
            (b"", 0),
            (b"abc", 0),
            (b"a\xe4\xbd", 2),
            (b"a\xe4\xbd\xa0", 0),
            (b"\xff", 0),
            (b"\xf0\x9f\x98", 3),
            (b"\xe4a", 0),
        ];
        for (bytes, held) in cases {
            assert_eq!(unfinished(bytes), held, "{bytes:?}");
        }
    }
}
