//! Errors of the hub and its cache; every message says what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::file_error::FileError;

use super::options::{
    CACHE_VARIABLE, ENDPOINT_VARIABLE, LOQUAT_OFFLINE_VARIABLE, OFFLINE_VARIABLE, TOKEN_VARIABLE,
};

/// Why the hub or its cache did not provide a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// There is no directory for the cache.
    #[error("this account has no home directory for models; set {CACHE_VARIABLE} to a directory")]
    NoCacheDir,

    /// An option or environment variable has an invalid value.
    #[error("{name} is {value:?}, expected {expected}")]
    BadOption {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },

    /// A repository's name is malformed.
    #[error("{id:?} is not a hub repository name; use owner/name")]
    BadRepo {
        /// The name.
        id: String,
    },

    /// A revision's name is malformed.
    #[error("{revision:?} is not a revision; use a branch, a tag or a commit")]
    BadRevision {
        /// The name.
        revision: String,
    },

    /// The hub has no such repository, or hides it.
    #[error(
        "the repository {repo} does not exist on {hub} or is private; check its name, or set \
         {TOKEN_VARIABLE} to a token that can read it"
    )]
    RepoNotFound {
        /// `owner/name`.
        repo: String,
        /// The hub's name.
        hub: String,
    },

    /// The repository has no such revision.
    #[error(
        "{repo} has no revision {revision:?} on {hub}; omit the revision to use its main branch"
    )]
    RevisionNotFound {
        /// `owner/name`.
        repo: String,
        /// The revision.
        revision: String,
        /// The hub's name.
        hub: String,
    },

    /// The repository has no such file at the revision.
    #[error("{repo} has no file {file} at {revision} on {hub}; check the name of the file")]
    FileNotFound {
        /// `owner/name`.
        repo: String,
        /// The revision.
        revision: String,
        /// The file's path in the repository.
        file: String,
        /// The hub's name.
        hub: String,
    },

    /// The repository's terms must be accepted first.
    #[error(
        "{repo} is gated: accept its terms at {page}, then {}",
        if *has_token {
            "try again, with HF_TOKEN set to a token of the account that accepted them"
        } else {
            "set HF_TOKEN to an access token of that account"
        }
    )]
    Gated {
        /// `owner/name`.
        repo: String,
        /// The web page with the terms.
        page: String,
        /// Whether the request had an access token.
        has_token: bool,
    },

    /// The hub refuses access.
    #[error(
        "{hub} refuses access to {repo} (status {status}); {}",
        if *has_token {
            "check HF_TOKEN: the token may have expired or lack read access"
        } else {
            "set HF_TOKEN to an access token"
        }
    )]
    Refused {
        /// `owner/name`.
        repo: String,
        /// The hub's name.
        hub: String,
        /// The HTTP status.
        status: u16,
        /// Whether the request had an access token.
        has_token: bool,
    },

    /// The hub limits the request rate, for longer than a download waits.
    #[error(
        "{host} limits the request rate{}; try again later, or set {TOKEN_VARIABLE} to an access \
         token for a higher limit",
        match wait {
            Some(wait) => format!(" (retry after {} seconds)", wait.as_secs()),
            None => String::new(),
        }
    )]
    RateLimited {
        /// The host.
        host: String,
        /// How long to wait, if the host says so.
        wait: Option<Duration>,
    },

    /// The host failed in every attempt.
    #[error("{host} failed with status {status} after several attempts; try again later")]
    Server {
        /// The host.
        host: String,
        /// The last HTTP status.
        status: u16,
    },

    /// The host could not be connected to.
    #[error(
        "{host} cannot be reached: {cause}; check the network, or set {ENDPOINT_VARIABLE} to a mirror"
    )]
    Unreachable {
        /// The host.
        host: String,
        /// Why, for display.
        cause: String,
    },

    /// The host's response is malformed.
    #[error("{host} sent an invalid response for {what}: {problem}")]
    BadAnswer {
        /// The host.
        host: String,
        /// What was requested, for display.
        what: String,
        /// What is wrong with the response.
        problem: String,
    },

    /// A download does not have the hash that the hub states.
    #[error("{0}")]
    WrongHash(Box<WrongHash>),

    /// A file changed on the hub in every attempt to download it.
    #[error("{file} of {repo} kept changing while it was downloaded; try again later")]
    KeepsChanging {
        /// `owner/name`.
        repo: String,
        /// The file's path in the repository.
        file: String,
    },

    /// The disk is known to have too little room for a download.
    #[error(
        "the disk of {} has {free} bytes free, and {needed} are needed; free some space, or set \
         {CACHE_VARIABLE} to a directory on another disk", dir.display()
    )]
    NoRoom {
        /// The directory of the download.
        dir: PathBuf,
        /// Bytes the download needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },

    /// The disk became full during a download.
    #[error(
        "the disk of {} is full; the partial download is kept; free some space and try again, or set \
         {CACHE_VARIABLE} to a directory on another disk", dir.display()
    )]
    DiskFull {
        /// The directory of the download.
        dir: PathBuf,
    },

    /// The store is offline and the revision is not in the cache.
    #[error(
        "{repo} at {revision} is not in the cache {}, and the store is offline; pull it once without \
         --offline, {OFFLINE_VARIABLE} and {LOQUAT_OFFLINE_VARIABLE}", cache.display()
    )]
    NotCached {
        /// `owner/name`.
        repo: String,
        /// The revision.
        revision: String,
        /// The cache directory.
        cache: PathBuf,
    },

    /// The store is offline and files are missing from the cache.
    #[error(
        "{repo} is incomplete in the cache, and the store is offline: {} missing; pull it once without \
         --offline, {OFFLINE_VARIABLE} and {LOQUAT_OFFLINE_VARIABLE}",
        match &files[..] {
            [file] => format!("{file} is"),
            files => format!("{} are", files.join(", ")),
        }
    )]
    FilesNotCached {
        /// `owner/name`.
        repo: String,
        /// The missing files.
        files: Vec<String>,
    },

    /// Access to a file or directory failed.
    #[error("{0}; check its permissions, or set {CACHE_VARIABLE} to another directory")]
    Io(FileError),
}

/// A download whose hash differs from the hub's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file} of {repo} was discarded: its {kind} is {found}, expected {expected}; try again; if this \
     repeats, {hub} serves a damaged file"
)]
pub struct WrongHash {
    /// `owner/name`.
    pub repo: String,
    /// The file's path in the repository.
    pub file: String,
    /// The hash function, for display.
    pub kind: &'static str,
    /// The hub's hash.
    pub expected: String,
    /// The download's hash.
    pub found: String,
    /// The hub's name.
    pub hub: String,
}

impl HubError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        let error = FileError::new(action, path, cause);
        if error.is_disk_full() {
            let dir = path.parent().unwrap_or(path).to_owned();
            return Self::DiskFull { dir };
        }
        Self::Io(error)
    }

    /// Whether another source of the same model may succeed.
    pub fn is_source_failure(&self) -> bool {
        !matches!(
            self,
            Self::NoCacheDir
                | Self::BadOption { .. }
                | Self::NoRoom { .. }
                | Self::DiskFull { .. }
                | Self::Io(_)
        )
    }
}
