//! Work folders, and what killed processes leave of them.
//!
//! A model is written next to its path, which may be anywhere. A record in a known folder names the
//! work folder before that exists, and stays locked while the process lives: a record that is not
//! locked names a folder that nobody uses.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use loquat_weights::{path_from_bytes, size_on_disk};
use tempfile::{NamedTempFile, TempDir};

use crate::ConvertError;
use crate::output::REPLACED;

/// A work folder of a process that was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub path: PathBuf,
    pub bytes: u64,
}

const WORK: &str = ".loquat-work-";
const RECORD: &str = ".work";

/// A new folder next to a path, so that a rename moves its content there. Removed on drop.
pub struct WorkFolder {
    folder: TempDir,
    /// Dropped after the folder.
    _record: Option<WorkRecord>,
}

impl WorkFolder {
    /// `records` is where [`leftovers`] looks, whenever the process is killed.
    pub fn beside(target: &Path, records: Option<&Path>) -> io::Result<Self> {
        let parent = target.parent().filter(|path| *path != Path::new(""));
        let parent = parent.unwrap_or(Path::new("."));
        let (name, record) = reserve(parent, records);
        let folder = tempfile::Builder::new()
            .prefix(&name)
            .rand_bytes(0)
            .tempdir_in(parent)?;
        Ok(Self {
            folder,
            _record: record,
        })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn keep(self) -> PathBuf {
        self.folder.keep()
    }
}

/// The name of a new work folder, and its record. Without a record, only a killed process leaves
/// something.
fn reserve(parent: &Path, records: Option<&Path>) -> (String, Option<WorkRecord>) {
    let name = format!("{WORK}{:016x}", RandomState::new().hash_one(()));
    let record = records.and_then(|records| WorkRecord::create(records, &parent.join(&name)).ok());
    (name, record)
}

/// The record of a work folder in use, removed on drop.
struct WorkRecord {
    _file: NamedTempFile,
}

impl WorkRecord {
    fn create(records: &Path, work: &Path) -> io::Result<Self> {
        fs::create_dir_all(records)?;
        let mut file = tempfile::Builder::new()
            .suffix(RECORD)
            .tempfile_in(records)?;
        // Before it names anything: others ignore an empty record.
        file.as_file().lock()?;
        let work = std::path::absolute(work)?;
        file.write_all(work.as_os_str().as_encoded_bytes())?;
        Ok(Self { _file: file })
    }
}

/// The work folders of killed processes that were recorded in `records`.
pub fn leftovers(records: &Path) -> Vec<Leftover> {
    let found = orphaned(records).into_iter().map(|(_, leftover)| leftover);
    found.filter(|leftover| leftover.path.exists()).collect()
}

/// Removes the [`leftovers`] and returns those that it removed.
pub fn remove_leftovers(records: &Path) -> Result<Vec<Leftover>, ConvertError> {
    let mut removed = Vec::new();
    for (record, leftover) in orphaned(records) {
        if leftover.path.exists() {
            fs::remove_dir_all(&leftover.path).map_err(removing(&leftover.path))?;
            removed.push(leftover);
        }
        fs::remove_file(&record).map_err(removing(&record))?;
    }
    Ok(removed)
}

fn removing(path: &Path) -> impl FnOnce(io::Error) -> ConvertError {
    let path = path.to_owned();
    move |source| ConvertError::Remove { path, source }
}

/// Records without a process, and what they name.
fn orphaned(records: &Path) -> Vec<(PathBuf, Leftover)> {
    let entries = fs::read_dir(records).into_iter().flatten().flatten();
    let orphans = entries.filter_map(|entry| {
        let record = entry.path();
        let path = work_folder(&record)?;
        let bytes = size_on_disk(&path);
        Some((record, Leftover { path, bytes }))
    });
    orphans.collect()
}

/// The folder that an unlocked record names, if it can only be a work folder without anything of
/// the user's.
fn work_folder(record: &Path) -> Option<PathBuf> {
    if !record.to_string_lossy().ends_with(RECORD) {
        return None;
    }
    let mut file = File::open(record).ok()?;
    file.try_lock().ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let path = path_from_bytes(bytes)?;
    let name = path.file_name()?.to_string_lossy();
    let is_folder = match path.symlink_metadata() {
        Ok(metadata) => metadata.is_dir(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    let is_ours = path.is_absolute() && name.starts_with(WORK) && is_folder;
    let has_old_model = path.join(REPLACED).symlink_metadata().is_ok();
    (is_ours && !has_old_model).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A work folder with a file of ten bytes.
    fn work(parent: &Path, name: &str) -> PathBuf {
        let work = parent.join(name);
        fs::create_dir(&work).unwrap();
        fs::write(work.join("whole"), "0123456789").unwrap();
        work
    }

    /// As a killed process leaves a record.
    fn abandon(records: &Path, work: &Path) {
        let WorkRecord { _file } = WorkRecord::create(records, work).unwrap();
        _file.keep().unwrap();
    }

    #[test]
    fn folder_is_recorded_before_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let (parent, records) = (folder.path(), folder.path().join("records"));
        let (name, record) = reserve(parent, Some(&records));
        record.unwrap()._file.keep().unwrap();
        assert!(!parent.join(&name).exists());
        assert_eq!(leftovers(&records), []);
        let killed = work(parent, &name);
        let found = leftovers(&records).into_iter().map(|left| left.path);
        assert!(found.eq([killed]));

        let live = WorkFolder::beside(&parent.join("model"), Some(&records)).unwrap();
        assert_eq!(leftovers(&records).len(), 1);
        let path = live.path().to_owned();
        assert!(path.is_dir() && path.parent() == Some(parent));
        drop(live);
        assert!(!path.exists());
        assert_eq!(fs::read_dir(records).unwrap().count(), 1);
    }

    #[test]
    fn only_folders_of_killed_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("records");
        assert_eq!(leftovers(&records), []);
        let live = work(folder.path(), ".loquat-work-live");
        let finished = work(folder.path(), ".loquat-work-finished");
        let killed = work(folder.path(), ".loquat-work-killed");
        let replacing = work(folder.path(), ".loquat-work-replacing");
        fs::create_dir(replacing.join(REPLACED)).unwrap();
        let other = work(folder.path(), "model");
        let gone = folder.path().join(".loquat-work-gone");
        let record = WorkRecord::create(&records, &live).unwrap();
        drop(WorkRecord::create(&records, &finished).unwrap());
        for path in [&killed, &replacing, &other, &gone] {
            abandon(&records, path);
        }
        fs::write(records.join("empty.work"), "").unwrap();

        let expected = [Leftover {
            path: killed.clone(),
            bytes: 10,
        }];
        assert_eq!(leftovers(&records), expected);
        assert_eq!(remove_leftovers(&records).unwrap(), expected);
        assert!(!killed.exists());
        for path in [&live, &finished, &replacing, &other] {
            assert!(path.join("whole").exists(), "{}", path.display());
        }
        assert_eq!(remove_leftovers(&records).unwrap(), []);
        drop(record);
        assert_eq!(remove_leftovers(&records).unwrap(), []);
        assert!(live.exists());
    }

    #[cfg(unix)]
    #[test]
    fn record_names_any_path() {
        use std::os::unix::ffi::OsStrExt;

        let folder = tempfile::tempdir().unwrap();
        let parent = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
        fs::create_dir(&parent).unwrap();
        let killed = work(&parent, ".loquat-work-killed");
        abandon(folder.path(), &killed);
        assert_eq!(remove_leftovers(folder.path()).unwrap().len(), 1);
        assert!(!killed.exists());
    }
}
