use std::path::PathBuf;

use loquat_spec::SpecError;
use loquat_weights::WeightsError;
use thiserror::Error;

/// Why there is no such model, or no such file.
#[derive(Debug, Error)]
pub enum SyntheticError {
    #[error("no shape is called `{name}`; there are: {known}")]
    UnknownShape { name: String, known: String },
    #[error("no format is called `{name}`; there are: {known}")]
    UnknownFormat { name: String, known: String },
    #[error("{container} has no `{format}`; the formats it has are: {known}")]
    Container {
        format: &'static str,
        container: &'static str,
        known: String,
    },
    #[error("{} is there already; name a path that is not", path.display())]
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
