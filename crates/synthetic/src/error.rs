use std::path::PathBuf;

use loquat_spec::SpecError;
use loquat_weights::WeightsError;
use thiserror::Error;

/// Why a model could not be generated or saved.
#[derive(Debug, Error)]
pub enum SyntheticError {
    #[error("`{name}` is not a shape. Use one of: {known}.")]
    UnknownShape { name: String, known: String },
    #[error("`{name}` is not a format. Use one of: {known}.")]
    UnknownFormat { name: String, known: String },
    #[error("{container} does not support `{format}`. Use one of: {known}.")]
    Container {
        format: &'static str,
        container: &'static str,
        known: String,
    },
    #[error("{} already exists. Use a path that does not exist.", path.display())]
    Exists { path: PathBuf },
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl From<SpecError> for SyntheticError {
    fn from(error: SpecError) -> Self {
        Self::Weights(error.into())
    }
}
