//! One choice of a reply as it comes: what a stream sends on, and an answer gathers.

use loquat_chat::{ChatContext, ReplyEvent};
use loquat_engine::{FinishReason, TokenInfo};

use crate::chat_turn::Said;
use crate::openai::attribution::Attribution;

/// More of a choice.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    Reasoning(String),
    /// Words of the answer, and the tokens that they settled.
    Words {
        text: String,
        tokens: Vec<TokenInfo>,
    },
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    CallArguments {
        index: usize,
        json: String,
    },
}

/// What has to be remembered of a choice.
pub struct Choice {
    /// Where tokens matter: for log-probabilities, and of models that think.
    attribution: Option<Attribution>,
    thinks: bool,
    /// Space before the first word. Models put it around thinking and calls, where it is none.
    space: String,
    space_tokens: Vec<TokenInfo>,
    speaks: bool,
    calls: bool,
}

impl Choice {
    pub fn new(chat: &ChatContext, logprobs: bool) -> Self {
        let thinks = chat.format().reasoning.is_some();
        Self {
            attribution: (thinks || logprobs).then(|| Attribution::new(chat)),
            thinks,
            space: String::new(),
            space_tokens: Vec::new(),
            speaks: false,
            calls: false,
        }
    }

    /// Takes news; gives what is to be told of them.
    pub fn take(&mut self, said: Said) -> Vec<Delta> {
        let Said {
            choice: _,
            events,
            tokens,
            end,
        } = said;
        let attribution = self.attribution.as_mut();
        let mut words = attribution.map_or_else(Vec::new, |all| all.take(tokens, &events));
        let mut deltas = Vec::new();
        for event in events {
            deltas.extend(match event {
                ReplyEvent::Reasoning(text) => Some(Delta::Reasoning(text)),
                ReplyEvent::Text(text) => self.words(text, std::mem::take(&mut words)),
                ReplyEvent::CallStart { index, id, name } => {
                    self.calls = true;
                    Some(Delta::CallStart { index, id, name })
                }
                ReplyEvent::CallArguments { index, json } => {
                    Some(Delta::CallArguments { index, json })
                }
                ReplyEvent::CallEnd { index: _ } => None,
            });
        }
        if end.is_some() && !self.speaks && !self.calls && !self.space.is_empty() {
            deltas.push(self.spoken());
        }
        deltas
    }

    fn words(&mut self, text: String, tokens: Vec<TokenInfo>) -> Option<Delta> {
        if self.speaks {
            return Some(Delta::Words { text, tokens });
        }
        self.space.push_str(&text);
        self.space_tokens.extend(tokens);
        (!self.space.trim().is_empty()).then(|| self.spoken())
    }

    fn spoken(&mut self) -> Delta {
        self.speaks = true;
        Delta::Words {
            text: std::mem::take(&mut self.space),
            tokens: std::mem::take(&mut self.space_tokens),
        }
    }

    /// `None` of a model that does not think.
    pub fn reasoning_tokens(&self) -> Option<usize> {
        let attribution = self.attribution.as_ref().filter(|_| self.thinks);
        attribution.map(Attribution::reasoning_tokens)
    }

    /// Why it ended.
    pub fn finish_reason(&self, reason: FinishReason) -> &'static str {
        match reason {
            FinishReason::Length => "length",
            FinishReason::Stop | FinishReason::StopString(_) if self.calls => "tool_calls",
            FinishReason::Stop | FinishReason::StopString(_) => "stop",
        }
    }
}
