//! What a reply says: thinking, words, tool calls.

use loquat_text::format::{OutputFormat, OutputParser, Piece, Start};

use crate::{Content, Message, Role, ToolCall};

/// One piece of a reply, in the order the model wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyEvent {
    Reasoning(String),
    Text(String),
    /// The `index`-th call begins.
    CallStart {
        index: usize,
        id: String,
        name: String,
    },
    /// More of its arguments; all of them together are a JSON object.
    CallArguments {
        index: usize,
        json: String,
    },
    /// Its arguments are whole. A call that is cut short or malformed has no such event.
    CallEnd {
        index: usize,
    },
}

impl ReplyEvent {
    /// The words that it brings to the answer; none where it is thinking or calls a tool.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }
}

/// Takes a reply's text as it comes, and tells its parts apart.
#[derive(Debug)]
pub struct ReplyParser {
    format: OutputFormat,
    start: Start,
    parser: OutputParser,
}

impl ReplyParser {
    pub(crate) fn new(format: OutputFormat, start: Start) -> Self {
        Self {
            format,
            parser: OutputParser::new(format, start.clone()),
            start,
        }
    }

    /// One that has heard nothing yet, for another choice of the same request.
    pub fn another(&self) -> Self {
        Self::new(self.format, self.start.clone())
    }

    /// Takes more text; gives what it settled, which may be nothing yet.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        named(self.parser.push(text))
    }

    /// Ends the reply; gives what was held back.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        named(self.parser.finish())
    }
}

fn named(pieces: Vec<Piece>) -> Vec<ReplyEvent> {
    let event = |piece| match piece {
        Piece::Reasoning(text) => ReplyEvent::Reasoning(text),
        Piece::Text(text) => ReplyEvent::Text(text),
        Piece::CallStart { index, name, id } => ReplyEvent::CallStart {
            index,
            id: id.unwrap_or_else(fresh_id),
            name,
        },
        Piece::CallArguments { index, json } => ReplyEvent::CallArguments { index, json },
        Piece::CallEnd { index } => ReplyEvent::CallEnd { index },
    };
    pieces.into_iter().map(event).collect()
}

/// Nine letters and digits: Mistral's templates take no other length.
fn fresh_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut random = RandomState::new().hash_one(());
    let mut next = || {
        let digit = ALPHABET[(random % 62) as usize];
        random /= 62;
        char::from(digit)
    };
    (0..9).map(|_| next()).collect()
}

/// A whole reply, gathered from its events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reply {
    pub reasoning: String,
    pub text: String,
    pub tool_calls: Vec<ToolCall>,
}

impl Reply {
    /// Takes what one event brings.
    pub fn add(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Reasoning(text) => self.reasoning.push_str(text),
            ReplyEvent::Text(text) => self.text.push_str(text),
            ReplyEvent::CallStart { id, name, .. } => self.tool_calls.push(ToolCall {
                id: id.clone(),
                name: name.clone(),
                arguments: String::new(),
            }),
            ReplyEvent::CallArguments { index, json } => {
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.arguments.push_str(json);
                }
            }
            ReplyEvent::CallEnd { .. } => {}
        }
    }

    /// As a turn of the conversation.
    pub fn into_message(self) -> Message {
        let Self {
            reasoning,
            text,
            tool_calls,
        } = self;
        Message {
            reasoning: Some(reasoning).filter(|reasoning| !reasoning.is_empty()),
            tool_calls,
            ..Message::new(Role::Assistant, Content::Text(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_nine_letters_and_digits_and_differ() {
        let ids: std::collections::HashSet<String> = (0..100).map(|_| fresh_id()).collect();
        assert_eq!(ids.len(), 100);
        for id in ids {
            assert_eq!(id.len(), 9);
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        }
    }
}
