//! Directories that hold models.

use std::path::{Path, PathBuf};

/// Facts about a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    pub path: PathBuf,
    pub access: Access,
    /// Free space of its file system; `None` if the system does not report it.
    pub free_bytes: Option<u64>,
    /// The owner's id, if it is another user.
    pub foreign_owner: Option<u32>,
    pub leftovers: Leftovers,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// It is writable.
    Writable,
    /// It exists, and writing fails with this error.
    ReadOnly(String),
    /// It will be created when needed.
    Missing,
    /// It does not exist and cannot be created, for this reason.
    Impossible(String),
}

/// Abandoned downloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Leftovers {
    pub count: usize,
    pub bytes: u64,
}

impl Directory {
    pub fn inspect(path: PathBuf, leftovers: Leftovers) -> Self {
        let nearest = nearest(&path);
        Self {
            access: access(&path, nearest),
            free_bytes: nearest.and_then(free_bytes),
            foreign_owner: foreign_owner(&path),
            leftovers,
            path,
        }
    }
}

/// The directory itself, or its closest existing ancestor.
fn nearest(path: &Path) -> Option<&Path> {
    path.ancestors().find(|at| at.symlink_metadata().is_ok())
}

fn access(path: &Path, nearest: Option<&Path>) -> Access {
    let Some(nearest) = nearest else {
        return Access::Impossible("no parent directory exists".to_owned());
    };
    let shown = nearest.display();
    match std::fs::metadata(nearest) {
        Err(error) => Access::Impossible(format!("{shown} is not readable ({error})")),
        Ok(found) if !found.is_dir() => Access::Impossible(format!("{shown} is a file")),
        Ok(_) if nearest == path => match write_into(path) {
            Ok(()) => Access::Writable,
            Err(error) => Access::ReadOnly(error.to_string()),
        },
        Ok(_) => {
            if may_write(nearest) {
                Access::Missing
            } else {
                Access::Impossible(format!("{shown} is not writable"))
            }
        }
    }
}

/// Only a trial write is reliable on every file system.
fn write_into(folder: &Path) -> std::io::Result<()> {
    let mut trial = tempfile::Builder::new();
    trial.prefix(".loquat-doctor-").tempfile_in(folder)?.close()
}

#[cfg(unix)]
fn may_write(folder: &Path) -> bool {
    use rustix::fs;
    fs::access(folder, fs::Access::WRITE_OK | fs::Access::EXEC_OK).is_ok()
}

#[cfg(not(unix))]
fn may_write(folder: &Path) -> bool {
    std::fs::metadata(folder).is_ok_and(|found| !found.permissions().readonly())
}

#[cfg(unix)]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    found.f_bavail.checked_mul(found.f_frsize)
}

#[cfg(not(unix))]
pub fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(unix)]
fn foreign_owner(folder: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(folder).ok()?.uid();
    (owner != rustix::process::geteuid().as_raw()).then_some(owner)
}

#[cfg(not(unix))]
fn foreign_owner(_folder: &Path) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn access_is_detected() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let access = |path: PathBuf| Directory::inspect(path, Leftovers::default()).access;
        assert_eq!(access(root.path().to_owned()), Access::Writable);
        assert_eq!(access(root.path().join("a/b")), Access::Missing);
        for path in [file.clone(), file.join("below")] {
            let Access::Impossible(why) = access(path.clone()) else {
                panic!("{path:?}");
            };
            assert!(why.ends_with("file is a file"), "{why}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        // Both caches may be the same directory.
        std::thread::scope(|scope| {
            let looks = [(); 8].map(|()| scope.spawn(|| access(root.path().to_owned())));
            let found = looks.map(|look| look.join().unwrap());
            assert!(found.iter().all(|access| *access == Access::Writable));
        });
    }

    #[cfg(unix)]
    #[test]
    fn free_space_of_existing_ancestor() {
        let root = tempfile::tempdir().unwrap();
        let folder = Directory::inspect(root.path().join("not/yet"), Leftovers::default());
        assert!(folder.free_bytes.is_some_and(|bytes| bytes > 0));
        assert_eq!(folder.foreign_owner, None);
    }
}
