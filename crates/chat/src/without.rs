//! Texts that a reply must not come to hold: the marks of tool calls where none are wanted.

use std::sync::Arc;

use loquat_engine::{Allowed, Constraint, TokenMask};
use loquat_text::Tokenizer;

use crate::gate::contains;

/// Forbids the token that would complete one of some texts.
#[derive(Debug, Clone)]
pub(crate) struct Without {
    tokenizer: Tokenizer,
    texts: Arc<[String]>,
    /// Tokens that hold one of the texts all by themselves.
    whole: Arc<[u32]>,
    /// The end of what was said: as much as may begin one of the texts.
    tail: Vec<u8>,
}

impl Without {
    /// No text may be empty.
    pub fn new(tokenizer: Tokenizer, texts: Vec<String>) -> Self {
        let ids = 0..tokenizer.vocab_size() as u32;
        let holds = |id: &u32| {
            let bytes = tokenizer.token_bytes(*id).unwrap_or_default();
            texts.iter().any(|text| contains(bytes, text.as_bytes()))
        };
        Self {
            whole: ids.filter(holds).collect(),
            texts: texts.into(),
            tokenizer,
            tail: Vec::new(),
        }
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
        let missing = self.missing();
        if missing.is_empty() && self.whole.is_empty() {
            return Ok(Allowed::All);
        }
        mask.fill();
        for &id in self.whole.iter() {
            mask.forbid(id);
        }
        if !missing.is_empty() {
            for id in 0..self.tokenizer.vocab_size() as u32 {
                let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
                if missing.iter().any(|rest| bytes.starts_with(rest)) {
                    mask.forbid(id);
                }
            }
        }
        Ok(Allowed::Masked)
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
        let without = Without::new(tokenizer(), texts.to_vec());
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
}
