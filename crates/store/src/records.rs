//! Records about models: what the store downloaded, and when models were last used.
//!
//! Each record is a small file that is replaced atomically. No record is needed to run a model, so
//! read and write failures are not errors. Drafts are written under a lock: one that exists while
//! the lock is free belongs to a process that was killed.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Store, staging};

/// Starts the names of records that are being written.
const DRAFT: &str = ".tmp";
/// Held while a record is written.
const LOCK: &str = "records";

/// What a download was verified against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HashSource {
    /// The catalog's SHA-256.
    Catalog,
    /// The hub's hashes.
    Hub,
}

/// A model that the store downloads into the hub's cache. Written before the first byte, so that an
/// interrupted download neither counts as complete nor leaves files without an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PullRecord {
    pub repo: String,
    pub commit: String,
    /// The GGUF's path; its snapshot may hold others.
    pub file: Option<String>,
    pub verified: HashSource,
    /// The files it needs.
    pub files: Vec<String>,
    /// Those of them that the store downloaded; only these may be removed.
    #[serde(rename = "brought")]
    pub downloaded: Vec<String>,
    /// Whether it is an adapter of a model.
    #[serde(default)]
    pub adapter: bool,
    /// Whether the store downloaded its weights.
    #[serde(rename = "ours")]
    pub owned: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct UsageRecord {
    at: u64,
}

/// A model's record key.
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

    pub(crate) fn pull_record(&self, key: &str) -> Option<PullRecord> {
        read(&self.pulled_path(key))
    }

    pub(crate) fn record_pulled(&self, key: &str, pulled: &PullRecord) -> io::Result<()> {
        self.replace_record(&self.pulled_path(key), pulled)
    }

    /// Those of a model's downloaded files that other models need, such as the vision tower of
    /// several quants. They become files that one of those downloaded.
    pub(crate) fn hand_over_shared(&self, key: &str, downloaded: &[String]) -> Vec<String> {
        let Some(own) = self.pull_record(key) else {
            return Vec::new();
        };
        let own_path = self.pulled_path(key);
        let notes = fs::read_dir(self.cache_dir.join("pulled"));
        let paths = notes
            .into_iter()
            .flatten()
            .flatten()
            .map(|note| note.path());
        let mut shared: Vec<String> = Vec::new();
        for path in paths.filter(|path| *path != own_path) {
            let Some(mut other) = read::<PullRecord>(&path) else {
                continue;
            };
            if (&other.repo, &other.commit) != (&own.repo, &own.commit) {
                continue;
            }
            let needed = downloaded.iter();
            let needed = needed.filter(|file| other.files.contains(file) && !shared.contains(file));
            let needed: Vec<String> = needed.cloned().collect();
            if needed.is_empty() {
                continue;
            }
            other.downloaded.extend(needed.iter().cloned());
            other.downloaded.sort_unstable();
            other.downloaded.dedup();
            if let Err(error) = self.replace_record(&path, &other) {
                tracing::warn!("could not update {}: {error}", path.display());
            }
            shared.extend(needed);
        }
        shared
    }

    /// The repositories that the store downloaded from.
    pub(crate) fn repos_pulled(&self) -> HashSet<String> {
        let notes = fs::read_dir(self.cache_dir.join("pulled"));
        let notes = notes.into_iter().flatten().flatten();
        let repo = |note: fs::DirEntry| read(&note.path()).map(|PullRecord { repo, .. }| repo);
        notes.filter_map(repo).collect()
    }

    /// When the model was last run, as Unix time in seconds.
    pub(crate) fn last_used(&self, key: &str) -> Option<u64> {
        read(&self.used_path(key)).map(|UsageRecord { at }| at)
    }

    pub(crate) fn stamp_used(&self, key: &str) {
        let path = self.used_path(key);
        if let Err(error) = self.replace_record(&path, &UsageRecord { at: now() }) {
            tracing::warn!(
                "could not record in {} that the model was used: {error}",
                path.display()
            );
        }
    }

    fn replace_record(&self, path: &Path, value: &impl Serialize) -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        staging::locked(&self.cache_dir, LOCK, || {
            let mut draft = tempfile::Builder::new().prefix(DRAFT).tempfile_in(dir)?;
            serde_json::to_writer(&mut draft, value)?;
            draft.flush()?;
            draft.persist(path)?;
            Ok(())
        })
    }

    /// The drafts of killed processes, with their sizes.
    pub(crate) fn abandoned_drafts(&self) -> Vec<(PathBuf, u64)> {
        if self.drafts().is_empty() {
            return Vec::new();
        }
        staging::if_free(&self.cache_dir, LOCK, || self.drafts()).unwrap_or_default()
    }

    /// Removes [`Store::abandoned_drafts`] and returns them.
    pub(crate) fn sweep_drafts(&self) -> Vec<(PathBuf, u64)> {
        let mut drafts = self.abandoned_drafts();
        drafts.retain(|(path, _)| fs::remove_file(path).is_ok());
        drafts
    }

    fn drafts(&self) -> Vec<(PathBuf, u64)> {
        let folders = ["pulled", "used"].map(|folder| fs::read_dir(self.cache_dir.join(folder)));
        let entries = folders.into_iter().flatten().flatten().flatten();
        let drafts = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(DRAFT));
        drafts
            .map(|entry| {
                (
                    entry.path(),
                    entry.metadata().map_or(0, |found| found.len()),
                )
            })
            .collect()
    }

    /// Removes the model's records.
    pub(crate) fn forget(&self, key: &str) {
        for path in [self.pulled_path(key), self.used_path(key)] {
            // A leftover record of a removed model is harmless.
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
