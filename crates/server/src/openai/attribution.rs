//! Which of a reply's tokens are its thinking and which are its words.
//!
//! A reply's parts come as text, which lags behind the tokens, and leaves out the marks between
//! the parts. What was said is looked up in what the tokens spell, from where the last part ended.

use std::collections::VecDeque;

use loquat_chat::{ChatContext, ReplyEvent};
use loquat_engine::TokenInfo;
use loquat_text::Tokenizer;

/// One choice's tokens on their way to the parts of its reply.
pub struct Attribution {
    tokenizer: Tokenizer,
    markers: Vec<&'static str>,
    /// What tokens spell that no part has claimed.
    unclaimed: Vec<u8>,
    tokens: VecDeque<Spelled>,
    reasoning_tokens: usize,
}

/// A token with bytes that no part has claimed.
struct Spelled {
    /// Gone when a part claimed the token's first bytes: it belongs to one part only.
    info: Option<TokenInfo>,
    left: usize,
}

impl Attribution {
    pub fn new(chat: &ChatContext) -> Self {
        Self {
            tokenizer: chat.tokenizer().clone(),
            markers: chat.format().markers(),
            unclaimed: Vec::new(),
            tokens: VecDeque::new(),
            reasoning_tokens: 0,
        }
    }

    /// Tokens of thinking so far, its marks aside.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    /// Takes new tokens and the parts that they settled; gives the tokens of the answer's words.
    pub fn take(&mut self, tokens: Vec<TokenInfo>, events: &[ReplyEvent]) -> Vec<TokenInfo> {
        tokens.into_iter().for_each(|info| self.spell(info));
        let mut words = Vec::new();
        for event in events {
            match event {
                ReplyEvent::Text(text) => words.extend(self.claim(text)),
                ReplyEvent::Reasoning(text) => self.reasoning_tokens += self.claim(text).len(),
                // Arguments need not be spelled as the model did.
                ReplyEvent::CallStart { .. }
                | ReplyEvent::CallArguments { .. }
                | ReplyEvent::CallEnd { .. } => self.forget(self.unclaimed.len()),
            }
        }
        words
    }

    fn spell(&mut self, info: TokenInfo) {
        let bytes = self.tokenizer.token_bytes(info.id).unwrap_or_default();
        let hidden = self.tokenizer.is_special(info.id) && !self.is_mark(bytes);
        let bytes = if hidden { &[] } else { bytes };
        self.unclaimed.extend_from_slice(bytes);
        self.tokens.push_back(Spelled {
            left: bytes.len(),
            info: Some(info),
        });
    }

    fn is_mark(&self, bytes: &[u8]) -> bool {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        !text.is_empty() && self.markers.iter().any(|marker| marker.contains(text))
    }

    /// The tokens that spell a part. One that cannot be found (bytes that are no text) has all
    /// there are.
    fn claim(&mut self, text: &str) -> Vec<TokenInfo> {
        let length = match self.find(text.as_bytes()) {
            Some(start) => {
                self.forget(start);
                text.len()
            }
            None => self.unclaimed.len(),
        };
        let mut claimed = Vec::new();
        self.advance(length, |token| claimed.extend(token.info.take()));
        claimed
    }

    fn forget(&mut self, length: usize) {
        self.advance(length, |_| {});
    }

    /// Where a part begins. Marks are passed over whole, so that no part is found within one.
    fn find(&self, part: &[u8]) -> Option<usize> {
        let mut start = 0;
        while start < self.unclaimed.len() {
            let rest = &self.unclaimed[start..];
            if rest.starts_with(part) {
                return Some(start);
            }
            let marks = self.markers.iter().map(|marker| marker.as_bytes());
            let mark = marks.filter(|mark| rest.starts_with(mark)).map(<[u8]>::len);
            start += mark.max().unwrap_or(1);
        }
        None
    }

    /// Goes through the tokens of the next bytes.
    fn advance(&mut self, length: usize, mut each: impl FnMut(&mut Spelled)) {
        self.unclaimed.drain(..length);
        let mut left = length;
        while let Some(token) = self.tokens.front_mut() {
            if token.left > 0 && left == 0 {
                break;
            }
            let part = token.left.min(left);
            if part > 0 {
                each(token);
            }
            token.left -= part;
            left -= part;
            if token.left == 0 {
                self.tokens.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use loquat_text::Special;

    use super::*;
    use crate::testing;

    fn info(id: u32) -> TokenInfo {
        TokenInfo {
            id,
            logprob: None,
            top: Vec::new(),
        }
    }

    #[test]
    fn tokens_belong_to_the_part_that_they_spell() {
        let text = |text: &str| ReplyEvent::Text(text.to_owned());
        let reasoning = |text: &str| ReplyEvent::Reasoning(text.to_owned());
        let start = || ReplyEvent::CallStart {
            index: 0,
            id: "1".to_owned(),
            name: "think".to_owned(),
        };
        // What comes, what it settles; the words' tokens as text, and how many were thinking.
        type Case<'a> = (&'a [(&'a str, Vec<ReplyEvent>)], &'a str, usize);
        let cases: [Case<'_>; 5] = [
            (&[("Hello", vec![text("Hello")])], "Hello", 0),
            // Held back, and settled late.
            (
                &[("a<", vec![text("a")]), ("b", vec![text("<b")])],
                "a<b",
                0,
            ),
            (
                &[
                    ("<think>", vec![]),
                    ("\nhm", vec![reasoning("hm")]),
                    ("</think>\n\nthink", vec![text("think")]),
                ],
                "think",
                2,
            ),
            (
                &[
                    ("so", vec![text("so")]),
                    ("<tool_call>{\"name\": \"think\"", vec![start()]),
                    ("}</tool_call>\nthink", vec![text("think")]),
                ],
                "sothink",
                0,
            ),
            // Not what the tokens spell.
            (&[("a", vec![]), ("b", vec![text("\u{fffd}")])], "ab", 0),
        ];
        let chat = testing::chat();
        for (news, words, thinking) in cases {
            let mut attribution = Attribution::new(&chat);
            let mut told = Vec::new();
            for (spelled, events) in news {
                let ids = chat.tokenizer().encode_inner(spelled, Special::PLAIN);
                let infos = ids.expect("tokens").into_iter().map(info).collect();
                let words = attribution.take(infos, events);
                told.extend(words.into_iter().map(|info| info.id));
            }
            assert_eq!(chat.tokenizer().decode(&told, false), words, "{news:?}");
            assert_eq!(attribution.reasoning_tokens(), thinking, "{news:?}");
        }
    }
}
