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
        "{} contains no checkpoint: no golden.safetensors, config.json or .gguf file, and no folder \
         with one",
        path.display()
    )]
    NoCheckpoint { path: PathBuf },
    #[error("no checkpoint name contains {name:?}")]
    NoMatch { name: String },
    #[error("crates/testkit contains no goldens")]
    NoCommittedGoldens,
    #[error("backend `{backend}` cannot run here: {why} {remedy}")]
    Unavailable {
        backend: &'static str,
        why: String,
        remedy: String,
    },
    #[error("the support matrix needs a run in which the committed set passes")]
    NoMatrix,
    #[error(
        "backend `{backend}` is not in the support matrix. Leave the matrix out, or use one of: {known}"
    )]
    NotInMatrix {
        backend: &'static str,
        known: String,
    },
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
