//! Errors of the hub and its cache; every message says what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::options::{
    CACHE_VARIABLE, ENDPOINT_VARIABLE, LOQUAT_OFFLINE_VARIABLE, OFFLINE_VARIABLE, TOKEN_VARIABLE,
};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    #[error("this account has no home directory for models; set {CACHE_VARIABLE} to a directory")]
    NoCacheDir,

    #[error("{name} is {value:?}, expected {expected}")]
    BadOption {
        name: &'static str,
        value: String,
        expected: &'static str,
    },

    #[error("{id:?} is not a hub repository name; use owner/name")]
    BadRepo { id: String },

    #[error("{revision:?} is not a revision; use a branch, a tag or a commit")]
    BadRevision { revision: String },

    #[error(
        "the repository {repo} does not exist on {hub} or is private; check its name, or set \
         {TOKEN_VARIABLE} to a token that can read it"
    )]
    RepoNotFound { repo: String, hub: String },

    #[error(
        "{repo} has no revision {revision:?} on {hub}; omit the revision to use its main branch"
    )]
    RevisionNotFound {
        repo: String,
        revision: String,
        hub: String,
    },

    #[error("{repo} has no file {file} at {revision} on {hub}; check the name of the file")]
    FileNotFound {
        repo: String,
        revision: String,
        file: String,
        hub: String,
    },

    #[error(
        "{repo} is gated: accept its terms at {page}, then {}",
        match has_token {
            true => "try again, with HF_TOKEN set to a token of the account that accepted them",
            false => "set HF_TOKEN to an access token of that account",
        }
    )]
    Gated {
        repo: String,
        page: String,
        has_token: bool,
    },

    #[error(
        "{hub} refuses access to {repo} (status {status}); {}",
        match has_token {
            true => "check HF_TOKEN: the token may have expired or lack read access",
            false => "set HF_TOKEN to an access token",
        }
    )]
    Refused {
        repo: String,
        hub: String,
        status: u16,
        has_token: bool,
    },

    #[error(
        "{host} limits the request rate{}; try again later, or set {TOKEN_VARIABLE} to an access \
         token for a higher limit",
        match wait {
            Some(wait) => format!(" (retry after {} seconds)", wait.as_secs()),
            None => String::new(),
        }
    )]
    RateLimited {
        host: String,
        wait: Option<Duration>,
    },

    #[error("{host} failed with status {status} after several attempts; try again later")]
    Server { host: String, status: u16 },

    #[error(
        "{host} cannot be reached: {cause}; check the network, or set {ENDPOINT_VARIABLE} to a mirror"
    )]
    Unreachable { host: String, cause: String },

    #[error("{host} sent an invalid response for {what}: {problem}")]
    BadAnswer {
        host: String,
        what: String,
        problem: String,
    },

    #[error("{0}")]
    WrongHash(Box<WrongHash>),

    #[error("{file} of {repo} kept changing while it was downloaded; try again later")]
    KeepsChanging { repo: String, file: String },

    #[error(
        "the disk of {} has {free} bytes free, and {needed} are needed; free some space, or set \
         {CACHE_VARIABLE} to a directory on another disk", dir.display()
    )]
    NoRoom {
        dir: PathBuf,
        needed: u64,
        free: u64,
    },

    #[error(
        "the disk of {} is full; the partial download is kept; free some space and try again, or set \
         {CACHE_VARIABLE} to a directory on another disk", dir.display()
    )]
    DiskFull { dir: PathBuf },

    #[error(
        "{repo} at {revision} is not in the cache {}, and the store is offline; pull it once without \
         --offline, {OFFLINE_VARIABLE} and {LOQUAT_OFFLINE_VARIABLE}", cache.display()
    )]
    NotCached {
        repo: String,
        revision: String,
        cache: PathBuf,
    },

    #[error(
        "{repo} is incomplete in the cache, and the store is offline: {} missing; pull it once without \
         --offline, {OFFLINE_VARIABLE} and {LOQUAT_OFFLINE_VARIABLE}",
        match &files[..] {
            [file] => format!("{file} is"),
            files => format!("{} are", files.join(", ")),
        }
    )]
    FilesNotCached { repo: String, files: Vec<String> },

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

/// A download whose hash differs from the hub's.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file} of {repo} was discarded: its {kind} is {found}, expected {expected}; try again; if this \
     repeats, {hub} serves a damaged file"
)]
pub struct WrongHash {
    pub repo: String,
    pub file: String,
    pub kind: &'static str,
    pub expected: String,
    pub found: String,
    pub hub: String,
}

impl HubError {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        if full.contains(&cause.kind()) {
            let dir = path.parent().unwrap_or(path).to_owned();
            return Self::DiskFull { dir };
        }
        Self::Io {
            action,
            path: path.to_owned(),
            cause,
        }
    }

    /// Whether another source of the same model may succeed.
    pub fn is_source_failure(&self) -> bool {
        !matches!(
            self,
            Self::NoCacheDir
                | Self::BadOption { .. }
                | Self::NoRoom { .. }
                | Self::DiskFull { .. }
                | Self::Io { .. }
        )
    }
}
