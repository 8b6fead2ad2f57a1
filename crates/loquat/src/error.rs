use loquat_chat::{ChatError, Reply};
use loquat_engine::EngineError;
use loquat_grammar::GrammarError;
use loquat_media::MediaError;
use loquat_session::OpenError;
use loquat_store::StoreError;
use loquat_text::TextError;
use loquat_weights::WeightsError;
use thiserror::Error;

use crate::{PromptEmbeddingsError, UnknownBackend};

/// Any failure between a model's name and the end of its answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The model was not found or not downloaded.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The model's files are damaged or not supported.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The backend refused the model or the session options.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The tokenizer or the chat template failed.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The chat request is invalid for this model.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// An image or video file cannot be read.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// Raw input embeddings that this model cannot read.
    #[error("the prompt's embeddings cannot be used: the tensor {0}")]
    PromptEmbeddings(#[from] PromptEmbeddingsError),
    /// The constraint is invalid.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// The engine refused or failed the request.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No backend has this name.
    #[error(transparent)]
    UnknownBackend(#[from] UnknownBackend),
    /// The chosen backend cannot run on this machine.
    #[error("backend `{name}` cannot run on this machine: {why} {remedy}")]
    UnavailableBackend {
        /// The backend's name.
        name: &'static str,
        /// What is missing.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// No backend of this build can run on this machine.
    #[error("no backend can run on this machine. {reasons}")]
    NoBackend {
        /// Why, backend by backend.
        reasons: String,
    },
    /// The model was made from a session, not from files.
    #[error("this model's files are not known, so no adapter can be checked against them")]
    NoAdapterBase,
    /// The sampling defaults in the model's files are out of range.
    #[error("the model's own sampling defaults are invalid: {0}")]
    Defaults(EngineError),
    /// A [`Canceller`](crate::Canceller) cancelled the answer.
    #[error("the answer was cancelled")]
    Cancelled,
    /// A constrained answer reached `max_tokens` before it satisfied its constraint.
    #[error(
        "the answer reached its token limit before it satisfied its constraint. Raise `max_tokens`."
    )]
    Truncated(Box<Reply>),
    /// The model still called tools in the last round of [`Chat::run_tools`](crate::Chat::run_tools).
    #[error("the model still calls tools after {rounds} rounds. Allow more rounds.")]
    ToolRounds {
        /// The limit.
        rounds: usize,
    },
    /// The model's backend computes no embeddings.
    #[error("the model `{model}` gives no embeddings: its backend computes no hidden states")]
    NoEmbeddings {
        /// The model's name.
        model: String,
    },
    /// The system refused a thread.
    #[error("cannot start a thread to load the model: {0}")]
    Thread(std::io::Error),
    /// Loading panicked.
    #[error("loading the model panicked. This is a bug in Loquat; please report it.")]
    LoadPanicked,
}
