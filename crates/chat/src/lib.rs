//! Conversations on top of the engine: messages become a prompt, and replies join the history.
//!
//! What it leaves to others: templates and tokenizers themselves (`text`), generating (`engine`),
//! wire formats (`server`).

mod conversation;
mod error;
mod lower;
mod message;

pub use conversation::Conversation;
pub use error::ChatError;
pub use lower::Chat;
pub use message::{ChatRequest, Message, Role};
