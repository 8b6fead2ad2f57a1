//! Everything that can end a chore early.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{message}")]
    Usage { message: String },

    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },

    #[error("{}: {source}", path.display())]
    Manifest {
        path: PathBuf,
        source: toml::de::Error,
    },

    #[error("`{command}` could not be started: {source}")]
    Start {
        command: String,
        source: std::io::Error,
    },

    #[error("`{command}` failed ({status})")]
    Command {
        command: String,
        status: std::process::ExitStatus,
    },

    #[error("{}: {why}", path.display())]
    Model { path: PathBuf, why: String },

    #[error(
        "llama.cpp could not be built, for the reason above ({source}); it needs a C++ compiler \
         and a package index, from which it is fetched with what builds it"
    )]
    LlamaCpp { source: Box<Error> },

    #[error("`{command}` answered with {what}")]
    Answer { command: String, what: String },

    #[error("{what} is missing: {remedy}")]
    Missing { what: String, remedy: String },

    #[error("tidy: {count} violations")]
    Tidy { count: usize },

    #[error("test: failed stages: {}", stages.join(", "))]
    Stages { stages: Vec<&'static str> },
}
