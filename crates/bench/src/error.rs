use std::io;
use std::path::PathBuf;

use loquat_engine::EngineError;
use loquat_grammar::GrammarError;
use loquat_server::ServeError;
use loquat_session::Memory;
use loquat_synthetic::SyntheticError;
use thiserror::Error;

/// Why a scenario could not be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    #[error("{what} must be {expected}")]
    Usage { what: String, expected: String },
    #[error(
        "{what}: this does not fit a context of {context} tokens and {kv_capacity} tokens of KV \
         cache. Use fewer tokens, or raise `--context` or `--memory`"
    )]
    DoesNotFit {
        what: String,
        context: usize,
        kv_capacity: usize,
    },
    #[error("no adapter can be made for this model: {0}")]
    Adapter(String),
    #[error(transparent)]
    Library(#[from] loquat::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    #[error(transparent)]
    Synthetic(#[from] SyntheticError),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot write the figure {}: {reason}", path.display())]
    Figure { path: PathBuf, reason: String },
    #[error("--draw: {0}")]
    FigureField(String),
    #[error("over HTTP: {0}")]
    Http(io::Error),
    #[error("cannot measure the startup: {0}")]
    Startup(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl BenchError {
    pub(crate) fn does_not_fit(what: String, context: usize, memory: &Memory) -> Self {
        Self::DoesNotFit {
            what,
            context,
            kv_capacity: memory.kv_capacity,
        }
    }
}
