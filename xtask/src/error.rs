//! The error type of all commands.

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

    #[error("{}: {problem}", path.display())]
    Model { path: PathBuf, problem: String },

    #[error(
        "building llama.cpp failed ({source}); see the output above. The build needs a C++ \
         compiler and access to a Python package index"
    )]
    LlamaCpp { source: Box<Error> },

    #[error("unexpected output of `{command}`: {problem}")]
    UnexpectedOutput { command: String, problem: String },

    #[error("{what} is missing: {remedy}")]
    Missing { what: String, remedy: String },

    #[error("tidy: {count} violations")]
    Tidy { count: usize },

    #[error("test: failed stages: {}", stages.join(", "))]
    Stages { stages: Vec<&'static str> },
}
