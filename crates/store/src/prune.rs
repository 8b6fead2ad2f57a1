//! What takes space and serves nobody.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

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
        for leftover in self.hub.leftovers()? {
            found.push(Prunable::Leftover {
                path: leftover.path,
                bytes: leftover.bytes,
            });
        }
        if let Some(age) = options.older_than {
            let before = now().saturating_sub(age.as_secs());
            let old = |held: &Held| held.owner == Owner::Store && held.since() < before;
            let old = self.held()?.into_iter().filter(old);
            found.extend(old.map(|held| Prunable::Model(Box::new(held))));
        }
        Ok(found)
    }

    /// Removes what [`Store::prunable`] finds, and says what it was. What someone took up again
    /// in the meantime stays.
    pub fn prune(
        &self,
        options: PruneOptions,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Prunable>, StoreError> {
        let found = self.prunable(options)?;
        staging::sweep(&self.cache_dir);
        self.hub.sweep()?;
        for prunable in &found {
            if let Prunable::Model(held) = prunable {
                self.remove(held, progress)?;
            }
        }
        Ok(found)
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
