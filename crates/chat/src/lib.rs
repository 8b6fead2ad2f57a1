//! Chat on top of the engine: renders messages into a prompt, constrains the reply, and parses it
//! into reasoning, text and tool calls.
//!
//! It does not implement templates, tokenizers or output formats (`text`), grammars (`grammar`),
//! generation (`engine`) or wire formats (`server`).
#![deny(missing_docs)]

mod call_or_answer;
mod context;
mod continuation;
mod conversation;
mod decoder;
mod error;
mod forbidden_text;
mod later_system;
mod lower;
mod media;
mod media_prompt;
mod message;
mod plain_tools;
mod prefixed_answer;
mod prepared_media;
mod prompt;
mod quote;
mod reasoning_gate;
mod reply;
mod reply_rules;
mod request;
#[cfg(feature = "serde")]
mod stored_media;
mod template_traits;
#[cfg(test)]
mod testing;
mod thinking;
mod tool;

pub use context::ChatContext;
pub use conversation::Conversation;
pub use decoder::{Finish, ReplyDecoder, ReplyDelta};
pub use error::ChatError;
pub use loquat_media::{MediaError, Raster};
pub use lower::{BoundaryTokens, LoweredChat, render};
pub use media::{Detail, Image, Video};
pub use media_prompt::{MEDIA_MARKER, MediaReader, MediaRoom};
pub use message::{ContentPart, Message, MessageContent, Role, ToolCall};
pub use reply::{Reply, ReplyEvent, ReplyParser};
pub use request::{ChatRequest, Effort, ReplyOpening, Thinking};
pub use tool::{Tool, ToolChoice};
