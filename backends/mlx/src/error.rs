use std::path::PathBuf;

use loquat_session::{OpenError, SessionError};
use thiserror::Error;

/// Why MLX refused an operation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("MLX: {0}")]
pub struct MlxError(pub String);

impl From<MlxError> for OpenError {
    fn from(error: MlxError) -> Self {
        OpenError::Device(error.to_string())
    }
}

impl From<MlxError> for SessionError {
    fn from(error: MlxError) -> Self {
        SessionError::Device(error.to_string())
    }
}

/// Why the library could not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoadError {
    #[error("This build has no MLX: {why}")]
    NotBuilt { why: &'static str },
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    #[error("{} is damaged: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{} cannot be loaded: {why}", path.display())]
    Refused { path: PathBuf, why: String },
    #[error("{} belongs to another version of Loquat", path.display())]
    Foreign { path: PathBuf },
}
