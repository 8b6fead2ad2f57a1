//! A model hub with the protocol and the cache of the Hugging Face Hub.
//!
//! All calls block, and nothing here knows which files a model needs. The cache is shared with
//! Python's `huggingface_hub` and other tools (see `layout.rs`). The order of a fetch keeps it
//! safe: take the blob's lock, write its bytes and their journal, check the hash, rename the file,
//! link it into the snapshot, and move the revision's ref last.

mod cache;
mod client;
mod digest;
mod download;
mod error;
mod fetch;
mod journal;
mod layout;
mod listing;
mod lock;
mod options;
mod partial_file;
mod retry;
mod snapshot_links;
mod tuning;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cache::{CachedFile, CachedSnapshot, DamagedFile, Leftover};
pub use error::{HubError, WrongHash};
pub use options::HubOptions;
#[doc(hidden)]
pub use retry::RetryPolicy;
#[doc(hidden)]
pub use tuning::DownloadTuning;

use client::Client;
use layout::RepoDir;

/// A repository of models at a revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HubRepo {
    /// `owner/name`.
    pub id: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

impl HubRepo {
    /// The repository's main branch.
    pub fn main(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            revision: "main".to_owned(),
        }
    }
}

/// A file as a hub lists it. Mirrors may leave out everything but the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Within the repository, with `/` between folders.
    pub path: String,
    /// Bytes of the file.
    pub size: Option<u64>,
    /// For large files, stored in LFS.
    pub sha256: Option<String>,
    /// Git's blob hash; for large files, of the LFS pointer.
    pub blob_id: Option<String>,
}

/// The files of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The commit's hash.
    pub commit: String,
    /// Every file of the commit.
    pub files: Vec<RemoteFile>,
}

/// A hub and its cache.
///
/// Holds no open files and no locks between calls. Any number of instances, processes and other
/// tools may share one cache.
pub struct Hub {
    client: Client,
    cache_dir: PathBuf,
    offline: bool,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("hub", &self.client.hub())
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// Resolves the hub's address and cache; accesses neither.
    pub fn open(options: HubOptions) -> Result<Self, HubError> {
        Self::open_tuned(options, &DownloadTuning::default())
    }

    #[doc(hidden)]
    pub fn open_tuned(options: HubOptions, tuning: &DownloadTuning) -> Result<Self, HubError> {
        let resolved = options.resolve()?;
        Ok(Self {
            client: Client::new(&resolved, tuning),
            cache_dir: resolved.cache_dir,
            offline: resolved.offline,
        })
    }

    /// Where downloaded files are stored.
    pub fn cache_dir(&self) -> &Path {
        &self.cache_dir
    }

    /// Whether the options or the environment forbid the network.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// The hub's name in messages.
    pub fn name(&self) -> &str {
        self.client.hub()
    }

    /// Returns the status of a request to the hub, even when offline. Any status means that the hub
    /// is reachable.
    pub fn ping(&self, timeout: Duration) -> Result<u16, HubError> {
        self.client.ping(timeout)
    }

    /// Lists the repository at its revision. Offline, lists the cached files, which may be
    /// incomplete.
    pub fn listing(&self, repo: &HubRepo) -> Result<Listing, HubError> {
        if !self.offline {
            self.dir(repo)?;
            return listing::from_hub(&self.client, repo);
        }
        self.cached_listing(repo)?
            .ok_or_else(|| HubError::NotCached {
                repo: repo.id.clone(),
                revision: repo.revision.clone(),
                cache: self.cache_dir.clone(),
            })
    }

    /// Lists the cached files of the revision, which may be incomplete. Uses no network.
    pub fn cached_listing(&self, repo: &HubRepo) -> Result<Option<Listing>, HubError> {
        let dir = self.dir(repo)?;
        Ok(listing::from_cache(&dir, &repo.revision))
    }

    fn dir(&self, repo: &HubRepo) -> Result<RepoDir, HubError> {
        let HubRepo { id, revision } = repo;
        if !layout::is_repo_id(id) {
            return Err(HubError::BadRepo { id: id.clone() });
        }
        if !layout::is_revision(revision) {
            return Err(HubError::BadRevision {
                revision: revision.clone(),
            });
        }
        Ok(RepoDir::for_repo(&self.cache_dir, id))
    }
}
