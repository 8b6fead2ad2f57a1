//! The right to fetch an entry, and the directory to do it in.
//!
//! Both hang on one lock file per entry. The system releases a lock when its process dies, so a
//! work directory whose lock is free belongs to nobody and may be removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::pip::size_of;
use crate::{Progress, StoreError};

/// Held while an entry is fetched; released when dropped.
pub(crate) struct EntryLock {
    key: String,
    /// Parent of every work directory of this cache.
    tmp: PathBuf,
    locks: PathBuf,
    /// The lock lives as long as this handle. The file itself stays: removing it would let two
    /// processes lock two files of one name.
    _held: File,
}

impl EntryLock {
    /// Waits for whoever else is fetching the entry.
    pub(crate) fn acquire(
        cache_dir: &Path,
        key: &str,
        progress: &mut dyn Progress,
    ) -> Result<Self, StoreError> {
        let locks = cache_dir.join("locks");
        fs::create_dir_all(&locks)
            .map_err(|cause| StoreError::io("create the directory", &locks, cause))?;
        let path = lock_path(&locks, key);
        let failed = |cause| StoreError::io("lock", &path, cause);
        let held = open_lock(&path).map_err(failed)?;
        match held.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!(
                    "another process is fetching {key}; waiting for it"
                ));
                held.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        Ok(Self {
            key: key.to_owned(),
            tmp: cache_dir.join("tmp"),
            locks,
            _held: held,
        })
    }

    /// A fresh work directory, removed with all it holds when dropped.
    ///
    /// It lies in the cache so that a finished file can be renamed into place.
    pub(crate) fn work_dir(&self) -> Result<TempDir, StoreError> {
        let failed = |cause| StoreError::io("create a directory in", &self.tmp, cause);
        fs::create_dir_all(&self.tmp).map_err(failed)?;
        tempfile::Builder::new()
            .prefix(&format!("{}.", self.key))
            .tempdir_in(&self.tmp)
            .map_err(failed)
    }

    /// Removes the work directories that killed processes left. What cannot be removed is only
    /// wasted space, so it stops nothing.
    pub(crate) fn sweep(&self) {
        for (key, dir) in work_dirs(&self.tmp) {
            let removed = if key == self.key {
                fs::remove_dir_all(&dir)
            } else {
                with_free_lock(&self.locks, &key, || fs::remove_dir_all(&dir))
            };
            warn_of(removed, &dir);
        }
    }
}

/// The work directories whose processes are gone.
pub(crate) fn orphans(cache_dir: &Path) -> Vec<PathBuf> {
    let locks = cache_dir.join("locks");
    let mut found = Vec::new();
    for (key, dir) in work_dirs(&cache_dir.join("tmp")) {
        let looked = with_free_lock(&locks, &key, || {
            found.push(dir.clone());
            Ok(())
        });
        warn_of(looked, &dir);
    }
    found
}

/// Removes the [`orphans`], and says which went and how many bytes each had.
pub(crate) fn sweep(cache_dir: &Path) -> Vec<(PathBuf, u64)> {
    let locks = cache_dir.join("locks");
    let mut removed = Vec::new();
    for (key, dir) in work_dirs(&cache_dir.join("tmp")) {
        let swept = with_free_lock(&locks, &key, || {
            let bytes = size_of(&dir);
            fs::remove_dir_all(&dir)?;
            removed.push((dir.clone(), bytes));
            Ok(())
        });
        warn_of(swept, &dir);
    }
    removed
}

/// Each with the key of its lock.
fn work_dirs(tmp: &Path) -> Vec<(String, PathBuf)> {
    let left = fs::read_dir(tmp).into_iter().flatten().flatten();
    left.filter_map(|left| {
        let name = left.file_name();
        let (key, _) = name.to_str()?.rsplit_once('.')?;
        Some((key.to_owned(), left.path()))
    })
    .collect()
}

/// Does it while nobody has the lock, or not at all.
fn with_free_lock(
    locks: &Path,
    key: &str,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let lock = open_lock(&lock_path(locks, key))?;
    match lock.try_lock() {
        Ok(()) => work(),
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn warn_of(outcome: io::Result<()>, dir: &Path) {
    if let Err(error) = outcome {
        tracing::warn!("could not remove {}: {error}", dir.display());
    }
}

fn lock_path(locks: &Path, key: &str) -> PathBuf {
    locks.join(format!("{key}.lock"))
}

fn open_lock(path: &Path) -> io::Result<File> {
    File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;

    #[test]
    fn sweeping_spares_only_directories_whose_lock_is_held() {
        let cache = tempfile::tempdir().unwrap();
        let acquire = |key| EntryLock::acquire(cache.path(), key, &mut NoProgress).unwrap();
        let ours = acquire("ours-1.5b");
        let theirs = acquire("theirs-1b");
        let dir = |name: &str| {
            let dir = cache.path().join("tmp").join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("half"), "half").unwrap();
            dir
        };
        let (old, orphan, live) = (
            dir("ours-1.5b.aaaaaa"),
            dir("dead-2b.bbbbbb"),
            dir("theirs-1b.cccccc"),
        );

        ours.sweep();
        assert!(!old.exists() && !orphan.exists());
        assert!(live.join("half").exists());

        drop(theirs);
        ours.sweep();
        assert!(!live.exists());
    }
}
