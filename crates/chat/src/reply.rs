//! A reply: reasoning, text and tool calls.

use loquat_text::format::{OutputFormat, OutputParser, OutputPiece, ParseOptions};

use crate::{Message, MessageContent, Role, ToolCall};

/// One piece of a reply, in the order the model wrote it.
///
/// With the feature `serde` it can be stored, in Loquat's own form.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum ReplyEvent {
    /// More of the reasoning before the answer.
    Reasoning(String),
    /// More of the answer.
    Text(String),
    /// The `index`-th call begins.
    CallStart {
        /// Counts the reply's calls from 0.
        index: usize,
        /// Links the tool's result to the call.
        id: String,
        /// The name of the tool.
        name: String,
    },
    /// More of its arguments. All of them joined are a JSON object.
    CallArguments {
        /// The call's index.
        index: usize,
        /// More text of the JSON object.
        json: String,
    },
    /// Its arguments are complete. A malformed call or one cut short has no such event.
    CallEnd {
        /// The call's index.
        index: usize,
    },
}

impl ReplyEvent {
    /// The answer text of this event; empty for reasoning and tool calls.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }
}

/// Parses a reply's text incrementally.
#[derive(Debug)]
pub struct ReplyParser {
    format: OutputFormat,
    options: ParseOptions,
    parser: OutputParser,
}

impl ReplyParser {
    pub(crate) fn new(format: OutputFormat, options: ParseOptions) -> Self {
        Self {
            format,
            parser: OutputParser::new(format, options.clone()),
            options,
        }
    }

    /// A parser in the initial state, for another choice of the same request.
    pub fn restarted(&self) -> Self {
        Self::new(self.format, self.options.clone())
    }

    /// Consumes more text. Returns the events it completes, if any.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        to_events(self.parser.push(text))
    }

    /// Ends the reply. Returns what was held back.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        to_events(self.parser.finish())
    }
}

fn to_events(pieces: Vec<OutputPiece>) -> Vec<ReplyEvent> {
    let event = |piece| match piece {
        OutputPiece::Reasoning(text) => ReplyEvent::Reasoning(text),
        OutputPiece::Text(text) => ReplyEvent::Text(text),
        OutputPiece::CallStart { index, name, id } => ReplyEvent::CallStart {
            index,
            id: id.unwrap_or_else(fresh_id),
            name,
        },
        OutputPiece::CallArguments { index, json } => ReplyEvent::CallArguments { index, json },
        OutputPiece::CallEnd { index } => ReplyEvent::CallEnd { index },
    };
    pieces.into_iter().map(event).collect()
}

/// Nine letters and digits, the only form Mistral's templates accept.
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

/// A complete reply, accumulated from its events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reply {
    /// The reasoning before the answer; empty if there was none.
    pub reasoning: String,
    /// The answer.
    pub text: String,
    /// The calls, in the order the model made them.
    pub tool_calls: Vec<ToolCall>,
}

impl Reply {
    /// Appends one event. Without the white space that models write before reasoning, and between
    /// reasoning and calls, where it means nothing.
    pub fn add(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Reasoning(text) if self.reasoning.is_empty() => {
                self.reasoning.push_str(text.trim_start());
            }
            ReplyEvent::Reasoning(text) => self.reasoning.push_str(text),
            ReplyEvent::Text(text) => self.text.push_str(text),
            ReplyEvent::CallStart { id, name, .. } => {
                if self.text.trim().is_empty() {
                    self.text.clear();
                }
                self.tool_calls.push(ToolCall {
                    id: id.clone(),
                    name: name.clone(),
                    arguments: String::new(),
                });
            }
            ReplyEvent::CallArguments { index, json } => {
                if let Some(call) = self.tool_calls.get_mut(*index) {
                    call.arguments.push_str(json);
                }
            }
            ReplyEvent::CallEnd { .. } => {}
        }
    }

    /// The assistant message of this reply.
    pub fn into_message(self) -> Message {
        let Self {
            reasoning,
            text,
            tool_calls,
        } = self;
        Message {
            reasoning: Some(reasoning).filter(|reasoning| !reasoning.is_empty()),
            tool_calls,
            ..Message::new(Role::Assistant, MessageContent::Text(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ids_are_alphanumeric_and_unique() {
        let ids: std::collections::HashSet<String> = (0..100).map(|_| fresh_id()).collect();
        assert_eq!(ids.len(), 100);
        for id in ids {
            assert_eq!(id.len(), 9);
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        }
    }
}
