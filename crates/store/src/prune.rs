//! Finds and removes unused data.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use loquat_weights::size_on_disk;

use crate::hub::Leftover;
use crate::records::now;
use crate::staging;
use crate::{Owner, Progress, Store, StoreError, StoredModel};

/// What to prune.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// Also prune the store's own models that were not run or downloaded for this long.
    pub older_than: Option<Duration>,
}

/// Something that pruning removes.
#[derive(Debug, Clone)]
pub enum Prunable {
    /// An abandoned work directory, draft or download, or content that no model uses.
    Leftover {
        /// The file or directory.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// A model that was not run recently.
    Model(Box<StoredModel>),
}

impl Prunable {
    /// What removing it frees.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Leftover { bytes, .. } => *bytes,
            Self::Model(model) => model.bytes,
        }
    }
}

impl Store {
    /// Lists what [`Store::prune`] would remove.
    pub fn prunable(&self, options: PruneOptions) -> Result<Vec<Prunable>, StoreError> {
        let mut found = Vec::new();
        for path in staging::orphans(&self.cache_dir) {
            let bytes = size_on_disk(&path);
            found.push(Prunable::Leftover { path, bytes });
        }
        let drafts = self.abandoned_drafts().into_iter();
        found.extend(drafts.map(|(path, bytes)| Prunable::Leftover { path, bytes }));
        let repos = self.repos_pulled();
        let left = self.hub.leftovers(&|repo| repos.contains(repo))?;
        found.extend(left.into_iter().map(Prunable::from));
        let old = self.old(options)?.into_iter();
        found.extend(old.map(|model| Prunable::Model(Box::new(model))));
        Ok(found)
    }

    fn old(&self, options: PruneOptions) -> Result<Vec<StoredModel>, StoreError> {
        let Some(age) = options.older_than else {
            return Ok(Vec::new());
        };
        let before = now().saturating_sub(age.as_secs());
        let old = |model: &StoredModel| model.owner == Owner::Store && model.since() < before;
        Ok(self.stored_models()?.into_iter().filter(old).collect())
    }

    /// Removes what [`Store::prunable`] lists. Returns what it removed, with the bytes freed. Keeps
    /// what is in use again.
    pub fn prune(
        &self,
        options: PruneOptions,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Prunable>, StoreError> {
        let old = self.old(options)?;
        let swept = staging::sweep(&self.cache_dir).into_iter();
        let mut removed: Vec<Prunable> = swept
            .chain(self.sweep_drafts())
            .map(|(path, bytes)| Prunable::Leftover { path, bytes })
            .collect();
        let repos = self.repos_pulled();
        let swept = self.hub.sweep(&|repo| repos.contains(repo))?;
        removed.extend(swept.into_iter().map(Prunable::from));
        for mut model in old {
            model.bytes = self.remove(&model, progress)?;
            removed.push(Prunable::Model(Box::new(model)));
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

impl StoredModel {
    /// When it was last run, or downloaded if it never ran.
    fn since(&self) -> u64 {
        let modified = fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        let downloaded = modified.ok().and_then(|time| {
            let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
            Some(since.as_secs())
        });
        self.last_used.or(downloaded).unwrap_or(u64::MAX)
    }
}
