//! SentencePiece's BPE: merge the best-scored neighbours until none can be merged.
//!
//! Not lowered to a merge list, because ranked pairs cannot express SentencePiece's rule for equal
//! scores (leftmost pair first), and because deriving a list for a 262,144-token vocabulary costs
//! more than the rest of loading.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use crate::interrupt::Interrupt;
use crate::vocabulary::{METASPACE, TokenKind, parse_byte_token};
use crate::{Result, TextError};

/// One token as a SentencePiece model file lists it; its id is its position.
pub(crate) struct VocabPiece<'a> {
    pub text: &'a str,
    pub score: f32,
    pub kind: TokenKind,
    /// Swallow the white space that follows, when this is a token matched in the text.
    pub strips_right: bool,
}

/// How the text around the pieces is treated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentencePieceOptions {
    /// Put a space before the text and after each matched token.
    pub add_space_prefix: bool,
    /// Replaces a character with neither piece nor byte tokens.
    pub unknown: Option<u32>,
}

/// A SentencePiece BPE model.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    ids: HashMap<Box<str>, u32>,
    /// By id; `None` if merging must never produce the token.
    scores: Vec<Option<f32>>,
    bytes: HashMap<u8, u32>,
    matched: MatchedTokens,
    options: SentencePieceOptions,
}

impl SentencePiece {
    pub(crate) fn new<'a>(
        pieces: impl ExactSizeIterator<Item = VocabPiece<'a>>,
        options: SentencePieceOptions,
    ) -> Self {
        let mut ids = HashMap::with_capacity(pieces.len());
        let mut scores = Vec::with_capacity(pieces.len());
        let mut bytes = HashMap::new();
        let mut matched = MatchedTokens::default();
        for (id, piece) in (0u32..).zip(pieces) {
            ids.entry(Box::from(piece.text)).or_insert(id);
            let mergeable = matches!(piece.kind, TokenKind::Normal | TokenKind::Added);
            scores.push(mergeable.then_some(piece.score));
            match piece.kind {
                TokenKind::Special | TokenKind::Added => matched.add(id, &piece),
                TokenKind::Byte => {
                    if let Some(byte) = parse_byte_token(piece.text) {
                        bytes.insert(byte, id);
                    }
                }
                TokenKind::Normal | TokenKind::Unused | TokenKind::Absent => {}
            }
        }
        Self {
            ids,
            scores,
            bytes,
            matched,
            options,
        }
    }

    pub(crate) fn token_id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }

    /// Encodes `text`; special tokens written in it count as tokens only with `parse_special`.
    pub(crate) fn encode(
        &self,
        text: &str,
        parse_special: bool,
        interrupt: &Interrupt,
    ) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        let mut rest = 0;
        let mut after_token = true;
        let mut position = 0;
        while position < text.len() {
            match self.matched.at(text, position, parse_special) {
                Some(token) => {
                    let plain = &text[rest..position];
                    out.extend(self.encode_plain(plain, after_token, interrupt)?);
                    out.push(token.id);
                    position += token.len;
                    if token.strips_right {
                        let following = &text[position..];
                        position += following.len() - following.trim_start().len();
                    }
                    (rest, after_token) = (position, true);
                }
                None => position += 1,
            }
        }
        out.extend(self.encode_plain(&text[rest..], after_token, interrupt)?);
        Ok(out)
    }

    fn encode_plain(
        &self,
        text: &str,
        after_token: bool,
        interrupt: &Interrupt,
    ) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        if text.is_empty() {
            return Ok(out);
        }
        let mut escaped = String::with_capacity(text.len() + 8);
        if self.options.add_space_prefix && after_token {
            escaped.push(METASPACE);
        }
        escaped.extend(text.chars().map(|c| if c == ' ' { METASPACE } else { c }));
        for piece in Merger::new(self, &escaped).run(interrupt)? {
            self.push_piece(piece, &mut out)?;
        }
        Ok(out)
    }

    fn mergeable(&self, text: &str) -> Option<(u32, f32)> {
        let id = self.token_id(text)?;
        Some((id, (*self.scores.get(id as usize)?)?))
    }

    /// Emits a piece, or its bytes if it is not a token.
    fn push_piece(&self, piece: &str, out: &mut Vec<u32>) -> Result<()> {
        if let Some((id, _)) = self.mergeable(piece) {
            out.push(id);
            return Ok(());
        }
        for character in piece.chars() {
            let mut buffer = [0; 4];
            let utf8 = character.encode_utf8(&mut buffer).as_bytes();
            let ids: Option<Vec<u32>> = utf8.iter().map(|b| self.bytes.get(b).copied()).collect();
            match (ids, self.options.unknown) {
                (Some(ids), _) => out.extend(ids),
                (None, Some(unknown)) => out.push(unknown),
                (None, None) => return Err(TextError::Unencodable { character }),
            }
        }
        Ok(())
    }
}

/// The tokens looked for in the raw text before any merging: leftmost first, longest first.
#[derive(Debug, Default)]
struct MatchedTokens {
    tokens: HashMap<Box<str>, MatchedToken>,
    /// By first byte, the lengths of the tokens starting with it, longest first.
    lengths: HashMap<u8, Vec<usize>>,
}

#[derive(Debug, Clone, Copy)]
struct MatchedToken {
    id: u32,
    len: usize,
    special: bool,
    strips_right: bool,
}

impl MatchedTokens {
    fn add(&mut self, id: u32, piece: &VocabPiece<'_>) {
        let Some(&first) = piece.text.as_bytes().first() else {
            return;
        };
        let token = MatchedToken {
            id,
            len: piece.text.len(),
            special: piece.kind == TokenKind::Special,
            strips_right: piece.strips_right,
        };
        self.tokens.insert(Box::from(piece.text), token);
        let lengths = self.lengths.entry(first).or_default();
        if let Err(place) = lengths.binary_search_by(|len| token.len.cmp(len)) {
            lengths.insert(place, token.len);
        }
    }

    fn at(&self, text: &str, position: usize, parse_special: bool) -> Option<MatchedToken> {
        let lengths = self.lengths.get(text.as_bytes().get(position)?)?;
        lengths.iter().find_map(|len| {
            let token = self.tokens.get(text.get(position..position + len)?)?;
            (parse_special || !token.special).then_some(*token)
        })
    }
}

/// A stretch of the text; merging extends it to the right and empties its neighbour.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two neighbours that together are a token.
struct Bigram {
    score: f32,
    left: usize,
    right: usize,
    /// Length when queued. A different length later means that one side was merged.
    len: usize,
}

impl Ord for Bigram {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Bigram {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Bigram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Bigram {}

struct Merger<'a> {
    model: &'a SentencePiece,
    text: &'a str,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Bigram>,
}

impl<'a> Merger<'a> {
    fn new(model: &'a SentencePiece, text: &'a str) -> Self {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, character))| Symbol {
                start,
                len: character.len_utf8(),
                previous: index.checked_sub(1),
                next: Some(index + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }
        Self {
            model,
            text,
            symbols,
            queue: BinaryHeap::new(),
        }
    }

    fn run(mut self, interrupt: &Interrupt) -> Result<Vec<&'a str>> {
        for right in 1..self.symbols.len() {
            interrupt.check()?;
            self.consider(Some(right - 1), Some(right));
        }
        while let Some(bigram) = self.queue.pop() {
            interrupt.check()?;
            self.merge(&bigram);
        }
        let left = self.symbols.iter().filter(|symbol| symbol.len > 0);
        let pieces = left.map(|symbol| &self.text[symbol.start..symbol.start + symbol.len]);
        Ok(pieces.collect())
    }

    fn merge(&mut self, bigram: &Bigram) {
        let (left, right) = (&self.symbols[bigram.left], &self.symbols[bigram.right]);
        if left.len == 0 || right.len == 0 || left.len + right.len != bigram.len {
            return;
        }
        let (previous, next) = (left.previous, right.next);
        self.symbols[bigram.right].len = 0;
        let merged = &mut self.symbols[bigram.left];
        merged.len = bigram.len;
        merged.next = next;
        if let Some(next) = next {
            self.symbols[next].previous = Some(bigram.left);
        }
        self.consider(previous, Some(bigram.left));
        self.consider(Some(bigram.left), next);
    }

    fn consider(&mut self, left: Option<usize>, right: Option<usize>) {
        let (Some(left), Some(right)) = (left, right) else {
            return;
        };
        let start = self.symbols[left].start;
        let len = self.symbols[left].len + self.symbols[right].len;
        if let Some((_, score)) = self.model.mergeable(&self.text[start..start + len]) {
            self.queue.push(Bigram {
                score,
                left,
                right,
                len,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering as AtomicOrdering};

    use super::*;

    const PIECES: [(&str, f32, TokenKind); 13] = [
        ("<unk>", 0.0, TokenKind::Special),
        ("<s>", 0.0, TokenKind::Special),
        ("<0xC3>", 0.0, TokenKind::Byte),
        ("<0xA9>", 0.0, TokenKind::Byte),
        ("▁", -9.0, TokenKind::Normal),
        ("a", -9.0, TokenKind::Normal),
        ("b", -9.0, TokenKind::Normal),
        ("ab", -1.0, TokenKind::Normal),
        ("aa", -1.0, TokenKind::Normal),
        ("▁ab", -2.0, TokenKind::Normal),
        ("<t>", -1000.0, TokenKind::Added),
        ("<", -9.0, TokenKind::Normal),
        ("s>", -9.0, TokenKind::Normal),
    ];

    fn model(add_space_prefix: bool, unknown: Option<u32>) -> SentencePiece {
        let pieces = PIECES.iter().map(|(text, score, kind)| VocabPiece {
            text,
            score: *score,
            kind: *kind,
            strips_right: *text == "<s>",
        });
        let options = SentencePieceOptions {
            add_space_prefix,
            unknown,
        };
        SentencePiece::new(pieces, options)
    }

    #[test]
    fn merges_best_score_then_leftmost() {
        let cases: [(&str, bool, bool, &[u32]); 11] = [
            ("", true, true, &[]),
            ("ab", true, true, &[9]),
            ("ab", false, true, &[7]),
            ("aab", false, true, &[8, 6]),
            ("aaa", false, true, &[8, 5]),
            ("é", false, true, &[2, 3]),
            ("<s> ab", false, true, &[1, 7]),
            ("<s>ab", true, true, &[1, 9]),
            ("a<t>b", true, false, &[4, 5, 10, 4, 6]),
            // Plain text never becomes a control token, even if merging could spell it.
            ("<s>", false, false, &[11, 12]),
            ("c", false, true, &[0]),
        ];
        for (text, prefix, special, ids) in cases {
            let encoded = model(prefix, Some(0)).encode(text, special, &Interrupt::default());
            assert_eq!(encoded.ok().as_deref(), Some(ids), "{text:?}");
        }
    }

    #[test]
    fn character_without_token_is_refused() {
        let refused = model(false, None).encode("c", true, &Interrupt::default());
        assert!(matches!(
            refused,
            Err(TextError::Unencodable { character: 'c' })
        ));
    }

    #[test]
    fn interrupted_encoding_stops_between_merges() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let interrupt =
            Interrupt::new(move || counter.fetch_add(1, AtomicOrdering::Relaxed) == 150);
        // 99 pairs are considered first.
        let encoded = model(false, None).encode(&"a".repeat(100), true, &interrupt);
        assert!(matches!(encoded, Err(TextError::Interrupted)));
        assert_eq!(asked.load(AtomicOrdering::Relaxed), 151);
    }
}
