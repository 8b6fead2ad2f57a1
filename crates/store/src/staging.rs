//! Locks and work directories for fetching entries.
//!
//! Each entry has one lock file. The system releases a lock when its process dies, so a work
//! directory whose lock is free is abandoned and may be removed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use loquat_weights::size_on_disk;
use tempfile::TempDir;

use crate::{Progress, StoreError};

/// Held while an entry is fetched; released when dropped.
pub(crate) struct EntryLock {
    key: String,
    /// Parent of every work directory of this cache.
    tmp: PathBuf,
    locks: PathBuf,
    /// The open, locked file. It is never deleted: otherwise two processes could lock two files of
    /// the same name.
    lock: File,
}

impl EntryLock {
    /// Waits until no other process fetches the entry.
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
        let lock = open_lock(&path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.note(&format!(
                    "another process is fetching {key}; waiting for it"
                ));
                lock.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
        Ok(Self {
            key: key.to_owned(),
            tmp: cache_dir.join("tmp"),
            locks,
            lock,
        })
    }

    /// A new work directory, removed on drop. It is in the cache, so that a finished file can be
    /// renamed into place.
    pub(crate) fn work_dir(&self) -> Result<TempDir, StoreError> {
        let failed = |cause| StoreError::io("create a directory in", &self.tmp, cause);
        fs::create_dir_all(&self.tmp).map_err(failed)?;
        tempfile::Builder::new()
            .prefix(&format!("{}.", self.key))
            .tempdir_in(&self.tmp)
            .map_err(failed)
    }

    /// Removes the work directories of killed processes. Failures only waste space and are logged.
    pub(crate) fn sweep(&self) {
        for (key, dir) in work_dirs(&self.tmp) {
            let removed = if key == self.key {
                fs::remove_dir_all(&dir)
            } else {
                with_free_lock(&self.locks, &key, || fs::remove_dir_all(&dir))
            };
            warn_not_removed(removed, &dir);
        }
    }
}

/// Unlocks explicitly: a child process may hold a copy of the handle between fork and exec.
impl Drop for EntryLock {
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

/// The work directories of ended processes.
pub(crate) fn orphans(cache_dir: &Path) -> Vec<PathBuf> {
    let locks = cache_dir.join("locks");
    let mut found = Vec::new();
    for (key, dir) in work_dirs(&cache_dir.join("tmp")) {
        let looked = with_free_lock(&locks, &key, || {
            found.push(dir.clone());
            Ok(())
        });
        warn_not_removed(looked, &dir);
    }
    found
}

/// Removes the [`orphans`]; returns their paths and sizes.
pub(crate) fn sweep(cache_dir: &Path) -> Vec<(PathBuf, u64)> {
    let locks = cache_dir.join("locks");
    let mut removed = Vec::new();
    for (key, dir) in work_dirs(&cache_dir.join("tmp")) {
        let swept = with_free_lock(&locks, &key, || {
            let bytes = size_on_disk(&dir);
            fs::remove_dir_all(&dir)?;
            removed.push((dir.clone(), bytes));
            Ok(())
        });
        warn_not_removed(swept, &dir);
    }
    removed
}

/// Work directories with their lock keys.
fn work_dirs(tmp: &Path) -> Vec<(String, PathBuf)> {
    let left = fs::read_dir(tmp).into_iter().flatten().flatten();
    left.filter_map(|left| {
        let name = left.file_name();
        let (key, _) = name.to_str()?.rsplit_once('.')?;
        Some((key.to_owned(), left.path()))
    })
    .collect()
}

/// Runs `work` under the cache's lock of this name. On a file system without locks it runs without.
pub(crate) fn locked<T>(cache_dir: &Path, key: &str, work: impl FnOnce() -> T) -> T {
    let locks = cache_dir.join("locks");
    let lock = fs::create_dir_all(&locks).and_then(|()| open_lock(&lock_path(&locks, key)));
    let lock = lock.ok().filter(|lock| lock.lock().is_ok());
    let outcome = work();
    if let Some(lock) = lock {
        let _ = lock.unlock();
    }
    outcome
}

/// The same, unless another process has the lock.
pub(crate) fn if_free<T>(cache_dir: &Path, key: &str, work: impl FnOnce() -> T) -> Option<T> {
    let (locks, mut outcome) = (cache_dir.join("locks"), None);
    fs::create_dir_all(&locks).ok()?;
    let run = || {
        outcome = Some(work());
        Ok(())
    };
    with_free_lock(&locks, key, run).ok()?;
    outcome
}

/// Runs `work` under the lock if the lock is free.
fn with_free_lock(
    locks: &Path,
    key: &str,
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let lock = open_lock(&lock_path(locks, key))?;
    match lock.try_lock() {
        Ok(()) => {
            let outcome = work();
            let _ = lock.unlock();
            outcome
        }
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn warn_not_removed(outcome: io::Result<()>, dir: &Path) {
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
    fn sweep_spares_locked_directories() {
        let cache = tempfile::tempdir().unwrap();
        let acquire = |key| EntryLock::acquire(cache.path(), key, &mut NoProgress).unwrap();
        let own = acquire("own-1.5b");
        let other = acquire("other-1b");
        let dir = |name: &str| {
            let dir = cache.path().join("tmp").join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("half"), "half").unwrap();
            dir
        };
        let (old, orphan, live) = (
            dir("own-1.5b.aaaaaa"),
            dir("dead-2b.bbbbbb"),
            dir("other-1b.cccccc"),
        );

        own.sweep();
        assert!(!old.exists() && !orphan.exists());
        assert!(live.join("half").exists());

        drop(other);
        own.sweep();
        assert!(!live.exists());
    }
}
