//! Texts that a reply must not come to hold: the marks of tool calls where none are wanted.

use std::sync::Arc;

use loquat_engine::{Allowed, Constraint, TokenMask};
use loquat_text::Tokenizer;

use crate::gate::contains;

/// Forbids tokens that would complete one of some texts, or run past its end.
#[derive(Debug, Clone)]
pub(crate) struct Without {
    tokenizer: Tokenizer,
    texts: Arc<[String]>,
    forbids: Forbids,
    /// Tokens that are forbidden whatever was said.
    always: Arc<[u32]>,
    /// The end of what was said: as much as may begin one of the texts.
    tail: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forbids {
    /// The texts.
    Completing,
    /// Only what goes on behind them in the same token.
    Overrunning,
}

impl Without {
    /// Looks at the whole vocabulary. No text may be empty.
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

    /// Takes what is forbidden out of the mask; says whether that was anything.
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

    /// What is missing of each text that the tail may be the beginning of.
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

impl Constraint for Without {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, String> {
        mask.fill();
        Ok(if self.narrow(mask) {
            Allowed::Masked
        } else {
            Allowed::All
        })
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
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
    fn a_forbidden_text_is_never_completed() {
        let texts = ["<tool_call>", "<|im_end|>", "aab"].map(str::to_owned);
        let without = Without::new(tokenizer(), texts.to_vec(), Forbids::Completing);
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
            let said = drive(without.clone(), wanted);
            assert_eq!(said.is_ok(), is_legal, "{wanted}: {said:?}");
        }
        let mut without = without;
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        assert_eq!(without.allowed(&mut mask), Ok(Allowed::Masked));
        let end = tokenizer().token_id("<|im_end|>").expect("a token");
        assert!(!mask.contains(end), "a token that is the whole text");
    }

    #[test]
    fn what_runs_past_the_end_of_a_text_is_forbidden() {
        // `>` ends the first; the second is a token that goes on.
        let texts = vec!["(x".to_owned(), "<thin".to_owned()];
        let mut without = Without::new(tokenizer(), texts, Forbids::Overrunning);
        let think = tokenizer().token_id("<think>").expect("a token");
        let mut mask = TokenMask::none(tokenizer().vocab_size());
        without.allowed(&mut mask).expect("a mask");
        assert!(!mask.contains(think), "it holds the text and more");
        assert!(
            drive(without, "(x<thin").is_ok(),
            "the texts themselves may stand"
        );
    }
}
