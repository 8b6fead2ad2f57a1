//! Keeps texts out of a reply, such as the marks of tool calls that are not allowed.

use std::sync::Arc;

use loquat_engine::{AllowedTokens, Constraint, ConstraintError, TokenMask};
use loquat_text::Tokenizer;

use crate::reasoning_gate::contains;

/// Forbids tokens that would complete one of some texts, or run past its end.
#[derive(Debug, Clone)]
pub(crate) struct ForbiddenText {
    tokenizer: Tokenizer,
    texts: Arc<[String]>,
    forbids: Forbids,
    /// Tokens forbidden regardless of the text before.
    always: Arc<[u32]>,
    /// The end of the reply so far, long enough to hold the start of any of the texts.
    tail: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forbids {
    /// Forbids completing a text.
    Completing,
    /// Forbids only tokens that continue past a text's end.
    Overrunning,
}

impl ForbiddenText {
    /// Scans the whole vocabulary. No text may be empty.
    pub fn new(tokenizer: Tokenizer, texts: Vec<String>, forbids: Forbids) -> Self {
        let ids = 0..tokenizer.vocab_size() as u32;
        let is_forbidden = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            texts.iter().any(|text| match forbids {
                Forbids::Completing => contains(bytes, text.as_bytes()),
                Forbids::Overrunning => {
                    let before = bytes.len().saturating_sub(1);
                    contains(&bytes[..before], text.as_bytes())
                }
            })
        };
        Self {
            always: ids.filter(is_forbidden).collect(),
            texts: texts.into(),
            forbids,
            tokenizer,
            tail: Vec::new(),
        }
    }

    /// Removes forbidden tokens from the mask. Returns whether there were any.
    pub fn narrow(&self, mask: &mut TokenMask) -> bool {
        let missing = self.missing();
        for &id in self.always.iter() {
            mask.forbid(id);
        }
        if !missing.is_empty() {
            for id in 0..self.tokenizer.vocab_size() as u32 {
                let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
                let forbidden = |rest: &&[u8]| {
                    let overruns = bytes.len() > rest.len();
                    bytes.starts_with(rest) && (self.forbids == Forbids::Completing || overruns)
                };
                if missing.iter().any(forbidden) {
                    mask.forbid(id);
                }
            }
        }
        !missing.is_empty() || !self.always.is_empty()
    }

    /// The missing rest of each text that the tail may be the start of.
    fn missing(&self) -> Vec<&[u8]> {
        let mut missing = Vec::new();
        for text in self.texts.iter() {
            for begun in 1..text.len() {
                let (start, rest) = text.as_bytes().split_at(begun);
                if self.tail.ends_with(start) {
                    missing.push(rest);
                }
            }
        }
        missing
    }
}

impl Constraint for ForbiddenText {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        mask.fill();
        Ok(if self.narrow(mask) {
            AllowedTokens::Masked
        } else {
            AllowedTokens::All
        })
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        let bytes = self.tokenizer.token_bytes(token);
        self.tail.extend(bytes.unwrap_or_default());
        let longest = self.texts.iter().map(String::len).max().unwrap_or(0);
        let spare = self.tail.len().saturating_sub(longest);
        self.tail.drain(..spare);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{drive, tokenizer};

    #[test]
    fn forbidden_text_cannot_be_completed() {
        let texts = ["<tool_call>", "<|im_end|>", "aab"].map(str::to_owned);
        let forbidden = ForbiddenText::new(tokenizer(), texts.to_vec(), Forbids::Completing);
        let cases = [
            ("a tool_call", true),
            ("<tool_call", true),
            ("<tool_call>", false),
            ("<<tool_call>", false),
            ("<tool_cal<tool_call>", false),
            ("<tool_call/>", true),
            ("aaab", false),
            ("ab", true),
        ];
        for (wanted, is_legal) in cases {
            let found = drive(forbidden.clone(), wanted);
            assert_eq!(found.is_ok(), is_legal, "{wanted}: {found:?}");
        }
        let mut forbidden = forbidden;
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        assert_eq!(forbidden.allowed(&mut mask), Ok(AllowedTokens::Masked));
        let end = tokenizer().token_id("<|im_end|>").expect("a token");
        assert!(!mask.contains(end), "a token that is the whole text");
    }

    #[test]
    fn token_overrunning_a_text_is_forbidden() {
        // `>` ends the first; the second is a token that goes on.
        let texts = vec!["(x".to_owned(), "<thin".to_owned()];
        let mut forbidden = ForbiddenText::new(tokenizer(), texts, Forbids::Overrunning);
        let think = tokenizer().token_id("<think>").expect("a token");
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        forbidden.allowed(&mut mask).expect("a mask");
        assert!(!mask.contains(think), "it holds the text and more");
        assert!(
            drive(forbidden, "(x<thin").is_ok(),
            "the texts themselves are allowed"
        );
    }
}
