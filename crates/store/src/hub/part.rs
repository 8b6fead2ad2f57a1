//! A file on its way: its bytes so far, and the journal that says which those are.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::HubError;
use super::journal::{Journal, Record, Spans};
use super::layout::RepoDir;

pub(crate) struct Part {
    path: PathBuf,
    journal_path: PathBuf,
    size: u64,
    journal: Mutex<Journal>,
}

/// An answer of a server was about other content than the bytes that are there.
pub(crate) struct Changed;

impl Part {
    /// Takes up what an earlier process left, ours or Python's. The caller holds the blob's lock.
    pub(crate) fn open(dir: &RepoDir, etag: &str, size: u64) -> Result<Self, HubError> {
        let (path, journal_path) = (dir.part(etag), dir.journal(etag));
        let blobs = dir.blobs();
        fs::create_dir_all(&blobs)
            .map_err(|cause| HubError::io("create the directory", &blobs, cause))?;
        let failed = |cause| HubError::io("write", &journal_path, cause);
        let mut record = record(dir, etag, size);
        if !path.exists() && record.done.bytes() > 0 {
            // Python's; if it cannot be had, nothing is lost but bytes.
            let taken = fs::rename(dir.foreign_part(etag), &path);
            record = taken.map_or_else(|_| Record::default(), |()| record);
        }
        let journal = Journal::begin(&journal_path, size, record).map_err(failed)?;
        Ok(Self {
            journal: Mutex::new(journal),
            path,
            journal_path,
            size,
        })
    }

    /// Bytes that need not be brought again.
    pub(crate) fn bytes_on_disk(dir: &RepoDir, etag: &str, size: u64) -> u64 {
        record(dir, etag, size).done.bytes()
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

    /// Settles whether an answer of this identity continues what is there.
    pub(crate) fn agree(&self, identity: Option<&str>) -> Result<Result<(), Changed>, HubError> {
        let mut journal = self.journal();
        match (journal.identity(), identity) {
            (_, None) => Ok(Ok(())),
            (Some(known), Some(told)) if known == told => Ok(Ok(())),
            (Some(_), Some(_)) => Ok(Err(Changed)),
            (None, Some(told)) => {
                let record = Record {
                    identity: Some(told.to_owned()),
                    done: journal.done().clone(),
                };
                *journal = self.begin(record)?;
                Ok(Ok(()))
            }
        }
    }

    /// Forgets all bytes; the next answer settles whose they will be.
    pub(crate) fn forget(&self) -> Result<(), HubError> {
        *self.journal() = self.begin(Record::default())?;
        Ok(())
    }

    /// Puts the whole file at `blob`, durably. The journal is left to [`clear`]: without its file
    /// it promises nothing.
    pub(crate) fn install(self, blob: &Path) -> Result<(), HubError> {
        fs::rename(&self.path, blob).map_err(|cause| HubError::io("create", blob, cause))?;
        sync_dir(blob);
        Ok(())
    }

    /// A place to write from `at` on.
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
            promised: at,
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

/// What is there of a file: by our journal, or by the length of what Python's client left, which
/// the hash of the whole will judge.
fn record(dir: &RepoDir, etag: &str, size: u64) -> Record {
    let length = |path: PathBuf| fs::metadata(path).ok().map(|found| found.len());
    if let Some(length) = length(dir.part(etag)) {
        let record = Record::read(&dir.journal(etag), size);
        // A promise beyond the file's end was made of another file.
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

/// Removes every trace of a download, also of one that was killed between its last two steps.
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

/// One stream's hand on the file. Bytes are promised in steps, and when it is dropped.
pub(crate) struct Writer<'p> {
    part: &'p Part,
    file: File,
    promised: u64,
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
        if self.at - self.promised >= step {
            self.promise()
        } else {
            Ok(())
        }
    }

    pub(crate) fn promise(&mut self) -> Result<(), HubError> {
        if self.at == self.promised {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|cause| HubError::io("write", &self.part.path, cause))?;
        self.part
            .journal()
            .add(self.promised..self.at)
            .map_err(|cause| HubError::io("write", &self.part.journal_path, cause))?;
        self.promised = self.at;
        Ok(())
    }
}

/// Makes a rename durable where directories can be synced; elsewhere the system has to.
pub(crate) fn sync_dir(path: &Path) {
    if let Some(Ok(dir)) = path.parent().map(File::open) {
        let _ = dir.sync_all();
    }
}
