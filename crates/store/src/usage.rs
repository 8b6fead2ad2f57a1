//! What the store remembers of models beside their files: whom they came by, and when they were
//! last used.
//!
//! Each is a small file of its own, replaced whole, so that processes that write at once leave
//! one or the other and never half of both. None of it is needed to run a model: what cannot be
//! written or read is only not known.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Store;

/// What a download was held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verified {
    /// The catalog's own sha256.
    Catalog,
    /// What the hub states of its files.
    Hub,
}

/// A model that the store is bringing or has brought into the hub's cache: noted before its first
/// byte, so that whatever ends a download early leaves neither half a model that counts as whole
/// nor files that nobody owns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pulled {
    pub repo: String,
    pub commit: String,
    /// The GGUF, where it is one of perhaps several in its snapshot.
    pub file: Option<String>,
    pub verified: Verified,
    /// All that it needs, in order.
    pub files: Vec<String>,
    /// Those of them that were not there before; only these may be removed.
    pub brought: Vec<String>,
    /// Whether its weights are among those.
    pub ours: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Used {
    at: u64,
}

/// A model's name among files.
pub(crate) fn hub_key(repo: &str, commit: &str, file: Option<&str>) -> String {
    let mut key = format!("models/{repo}/{commit}");
    if let Some(file) = file {
        key = format!("{key}/{file}");
    }
    key.replace('/', "--")
}

impl Store {
    fn pulled_path(&self, key: &str) -> PathBuf {
        self.cache_dir.join("pulled").join(format!("{key}.json"))
    }

    fn used_path(&self, key: &str) -> PathBuf {
        self.cache_dir.join("used").join(format!("{key}.json"))
    }

    pub(crate) fn pulled(&self, key: &str) -> Option<Pulled> {
        read(&self.pulled_path(key))
    }

    pub(crate) fn record_pulled(&self, key: &str, pulled: &Pulled) -> io::Result<()> {
        replace(&self.pulled_path(key), pulled)
    }

    /// The repositories that the store brought something of.
    pub(crate) fn repos_pulled(&self) -> HashSet<String> {
        let notes = fs::read_dir(self.cache_dir.join("pulled"));
        let notes = notes.into_iter().flatten().flatten();
        let repo = |note: fs::DirEntry| read(&note.path()).map(|Pulled { repo, .. }| repo);
        notes.filter_map(repo).collect()
    }

    /// When the model was last located to be run, in seconds since 1970.
    pub(crate) fn last_used(&self, key: &str) -> Option<u64> {
        read(&self.used_path(key)).map(|Used { at }| at)
    }

    pub(crate) fn stamp_used(&self, key: &str) {
        let path = self.used_path(key);
        if let Err(error) = replace(&path, &Used { at: now() }) {
            tracing::warn!(
                "could not note in {} that the model is used: {error}",
                path.display()
            );
        }
    }

    /// The model is gone.
    pub(crate) fn forget(&self, key: &str) {
        for path in [self.pulled_path(key), self.used_path(key)] {
            // What stays says something of a model that is not there, which nobody asks about.
            let _ = fs::remove_file(path);
        }
    }
}

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn replace(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let mut draft = tempfile::NamedTempFile::new_in(dir)?;
    serde_json::to_writer(&mut draft, value)?;
    draft.flush()?;
    draft.persist(path)?;
    Ok(())
}
