//! Directories that models are kept in.

use std::path::{Path, PathBuf};

/// What is known of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    pub path: PathBuf,
    pub state: State,
    /// In the file system that it is or would be in; `None` where the system does not tell.
    pub free_bytes: Option<u64>,
    /// Its owner's number, where that is somebody else.
    pub foreign_owner: Option<u32>,
    pub leftovers: Remains,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It can be written.
    Writable,
    /// It is there, and writing into it fails so.
    ReadOnly(String),
    /// It will be made when it is needed.
    Missing,
    /// It is not there and cannot be made, because of what stands in the way.
    Impossible(String),
}

/// What nobody is at work on any more, and no model uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remains {
    pub count: usize,
    pub bytes: u64,
}

impl Folder {
    pub fn at(path: PathBuf, leftovers: Remains) -> Self {
        let nearest = nearest(&path);
        Self {
            state: state(&path, nearest),
            free_bytes: nearest.and_then(free_bytes),
            foreign_owner: foreign_owner(&path),
            leftovers,
            path,
        }
    }
}

/// The directory itself, or the innermost around it that exists.
fn nearest(path: &Path) -> Option<&Path> {
    path.ancestors().find(|at| at.symlink_metadata().is_ok())
}

fn state(path: &Path, nearest: Option<&Path>) -> State {
    let Some(nearest) = nearest else {
        return State::Impossible("nothing above it exists".to_owned());
    };
    let shown = nearest.display();
    match std::fs::metadata(nearest) {
        Err(error) => State::Impossible(format!("{shown} cannot be read ({error})")),
        Ok(found) if !found.is_dir() => State::Impossible(format!("{shown} is a file")),
        Ok(_) if nearest == path => match write_into(path) {
            Ok(()) => State::Writable,
            Err(error) => State::ReadOnly(error.to_string()),
        },
        Ok(_) => {
            if may_write(nearest) {
                State::Missing
            } else {
                State::Impossible(format!("{shown} cannot be written"))
            }
        }
    }
}

/// Trying is the only test that no kind of file system deceives.
fn write_into(folder: &Path) -> std::io::Result<()> {
    let mut trial = tempfile::Builder::new();
    trial.prefix(".loquat-doctor-").tempfile_in(folder)?.close()
}

#[cfg(unix)]
fn may_write(folder: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok()
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
    fn directories_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let state = |path: PathBuf| Folder::at(path, Remains::default()).state;
        assert_eq!(state(root.path().to_owned()), State::Writable);
        assert_eq!(state(root.path().join("a/b")), State::Missing);
        for path in [file.clone(), file.join("below")] {
            let State::Impossible(why) = state(path.clone()) else {
                panic!("{path:?}");
            };
            assert!(why.ends_with("file is a file"), "{why}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
        // Both caches may be one folder.
        std::thread::scope(|scope| {
            let looks = [(); 8].map(|()| scope.spawn(|| state(root.path().to_owned())));
            let found = looks.map(|look| look.join().unwrap());
            assert!(found.iter().all(|state| *state == State::Writable));
        });
    }

    #[cfg(unix)]
    #[test]
    fn free_space_is_told_of_what_exists() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().join("not/yet"), Remains::default());
        assert!(folder.free_bytes.is_some_and(|bytes| bytes > 0));
        assert_eq!(folder.foreign_owner, None);
    }
}
