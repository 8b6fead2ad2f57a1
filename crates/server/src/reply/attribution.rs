//! Attributes a reply's tokens to its reasoning and its text.
//!
//! A reply's parts arrive as text, which lags behind the tokens and omits the markers between the
//! parts. Each part is looked up in what the tokens spell, from where the last part ended.

use std::collections::VecDeque;

use loquat_chat::{ChatContext, ReplyEvent};
use loquat_engine::TokenInfo;
use loquat_text::Tokenizer;

/// One choice's tokens that no part of the reply has claimed yet.
pub struct TokenAttribution {
    tokenizer: Tokenizer,
    markers: Vec<&'static str>,
    /// The bytes that the tokens spell.
    unclaimed: Vec<u8>,
    tokens: VecDeque<UnclaimedToken>,
    /// `None` if the model never reasons.
    reasoning_tokens: Option<usize>,
}

struct UnclaimedToken {
    /// `None` once a part has claimed the token's first bytes: a token belongs to one part only.
    info: Option<TokenInfo>,
    bytes_left: usize,
}

impl TokenAttribution {
    pub fn new(chat: &ChatContext) -> Self {
        let format = chat.format();
        Self {
            tokenizer: chat.tokenizer().clone(),
            markers: format.markers(),
            unclaimed: Vec::new(),
            tokens: VecDeque::new(),
            reasoning_tokens: format.reasoning.is_some().then_some(0),
        }
    }

    /// Tokens of reasoning so far, without its markers; `None` if the model never reasons.
    pub fn reasoning_tokens(&self) -> Option<usize> {
        self.reasoning_tokens
    }

    pub fn push(&mut self, tokens: Vec<TokenInfo>) {
        tokens.into_iter().for_each(|info| self.push_token(info));
    }

    /// Returns the tokens of the event's text. Other events claim theirs without returning them.
    pub fn claim(&mut self, event: &ReplyEvent) -> Vec<TokenInfo> {
        match event {
            ReplyEvent::Text(text) => return self.claim_part(text),
            ReplyEvent::Reasoning(text) => {
                let claimed = self.claim_part(text).len();
                self.reasoning_tokens = self.reasoning_tokens.map(|tokens| tokens + claimed);
            }
            // Arguments need not be spelled as the model did.
            ReplyEvent::CallStart { .. }
            | ReplyEvent::CallArguments { .. }
            | ReplyEvent::CallEnd { .. } => self.skip(self.unclaimed.len()),
        }
        Vec::new()
    }

    fn push_token(&mut self, info: TokenInfo) {
        let bytes = self.tokenizer.token_bytes(info.id).unwrap_or_default();
        let hidden = self.tokenizer.is_special(info.id) && !self.is_marker(bytes);
        let bytes = if hidden { &[] } else { bytes };
        self.unclaimed.extend_from_slice(bytes);
        self.tokens.push_back(UnclaimedToken {
            bytes_left: bytes.len(),
            info: Some(info),
        });
    }

    fn is_marker(&self, bytes: &[u8]) -> bool {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        !text.is_empty() && self.markers.iter().any(|marker| marker.contains(text))
    }

    /// The tokens that spell a part. A part that is not found (bytes that are not text) claims all.
    fn claim_part(&mut self, text: &str) -> Vec<TokenInfo> {
        let length = match self.find(text.as_bytes()) {
            Some(start) => {
                self.skip(start);
                text.len()
            }
            None => self.unclaimed.len(),
        };
        let mut claimed = Vec::new();
        self.advance(length, |token| claimed.extend(token.info.take()));
        claimed
    }

    fn skip(&mut self, length: usize) {
        self.advance(length, |_| {});
    }

    /// Where a part begins. Markers are skipped whole, so that no part is found within one.
    fn find(&self, part: &[u8]) -> Option<usize> {
        let mut start = 0;
        while start < self.unclaimed.len() {
            let rest = &self.unclaimed[start..];
            if rest.starts_with(part) {
                return Some(start);
            }
            let markers = self.markers.iter().map(|marker| marker.as_bytes());
            let marker = markers.filter(|marker| rest.starts_with(marker));
            start += marker.map(<[u8]>::len).max().unwrap_or(1);
        }
        None
    }

    /// Visits the tokens of the next bytes.
    fn advance(&mut self, length: usize, mut visit: impl FnMut(&mut UnclaimedToken)) {
        self.unclaimed.drain(..length);
        let mut left = length;
        while let Some(token) = self.tokens.front_mut() {
            if token.bytes_left > 0 && left == 0 {
                break;
            }
            let claimed = token.bytes_left.min(left);
            if claimed > 0 {
                visit(token);
            }
            token.bytes_left -= claimed;
            left -= claimed;
            if token.bytes_left == 0 {
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
    fn tokens_belong_to_the_part_they_spell() {
        let text = |text: &str| ReplyEvent::Text(text.to_owned());
        let reasoning = |text: &str| ReplyEvent::Reasoning(text.to_owned());
        let start = || ReplyEvent::CallStart {
            index: 0,
            id: "1".to_owned(),
            name: "think".to_owned(),
        };
        // Deltas with the events they complete; the text's tokens, and how many were reasoning.
        type Case<'a> = (&'a [(&'a str, Vec<ReplyEvent>)], &'a str, usize);
        let cases: [Case<'_>; 5] = [
            (&[("Hello", vec![text("Hello")])], "Hello", 0),
            // Held back, and completed later.
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
        for (deltas, expected, reasoning) in cases {
            let mut attribution = TokenAttribution::new(&chat);
            let mut claimed = Vec::new();
            for (spelled, events) in deltas {
                let ids = chat.tokenizer().encode_inner(spelled, Special::PLAIN);
                attribution.push(ids.expect("tokens").into_iter().map(info).collect());
                for event in events {
                    claimed.extend(attribution.claim(event).iter().map(|info| info.id));
                }
            }
            let text = chat.tokenizer().decode(&claimed, false);
            assert_eq!(text, expected, "{deltas:?}");
            assert_eq!(
                attribution.reasoning_tokens(),
                Some(reasoning),
                "{deltas:?}"
            );
        }
    }
}
