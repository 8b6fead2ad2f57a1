//! Conversations on top of the engine: messages become a prompt, and a reply becomes thinking,
//! words and tool calls, held to what the request asks of them.
//!
//! What it leaves to others: templates, tokenizers and the formats themselves (`text`), grammars
//! (`grammar`), generating (`engine`), wire formats (`server`).

mod chat;
mod conversation;
mod decoder;
mod either;
mod error;
mod gate;
mod lower;
mod message;
mod plain_tools;
mod prefixed;
mod prompt;
mod quote;
mod reply;
mod request;
mod rules;
#[cfg(test)]
mod testing;
mod thinking;
mod tool;
mod without;

pub use chat::Chat;
pub use conversation::Conversation;
pub use decoder::{Finish, ReplyDecoder, ReplyDelta};
pub use error::ChatError;
pub use lower::{Ends, Lowered, render};
pub use message::{Content, Message, Role, ToolCall};
pub use reply::{Reply, ReplyEvent, ReplyParser};
pub use request::{ChatRequest, Effort, Thinking};
pub use tool::{Tool, ToolChoice};
