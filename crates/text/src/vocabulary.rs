//! The vocabulary: each token's bytes and kind.
//!
//! Both kinds of tokenizer reduce to this table, so decoding is a concatenation of bytes for every
//! file format.

/// How encoding and decoding treat a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// No token has this id.
    Absent,
    Normal,
    /// Control token: recognized only if the caller allows it, hidden on request.
    Special,
    /// Matched in text before merging, but shown like normal text.
    Added,
    /// One raw byte.
    Byte,
    /// In the file, but never to be produced.
    Unused,
}

/// How the text of a normal token spells its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's printable alphabet, one character per byte.
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0x0A>` is a byte.
    Metaspace,
}

/// SentencePiece's visible space.
pub(crate) const METASPACE: char = '\u{2581}';

/// One vocabulary, indexed by token id.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    kinds: Vec<TokenKind>,
    bytes: Vec<u8>,
    /// `bytes[ends[i - 1]..ends[i]]` is token `i`.
    ends: Vec<usize>,
}

impl Vocabulary {
    /// Builds the table from `(text, kind)` in id order.
    pub(crate) fn new<'a>(
        tokens: impl Iterator<Item = (&'a str, TokenKind)>,
        spelling: Spelling,
    ) -> Self {
        let mut vocabulary = Self {
            kinds: Vec::new(),
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        for (text, kind) in tokens {
            push_bytes(&mut vocabulary.bytes, text, kind, spelling);
            vocabulary.ends.push(vocabulary.bytes.len());
            vocabulary.kinds.push(kind);
        }
        vocabulary
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> TokenKind {
        let kind = self.kinds.get(id as usize).copied();
        kind.unwrap_or(TokenKind::Absent)
    }

    /// A token's bytes, or `None` if no token has this id.
    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        if self.kind(id) == TokenKind::Absent {
            return None;
        }
        let index = id as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.bytes.get(start..*self.ends.get(index)?)
    }
}

fn push_bytes(out: &mut Vec<u8>, text: &str, kind: TokenKind, spelling: Spelling) {
    match (kind, spelling) {
        // GGUF names rows without a token too, but the name is not text.
        (TokenKind::Absent | TokenKind::Unused, _) => {}
        (TokenKind::Special, _) | (TokenKind::Added, Spelling::ByteLevel) => {
            out.extend_from_slice(text.as_bytes());
        }
        (TokenKind::Byte, _) => match parse_byte_token(text) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(text.as_bytes()),
        },
        (TokenKind::Normal, Spelling::ByteLevel) => {
            let before = out.len();
            for character in text.chars() {
                let Some(byte) = byte_of_char(character) else {
                    // A token outside the alphabet was never byte-level encoded.
                    out.truncate(before);
                    out.extend_from_slice(text.as_bytes());
                    return;
                };
                out.push(byte);
            }
        }
        (TokenKind::Normal | TokenKind::Added, Spelling::Metaspace) => {
            for (index, part) in text.split(METASPACE).enumerate() {
                if index > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(part.as_bytes());
            }
        }
    }
}

/// `<0x0A>` → `0x0A`.
pub(crate) fn parse_byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// Whether GPT-2's alphabet shows this byte as the character with the same code.
fn shown_as_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// Inverse of GPT-2's byte alphabet: printable Latin-1 maps to itself, the other 68 bytes follow in
/// order from U+0100.
fn byte_of_char(character: char) -> Option<u8> {
    let code = u32::from(character);
    match u8::try_from(code) {
        Ok(byte) => shown_as_itself(byte).then_some(byte),
        Err(_) => {
            let mut hidden = (0..=u8::MAX).filter(|byte| !shown_as_itself(*byte));
            hidden.nth((code - 0x100) as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_matches_tokenizers_crate() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let mut bytes: Vec<u8> = alphabet.into_iter().filter_map(byte_of_char).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
        let known = [
            ('\u{120}', Some(b' ')),
            ('\u{10a}', Some(b'\n')),
            ('é', Some(0xe9)),
        ];
        for (character, byte) in known {
            assert_eq!(byte_of_char(character), byte, "{character:?}");
        }
        assert_eq!(byte_of_char('你'), None);
    }

    #[test]
    fn tokens_spell_their_bytes() {
        use Spelling::*;
        use TokenKind::*;
        let cases: [(&str, TokenKind, Spelling, &[u8]); 11] = [
            ("Ġthe", Normal, ByteLevel, b" the"),
            ("Ċ", Normal, ByteLevel, b"\n"),
            ("你", Normal, ByteLevel, "你".as_bytes()),
            ("Ġ", Added, ByteLevel, "Ġ".as_bytes()),
            ("▁a▁b", Normal, Metaspace, b" a b"),
            ("▁▁", Added, Metaspace, b"  "),
            ("<a▁b>", Special, Metaspace, "<a▁b>".as_bytes()),
            ("<0xE9>", Byte, Metaspace, &[0xe9]),
            ("<0x+9>", Byte, Metaspace, b"<0x+9>"),
            ("[PAD285]", Unused, ByteLevel, b""),
            ("[PAD285]", Unused, Metaspace, b""),
        ];
        for (text, kind, spelling, bytes) in cases {
            let vocabulary = Vocabulary::new([(text, kind)].into_iter(), spelling);
            assert_eq!(vocabulary.bytes(0), Some(bytes), "{text}");
        }
    }

    #[test]
    fn ids_without_a_token_have_no_bytes() {
        let tokens = [
            ("a", TokenKind::Normal),
            ("", TokenKind::Absent),
            ("b", TokenKind::Normal),
        ];
        let vocabulary = Vocabulary::new(tokens.into_iter(), Spelling::Metaspace);
        let bytes: Vec<_> = (0..4).map(|id| vocabulary.bytes(id)).collect();
        assert_eq!(bytes, [Some(&b"a"[..]), None, Some(b"b"), None]);
    }
}
