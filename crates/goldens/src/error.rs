//! Errors that end a run.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(
        "{} holds no checkpoint: neither golden.safetensors, config.json nor a .gguf file, \
         nor folders with them",
        path.display()
    )]
    NoCheckpoint { path: PathBuf },
    #[error("no checkpoint has {name:?} in its name")]
    NothingNamed { name: String },
    #[error("the committed set is empty")]
    NothingCommitted,
    #[error("backend `{backend}` cannot run here: {why} {remedy}")]
    Unavailable {
        backend: &'static str,
        why: String,
        remedy: String,
    },
    #[error("no support matrix: the committed set fails")]
    NoMatrix,
    #[error(
        "{}, line {line}, differs from the run:\n  page: {page}\n  run:  {run}\n\
         To update it, run: cargo xtask goldens --committed --backend {backend} --write-matrix {}",
        path.display(), path.display()
    )]
    StaleMatrix {
        path: PathBuf,
        backend: &'static str,
        line: usize,
        page: String,
        run: String,
    },
    #[error("cannot write the results: {0}")]
    Output(#[from] std::io::Error),
    #[error("cannot write the results: {0}")]
    Json(#[from] serde_json::Error),
}
