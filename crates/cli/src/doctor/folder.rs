//! Directories that models are kept in.

use std::fs::{DirEntry, OpenOptions};
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

/// Of downloads that were cut short, and of ones that are going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remains {
    pub count: usize,
    pub bytes: u64,
}

/// Where unfinished downloads lie.
#[derive(Debug, Clone, Copy)]
pub enum Leftovers {
    /// Each in a directory of its own under `tmp`.
    OfStore,
    /// Files ending in `.incomplete` among each repository's blobs.
    OfHub,
}

/// Files that are looked at at most: an answer in time is worth more than a whole one.
const MOST_FILES: usize = 20_000;

impl Folder {
    pub fn at(path: PathBuf, leftovers: Leftovers) -> Self {
        let nearest = nearest(&path);
        Self {
            state: state(&path, nearest),
            free_bytes: nearest.and_then(free_bytes),
            foreign_owner: foreign_owner(&path),
            leftovers: leftovers.under(&path),
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
        Ok(_) => match may_write(nearest) {
            true => State::Missing,
            false => State::Impossible(format!("{shown} cannot be written")),
        },
    }
}

/// Trying is the only test that no kind of file system deceives.
fn write_into(folder: &Path) -> std::io::Result<()> {
    let trial = folder.join(format!(".loquat-doctor-{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).open(&trial)?;
    std::fs::remove_file(&trial)
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

impl Leftovers {
    fn under(self, folder: &Path) -> Remains {
        match self {
            Self::OfStore => {
                let rooms: Vec<_> = entries(&folder.join("tmp")).collect();
                Remains {
                    count: rooms.len(),
                    bytes: rooms.iter().map(|room| size_below(&room.path())).sum(),
                }
            }
            Self::OfHub => {
                let blobs = entries(folder).flat_map(|repo| entries(&repo.path().join("blobs")));
                let unfinished = blobs.take(MOST_FILES).filter(|blob| {
                    blob.path()
                        .extension()
                        .is_some_and(|ending| ending == "incomplete")
                });
                unfinished.fold(Remains::default(), |so_far, blob| Remains {
                    count: so_far.count + 1,
                    bytes: so_far.bytes + size(&blob),
                })
            }
        }
    }
}

/// None of what cannot be read.
fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    std::fs::read_dir(folder).into_iter().flatten().flatten()
}

fn size(entry: &DirEntry) -> u64 {
    entry.metadata().map_or(0, |found| found.len())
}

fn size_below(folder: &Path) -> u64 {
    let (mut bytes, mut looked_at) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder).take(MOST_FILES.saturating_sub(looked_at)) {
            looked_at += 1;
            // Not of what a link points to, which could be a circle.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => bytes += size(&entry),
            }
        }
    }
    bytes
}

/// Where the hub's clients keep models, by the variables that all of them obey.
pub fn hub_cache() -> Result<PathBuf, String> {
    let variable = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    let named = variable("HF_HUB_CACHE")
        .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")));
    named.map(Ok).unwrap_or_else(|| {
        let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
        let home = home.ok_or("neither HOME nor HF_HUB_CACHE is set")?;
        Ok(home.join(".cache/huggingface/hub"))
    })
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
        let state = |path: PathBuf| Folder::at(path, Leftovers::OfStore).state;
        assert_eq!(state(root.path().to_owned()), State::Writable);
        assert_eq!(state(root.path().join("a/b")), State::Missing);
        for path in [file.clone(), file.join("below")] {
            let State::Impossible(why) = state(path.clone()) else {
                panic!("{path:?}");
            };
            assert!(why.ends_with("file is a file"), "{why}");
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn unfinished_downloads_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, [0; 10]).unwrap();
        };
        for path in [
            "tmp/a.1/part/wheel",
            "tmp/a.1/model",
            "tmp/b.2/model",
            "models/a/a.gguf",
            "models--o--n/blobs/abc",
            "models--o--n/blobs/def.incomplete",
        ] {
            write(path);
        }
        let remains = |kind| Folder::at(root.path().to_owned(), kind).leftovers;
        let expected = |count, bytes| Remains { count, bytes };
        assert_eq!(remains(Leftovers::OfStore), expected(2, 30));
        assert_eq!(remains(Leftovers::OfHub), expected(1, 10));
    }

    #[cfg(unix)]
    #[test]
    fn free_space_is_told_of_what_exists() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::at(root.path().join("not/yet"), Leftovers::OfHub);
        assert!(folder.free_bytes.is_some_and(|bytes| bytes > 0));
        assert_eq!(folder.foreign_owner, None);
    }
}
