//! What can go wrong between a hub and its cache, always with what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::options::{
    CACHE_VARIABLE, ENDPOINT_VARIABLE, OFFLINE_VARIABLE, OUR_OFFLINE_VARIABLE, TOKEN_VARIABLE,
};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    #[error(
        "this account has no home directory to keep models in; name a directory in \
         {CACHE_VARIABLE}"
    )]
    NoCacheDir,

    #[error("{name} is {value:?}, and {wanted} is needed")]
    BadOption {
        name: &'static str,
        value: String,
        wanted: &'static str,
    },

    #[error("{id:?} is not the name of a hub repository; those look like owner/name")]
    BadRepo { id: String },

    #[error("{revision:?} is not a revision; give a branch, a tag or a commit")]
    BadRevision { revision: String },

    #[error(
        "the repository {repo} does not exist on {hub}, or is private; check its name, and if it \
         is private put a token that may read it in {TOKEN_VARIABLE}"
    )]
    RepoNotFound { repo: String, hub: String },

    #[error(
        "{repo} has no revision {revision:?} on {hub}; leave the revision away for its main branch"
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
            true => "try again, with a token of the account that accepted them in HF_TOKEN",
            false => "put an access token of that account in HF_TOKEN",
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
            true => "check the token in HF_TOKEN: it may have expired, or may not read this",
            false => "put an access token in HF_TOKEN",
        }
    )]
    Refused {
        repo: String,
        hub: String,
        status: u16,
        has_token: bool,
    },

    #[error(
        "{host} asks to slow down{}; wait and try again, or put an access token in \
         {TOKEN_VARIABLE}, which allows more",
        match wait {
            Some(wait) => format!(" and come back in {} seconds", wait.as_secs()),
            None => String::new(),
        }
    )]
    RateLimited {
        host: String,
        wait: Option<Duration>,
    },

    #[error("{host} failed with status {status}, also when tried again; try later")]
    Server { host: String, status: u16 },

    #[error(
        "{host} cannot be reached: {cause}; check the network, or name a mirror in \
         {ENDPOINT_VARIABLE}"
    )]
    Unreachable { host: String, cause: String },

    #[error("{host} answered {what} in a way that cannot be used: {problem}")]
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
        "the disk of {} has {free} bytes free, and {needed} are needed; free some space, or name a \
         directory on another disk in {CACHE_VARIABLE}", dir.display()
    )]
    NoRoom {
        dir: PathBuf,
        needed: u64,
        free: u64,
    },

    #[error(
        "the disk of {} is full; what has been downloaded is kept, so free some space and try \
         again, or name a directory on another disk in {CACHE_VARIABLE}", dir.display()
    )]
    DiskFull { dir: PathBuf },

    #[error(
        "{repo} at {revision} is not in the cache {}, and this is offline; pull it once without \
         --offline, {OFFLINE_VARIABLE} and {OUR_OFFLINE_VARIABLE}", cache.display()
    )]
    NotCached {
        repo: String,
        revision: String,
        cache: PathBuf,
    },

    #[error(
        "{repo} is not whole in the cache, and this is offline: {} missing; pull it once without \
         --offline, {OFFLINE_VARIABLE} and {OUR_OFFLINE_VARIABLE}",
        match &files[..] {
            [file] => format!("{file} is"),
            files => format!("{} are", files.join(", ")),
        }
    )]
    FilesNotCached { repo: String, files: Vec<String> },

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

/// A download whose content is not what the hub listed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{file} of {repo} was discarded: its {kind} is {found}, and {expected} is right; try again, \
     and if it stays so, {hub} serves a damaged file"
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

    /// Whether another source of the same model might fare better.
    pub fn is_of_the_source(&self) -> bool {
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
