//! A partially downloaded file and its journal.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::HubError;
use super::journal::{Journal, Record, Spans};
use super::layout::RepoDir;

pub(crate) struct PartialFile {
    path: PathBuf,
    journal_path: PathBuf,
    size: u64,
    journal: Mutex<Journal>,
}

/// The server's content differs from the bytes on disk.
pub(crate) struct ContentChanged;

impl PartialFile {
    /// Opens the file, resuming an earlier download by Loquat or Python's client. The caller holds
    /// the blob's lock.
    pub(crate) fn open(dir: &RepoDir, etag: &str, size: u64) -> Result<Self, HubError> {
        let (path, journal_path) = (dir.part(etag), dir.journal(etag));
        let blobs = dir.blobs();
        fs::create_dir_all(&blobs)
            .map_err(|cause| HubError::io("create the directory", &blobs, cause))?;
        let failed = |cause| HubError::io("write", &journal_path, cause);
        let mut record = read_record(dir, etag, size);
        if !path.exists() && record.done.bytes() > 0 {
            // Python's partial file; if the rename fails, the download starts over.
            let renamed = fs::rename(dir.foreign_part(etag), &path);
            record = renamed.map_or_else(|_| Record::default(), |()| record);
        }
        let journal = Journal::begin(&journal_path, size, record).map_err(failed)?;
        Ok(Self {
            journal: Mutex::new(journal),
            path,
            journal_path,
            size,
        })
    }

    /// Bytes already on disk.
    pub(crate) fn bytes_on_disk(dir: &RepoDir, etag: &str, size: u64) -> u64 {
        read_record(dir, etag, size).done.bytes()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn missing(&self) -> Vec<Range<u64>> {
        self.journal().done().missing(self.size)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.journal().done().bytes()
    }

    /// Checks whether a response with this identity continues the bytes on disk.
    pub(crate) fn check_identity(
        &self,
        identity: Option<&str>,
    ) -> Result<Result<(), ContentChanged>, HubError> {
        let mut journal = self.journal();
        match (journal.identity(), identity) {
            (_, None) => Ok(Ok(())),
            (Some(known), Some(identity)) if known == identity => Ok(Ok(())),
            (Some(_), Some(_)) => Ok(Err(ContentChanged)),
            (None, Some(identity)) => {
                let record = Record {
                    identity: Some(identity.to_owned()),
                    done: journal.done().clone(),
                };
                *journal = self.begin(record)?;
                Ok(Ok(()))
            }
        }
    }

    /// Discards all bytes and the identity.
    pub(crate) fn reset(&self) -> Result<(), HubError> {
        *self.journal() = self.begin(Record::default())?;
        Ok(())
    }

    /// Renames the complete file to `blob`, durably. [`clear`] removes the journal.
    pub(crate) fn install(self, blob: &Path) -> Result<(), HubError> {
        fs::rename(&self.path, blob).map_err(|cause| HubError::io("create", blob, cause))?;
        sync_dir(blob);
        Ok(())
    }

    /// A writer that starts at offset `at`.
    pub(crate) fn writer(&self, at: u64) -> Result<Writer<'_>, HubError> {
        let failed = |cause| HubError::io("write", &self.path, cause);
        let mut file = File::options()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&self.path)
            .map_err(failed)?;
        file.seek(SeekFrom::Start(at)).map_err(failed)?;
        Ok(Writer {
            part: self,
            file,
            recorded: at,
            at,
        })
    }

    fn begin(&self, record: Record) -> Result<Journal, HubError> {
        Journal::begin(&self.journal_path, self.size, record)
            .map_err(|cause| HubError::io("write", &self.journal_path, cause))
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is on disk, from our journal or from the length of the file that Python's client left. The
/// final hash check covers both.
fn read_record(dir: &RepoDir, etag: &str, size: u64) -> Record {
    let length = |path: PathBuf| fs::metadata(path).ok().map(|found| found.len());
    if let Some(length) = length(dir.part(etag)) {
        let record = Record::read(&dir.journal(etag), size);
        // A journal that reaches past the file's end belongs to another file.
        return if record.done.end() <= length {
            record
        } else {
            Record::default()
        };
    }
    match length(dir.foreign_part(etag)) {
        Some(length) if length <= size => Record {
            identity: None,
            done: Spans::one(0..length),
        },
        _ => Record::default(),
    }
}

/// Removes the partial file and its journal, if they exist.
pub(crate) fn clear(dir: &RepoDir, etag: &str) -> Result<(), HubError> {
    for path in [dir.journal(etag), dir.part(etag)] {
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                return Err(HubError::io("remove", &path, cause));
            }
            _ => {}
        }
    }
    Ok(())
}

/// One stream's writer. Records durable bytes in the journal in steps.
pub(crate) struct Writer<'p> {
    part: &'p PartialFile,
    file: File,
    recorded: u64,
    at: u64,
}

impl Writer<'_> {
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn write(&mut self, bytes: &[u8], step: u64) -> Result<(), HubError> {
        self.file
            .write_all(bytes)
            .map_err(|cause| HubError::io("write", &self.part.path, cause))?;
        self.at += bytes.len() as u64;
        if self.at - self.recorded >= step {
            self.record()
        } else {
            Ok(())
        }
    }

    pub(crate) fn record(&mut self) -> Result<(), HubError> {
        if self.at == self.recorded {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|cause| HubError::io("write", &self.part.path, cause))?;
        self.part
            .journal()
            .add(self.recorded..self.at)
            .map_err(|cause| HubError::io("write", &self.part.journal_path, cause))?;
        self.recorded = self.at;
        Ok(())
    }
}

/// Makes a rename durable on systems that can sync directories.
pub(crate) fn sync_dir(path: &Path) {
    if let Some(Ok(dir)) = path.parent().map(File::open) {
        let _ = dir.sync_all();
    }
}
