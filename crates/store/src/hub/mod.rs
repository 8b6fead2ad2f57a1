//! A hub of models, by the protocol and the cache of the Hugging Face Hub.
//!
//! Everything blocks, and nothing here knows which files a model needs. The cache is the one that
//! Python's `huggingface_hub` and others keep (`layout.rs` draws it), so a model is on the machine
//! once, whoever brought it. The order of things in a fetch is what makes that safe: a blob's lock,
//! its bytes with a journal of them, its hash, its rename into place, the snapshot's link, and the
//! revision's ref last.

mod cached;
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
mod part;
mod patience;
mod place;
mod tuning;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use cached::{CachedFile, CachedSnapshot, Damaged, Leftover};
pub use error::{HubError, WrongHash};
pub use options::HubOptions;
#[doc(hidden)]
pub use patience::Patience;
#[doc(hidden)]
pub use tuning::Tuning;

use client::Client;
use layout::RepoDir;

/// A repository of models at a revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Repo {
    /// `owner/name`.
    pub id: String,
    /// A branch, a tag or a commit.
    pub revision: String,
}

impl Repo {
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
    pub size: Option<u64>,
    /// Of files that git keeps elsewhere (LFS), which are the large ones.
    pub sha256: Option<String>,
    /// The name git gives the content; for large files, that of a pointer to it.
    pub blob_id: Option<String>,
}

/// What a repository holds at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

/// A hub and the cache of what came from it.
///
/// Holds no open files and no locks between calls; any number may share one cache, in one process
/// or several, ours or not.
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
    /// Settles which hub and which cache; touches neither.
    pub fn open(options: HubOptions) -> Result<Self, HubError> {
        Self::open_tuned(options, &Tuning::default())
    }

    #[doc(hidden)]
    pub fn open_tuned(options: HubOptions, tuning: &Tuning) -> Result<Self, HubError> {
        let settled = options.settle()?;
        Ok(Self {
            client: Client::new(&settled, tuning),
            cache_dir: settled.cache_dir,
            offline: settled.offline,
        })
    }

    pub fn cache_dir(&self) -> &Path {
        &self.cache_dir
    }

    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// How messages call the hub.
    pub fn name(&self) -> &str {
        self.client.hub()
    }

    /// Whether the hub answers within so long, offline or not: any status is a sign of life.
    pub fn reach(&self, patience: Duration) -> Result<u16, HubError> {
        self.client.status(patience)
    }

    /// What the repository holds at its revision. Offline: what the cache holds of it, which may
    /// be a part.
    pub fn listing(&self, repo: &Repo) -> Result<Listing, HubError> {
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

    /// What the cache holds of the repository's revision, which may be a part; asks no network.
    pub fn cached_listing(&self, repo: &Repo) -> Result<Option<Listing>, HubError> {
        let dir = self.dir(repo)?;
        Ok(listing::from_cache(&dir, &repo.revision))
    }

    fn dir(&self, repo: &Repo) -> Result<RepoDir, HubError> {
        let Repo { id, revision } = repo;
        if !layout::is_repo_id(id) {
            return Err(HubError::BadRepo { id: id.clone() });
        }
        if !layout::is_revision(revision) {
            return Err(HubError::BadRevision {
                revision: revision.clone(),
            });
        }
        Ok(RepoDir::of(&self.cache_dir, id))
    }
}
