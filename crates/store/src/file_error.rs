//! A failed access to a file.

use std::io;
use std::path::{Path, PathBuf};

/// An access to a file or directory that failed.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {}: {cause}", path.display())]
pub struct FileError {
    /// What was tried, as a verb phrase.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// The system's error.
    pub cause: io::Error,
}

impl FileError {
    pub(crate) fn new(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self {
            action,
            path: path.to_owned(),
            cause,
        }
    }

    /// Whether the disk, or the user's share of it, is full.
    pub fn is_disk_full(&self) -> bool {
        matches!(
            self.cause.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }
}
