use loquat_chat::{ChatError, Reply};
use loquat_engine::EngineError;
use loquat_grammar::GrammarError;
use loquat_session::OpenError;
use loquat_store::StoreError;
use loquat_text::TextError;
use loquat_weights::WeightsError;
use thiserror::Error;

/// Everything that can go wrong between a model's name and its last word.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("no backend is called `{name}`; there are auto, which chooses, and{all}")]
    UnknownBackend { name: String, all: String },
    #[error("backend `{name}` cannot run here; there are{all}")]
    UnavailableBackend { name: &'static str, all: String },
    #[error("no backend can run here; there are{all}")]
    NoBackend { all: String },
    #[error("the model's own sampling defaults cannot be used: {0}")]
    Defaults(EngineError),
    #[error("the answer was cancelled")]
    Cancelled,
    #[error(
        "the answer was cut at the limit before it had the form that was asked for; allow more \
         with `max_tokens`"
    )]
    Cut(Box<Reply>),
    #[error("cannot start a thread to load the model on: {0}")]
    Thread(std::io::Error),
    #[error("loading the model panicked, which is a bug of ours; please tell the issue tracker")]
    LoadingDied,
}
