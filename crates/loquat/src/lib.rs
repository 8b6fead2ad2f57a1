//! Large language models on the hardware you already have, as a library.
//!
//! Load a model by name, ask it something, and print the answer while it is generated:
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
//! The same without blocking, on any executor ([`Model::load_async`] and [`Answer::next_event`], or
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
//! * [`Chat`] and [`Continuation`] constrain an answer to a schema, a regular expression, a choice
//!   or a grammar. A [`Chat`] offers tools, and [`Chat::run_tools`] runs them.
//! * Models with a vision tower read images and videos: [`Chat::image`], [`Chat::video`].
//! * [`Model::embed`] computes embeddings, [`Model::tokenize`] tokenizes, and
//!   [`Answer::tokens`] has log-probabilities.
//! * Dropping an [`Answer`] cancels it; a [`Canceller`] cancels it from elsewhere.
//! * One [`Model`] answers many requests at once, from any thread. Clones share it.
//!
//! The command line and the server are built on this crate. It prints nothing.
//!
//! Some methods expose types of the layers below: [`Model::engine`] an [`engine::Engine`],
//! [`ModelFiles`] a [`weights::Checkpoint`], [`Error`] the error of each layer. Those crates are
//! re-exported as the modules [`chat`], [`engine`], [`grammar`], [`media`], [`session`], [`store`],
//! [`text`] and [`weights`], so that `loquat` is the only dependency an application needs.
//!
//! Features: `serde` adds `Serialize` and `Deserialize` to messages, tools and reply events; `mlx`
//! adds the MLX backend on Linux (macOS always has it); `cuda` compiles the kernels of the CUDA
//! backend.
#![deny(missing_docs)]

mod adapters;
mod answer;
mod backend;
mod continuation;
mod embed;
mod error;
mod model;
mod model_files;
mod options;
mod progress;
mod prompt_embeddings;
mod request;
mod tools;

// Shared by the command line, the server and the benchmarks; not part of the public API.
#[doc(hidden)]
pub mod human;
#[doc(hidden)]
pub mod machine;
#[doc(hidden)]
pub mod sampling;

pub use adapters::{AdapterFile, OpenAdapters};
pub use answer::{Answer, AnswerStream, Canceller};
pub use backend::{
    BackendChoice, UnknownBackend, backends, cuda_program, has_gpu, is_experimental,
};
pub use continuation::ContinuationRequest;
pub use embed::normalize;
pub use error::Error;
pub use model::{DEFAULT_MAX_TOKENS, Model, ModelInputs, RequestDefaults};
pub use model_files::{ModelFiles, TemplateOrigin};
pub use options::{MmprojOption, ModelOptions};
pub use progress::LoadProgress;
pub use prompt_embeddings::{PromptEmbeddings, PromptEmbeddingsError};
pub use request::{Chat, Continuation};
pub use tools::{ToolConversation, ToolResult, Toolbox, after_call};

pub use loquat_chat::{
    ChatContext, ChatRequest, ContentPart, Conversation, Detail, Effort, Finish, Image,
    LoweredChat, Message, MessageContent, Reply, ReplyDecoder, ReplyDelta, ReplyEvent,
    ReplyOpening, Role, Thinking, Tool, ToolCall, ToolChoice, Video,
};
pub use loquat_cuda::{ComputeCapability, ProgramListing};
pub use loquat_engine::{
    EngineOptions, FinishReason, GenerateRequest, Logprobs, SamplingParams, Timings, TokenInfo,
    Usage,
};
pub use loquat_grammar::GrammarSource;
pub use loquat_session::{
    AdapterId, AdapterLimits, AppliedAdapter, Backend, KvFormat, MemoryBudget, Precision,
    SessionOptions,
};
pub use loquat_store::{FileKind, HubOptions, StoreOptions};
pub use loquat_text::ChatTemplate;

// The crates whose types appear in the signatures above.
pub use loquat_chat as chat;
pub use loquat_engine as engine;
pub use loquat_grammar as grammar;
pub use loquat_media as media;
pub use loquat_session as session;
pub use loquat_store as store;
pub use loquat_text as text;
pub use loquat_weights as weights;

/// Compiles the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct Guide;
