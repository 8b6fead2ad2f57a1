//! Blob locks, compatible with Python's `huggingface_hub`.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use super::HubError;

/// Held while a blob is downloaded or removed. Released on drop, or by the system when the process
/// ends.
pub(crate) struct BlobLock {
    file: File,
}

impl BlobLock {
    /// Waits for the lock; calls `on_wait` once if another process holds it.
    pub(crate) fn acquire(path: &Path, on_wait: impl FnOnce()) -> Result<Self, HubError> {
        let failed = |cause| HubError::io("lock", path, cause);
        let mut on_wait = Some(on_wait);
        loop {
            let file = open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if let Some(on_wait) = on_wait.take() {
                        on_wait();
                    }
                    file.lock().map_err(failed)?;
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
            if still_named(&file).map_err(failed)? {
                return Ok(Self { file });
            }
        }
    }

    /// Takes the lock if it is free.
    pub(crate) fn if_free(path: &Path) -> Option<Self> {
        let file = open(path).ok()?;
        file.try_lock().ok()?;
        still_named(&file).ok()?.then_some(Self { file })
    }
}

/// Unlocks explicitly: between fork and exec, a child process of another thread holds a copy of the
/// handle, and closing this handle would leave the lock with it.
impl Drop for BlobLock {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(path)
}

/// Python's client removes the lock file on release. A lock on a removed file has no effect.
#[cfg(unix)]
fn still_named(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink() > 0)
}

/// Other systems do not remove open files.
#[cfg(not(unix))]
fn still_named(_file: &File) -> io::Result<bool> {
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn waiter_is_notified_and_acquires_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/blob.lock");
        let first = BlobLock::acquire(&path, || panic!("the lock is free")).unwrap();
        assert!(BlobLock::if_free(&path).is_none());
        let (waiting, waits) = mpsc::channel();
        thread::scope(|scope| {
            let second =
                scope.spawn(|| BlobLock::acquire(&path, move || waiting.send(()).unwrap()));
            waits.recv().unwrap();
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert!(BlobLock::if_free(&path).is_some());
    }

    #[test]
    fn drop_unlocks_copies_of_the_handle() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob.lock");
        let lock = BlobLock::acquire(&path, || {}).unwrap();
        let _copy = lock.file.try_clone().unwrap();
        drop(lock);
        assert!(BlobLock::if_free(&path).is_some());
    }

    #[test]
    #[cfg(unix)]
    fn lock_on_removed_file_is_reacquired() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob.lock");
        let first = BlobLock::acquire(&path, || {}).unwrap();
        let (waiting, waits) = mpsc::channel();
        thread::scope(|scope| {
            let second =
                scope.spawn(|| BlobLock::acquire(&path, move || waiting.send(()).unwrap()));
            waits.recv().unwrap();
            fs::remove_file(&path).unwrap();
            drop(first);
            let _second = second.join().unwrap().unwrap();
            assert!(BlobLock::if_free(&path).is_none());
        });
    }
}
