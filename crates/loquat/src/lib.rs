//! Large language models on the hardware you already have, as a library.
//!
//! Name a model, ask it something, and read the answer as it comes:
//!
//! ```no_run
//! fn main() -> Result<(), loquat::Error> {
//!     let model = loquat::Model::load("smollm2:135m")?;
//!     for event in model.chat("Why is the sky blue?").max_tokens(200).stream()? {
//!         print!("{}", event?.text());
//!     }
//!     Ok(())
//! }
//! ```
//!
//! The same without blocking, on any executor ([`Model::load_async`], [`Answer::next_event`], or
//! [`Answer::into_stream`] for a `futures` stream):
//!
//! ```no_run
//! # async fn ask() -> Result<(), loquat::Error> {
//! let model = loquat::Model::load_async("smollm2:135m").await?;
//! let mut answer = model.chat("Why is the sky blue?").stream()?;
//! while let Some(event) = answer.next_event().await {
//!     print!("{}", event?.text());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! * A model is named as on the command line: a path, a catalog name, or a hub's `owner/name`.
//! * [`Chat`] and [`Continuation`] hold an answer to a schema, a regular expression, choices or a
//!   grammar; a [`Chat`] offers tools.
//! * Dropping an [`Answer`] cancels it; a [`Canceller`] does so from elsewhere.
//! * One [`Model`] answers many at once, from any thread; cloning it shares it.
//!
//! What the command line and the server are built from is here too ([`ModelFiles`], [`backends`],
//! [`sampling`]); it leaves printing to them.

mod answer;
mod ask;
pub mod backends;
mod error;
mod files;
pub mod human;
pub mod machine;
mod model;
pub mod sampling;

pub use answer::{Answer, AnswerStream, Canceller, Ended};
pub use ask::{Chat, Continuation};
pub use error::Error;
pub use files::{ModelFiles, Origin};
pub use model::{Model, ModelOptions};

pub use loquat_chat::{
    Conversation, Effort, Message, MessageContent, Reply, ReplyEvent as Event, Role, Thinking,
    Tool, ToolCall, ToolChoice,
};
pub use loquat_engine::{EngineOptions, FinishReason, SamplingParams, Timings, Usage};
pub use loquat_grammar::GrammarSource;
pub use loquat_session::{KvFormat, MemoryBudget, Precision, SessionOptions};
pub use loquat_store::{FileKind, HubOptions, NoProgress, Progress, StoreOptions};
pub use loquat_text::ChatTemplate;

/// So that what the guide shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Guide;
