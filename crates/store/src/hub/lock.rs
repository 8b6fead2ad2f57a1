//! One process at a time brings a blob: the locks of Python's `huggingface_hub`.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use super::HubError;

/// Held while a blob is brought or removed; released when dropped, or by the system when its
/// process ends.
pub(crate) struct BlobLock {
    _held: File,
}

impl BlobLock {
    /// Waits for whoever has it; `waiting` is told once.
    pub(crate) fn acquire(path: &Path, waiting: impl FnOnce()) -> Result<Self, HubError> {
        let failed = |cause| HubError::io("lock", path, cause);
        let mut waiting = Some(waiting);
        loop {
            let file = open(path).map_err(failed)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    if let Some(tell) = waiting.take() {
                        tell();
                    }
                    file.lock().map_err(failed)?;
                }
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
            if still_named(&file).map_err(failed)? {
                return Ok(Self { _held: file });
            }
        }
    }

    /// The lock, if nobody has it.
    pub(crate) fn if_free(path: &Path) -> Option<Self> {
        let file = open(path).ok()?;
        file.try_lock().ok()?;
        still_named(&file).ok()?.then_some(Self { _held: file })
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

/// Python's locks remove their file when released; a lock on a removed file excludes nobody.
#[cfg(unix)]
fn still_named(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.nlink() > 0)
}

/// Elsewhere a file that is open cannot be removed.
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
    fn whoever_waits_is_told_and_then_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/blob.lock");
        let first = BlobLock::acquire(&path, || panic!("nobody has it")).unwrap();
        assert!(BlobLock::if_free(&path).is_none());
        let (told, waits) = mpsc::channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| BlobLock::acquire(&path, move || told.send(()).unwrap()));
            waits.recv().unwrap();
            drop(first);
            second.join().unwrap().unwrap();
        });
        assert!(BlobLock::if_free(&path).is_some());
    }

    #[test]
    #[cfg(unix)]
    fn a_lock_on_a_file_that_was_removed_is_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("blob.lock");
        let first = BlobLock::acquire(&path, || {}).unwrap();
        let (told, waits) = mpsc::channel();
        thread::scope(|scope| {
            let second = scope.spawn(|| BlobLock::acquire(&path, move || told.send(()).unwrap()));
            waits.recv().unwrap();
            fs::remove_file(&path).unwrap();
            drop(first);
            let _second = second.join().unwrap().unwrap();
            assert!(BlobLock::if_free(&path).is_none());
        });
    }
}
