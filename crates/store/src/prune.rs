//! What takes space and serves nobody.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::hub::Leftover;
use crate::pip::size_of;
use crate::staging;
use crate::usage::now;
use crate::{Held, Owner, Progress, Store, StoreError};

/// What to look for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// Also the store's own models that were not run, or brought, for so long.
    pub older_than: Option<Duration>,
}

/// Something that could go.
#[derive(Debug, Clone)]
pub enum Prunable {
    /// A work directory or a download that nobody is at work on any more, or content that no
    /// model uses.
    Leftover { path: PathBuf, bytes: u64 },
    /// A model that was not run for a while.
    Model(Box<Held>),
}

impl Prunable {
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Leftover { bytes, .. } => *bytes,
            Self::Model(held) => held.bytes,
        }
    }
}

impl Store {
    /// What `prune` would remove; removes nothing.
    pub fn prunable(&self, options: PruneOptions) -> Result<Vec<Prunable>, StoreError> {
        let mut found = Vec::new();
        for path in staging::orphans(&self.cache_dir) {
            let bytes = size_of(&path);
            found.push(Prunable::Leftover { path, bytes });
        }
        let repos = self.repos_pulled();
        let left = self.hub.leftovers(&|repo| repos.contains(repo))?;
        found.extend(left.into_iter().map(Prunable::from));
        let old = self.old(options)?.into_iter();
        found.extend(old.map(|held| Prunable::Model(Box::new(held))));
        Ok(found)
    }

    fn old(&self, options: PruneOptions) -> Result<Vec<Held>, StoreError> {
        let Some(age) = options.older_than else {
            return Ok(Vec::new());
        };
        let before = now().saturating_sub(age.as_secs());
        let old = |held: &Held| held.owner == Owner::Store && held.since() < before;
        Ok(self.held()?.into_iter().filter(old).collect())
    }

    /// Removes what [`Store::prunable`] finds, and says what went, a model by the bytes that it
    /// freed. What someone took up again in the meantime stays.
    pub fn prune(
        &self,
        options: PruneOptions,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Prunable>, StoreError> {
        let old = self.old(options)?;
        let mut removed: Vec<Prunable> = staging::sweep(&self.cache_dir)
            .into_iter()
            .map(|(path, bytes)| Prunable::Leftover { path, bytes })
            .collect();
        let repos = self.repos_pulled();
        let swept = self.hub.sweep(&|repo| repos.contains(repo))?;
        removed.extend(swept.into_iter().map(Prunable::from));
        for mut held in old {
            held.bytes = self.remove(&held, progress)?;
            removed.push(Prunable::Model(Box::new(held)));
        }
        Ok(removed)
    }
}

impl From<Leftover> for Prunable {
    fn from(leftover: Leftover) -> Self {
        Self::Leftover {
            path: leftover.path,
            bytes: leftover.bytes,
        }
    }
}

impl Held {
    /// When it was last run, or brought where it never was.
    fn since(&self) -> u64 {
        let modified = fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        let brought = modified.ok().and_then(|time| {
            let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(since.as_secs())
        });
        self.last_used.or(brought).unwrap_or(u64::MAX)
    }
}
