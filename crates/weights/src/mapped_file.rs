//! Mapped files, and whether other programs changed them.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use memmap2::Mmap;

#[cfg(unix)]
use crate::bus_guard::Guarded;
use crate::{Blob, Matrix, WeightsError, require_regular_file};

/// A file mapped into memory.
pub(crate) struct MappedFile {
    // Dropped before the map.
    #[cfg(unix)]
    guarded: Guarded,
    map: Mmap,
    /// The mapped file; its path may name another file by now.
    file: File,
    path: PathBuf,
    stamp: FileStamp,
}

/// Identifies a version of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    len: u64,
    /// `None` if the system does not record it.
    modified: Option<SystemTime>,
}

impl From<&Metadata> for FileStamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            len: metadata.len(),
            modified: metadata.modified().ok(),
        }
    }
}

/// What happened to a file while it was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    Resized {
        from: u64,
        to: u64,
    },
    Written,
    /// The system could not read some of it.
    Unreadable,
}

impl fmt::Display for FileChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resized { from, to } => write!(f, "it had {from} bytes and now has {to}"),
            Self::Written => f.write_str("it was written to"),
            Self::Unreadable => f.write_str("parts of it cannot be read"),
        }
    }
}

impl MappedFile {
    pub fn open(path: &Path) -> io::Result<Self> {
        require_regular_file(path)?;
        let file = File::open(path)?;
        let stamp = FileStamp::from(&file.metadata()?);
        // SAFETY: the map is private and read-only, and only `&[u8]` is exposed. Another program
        // that writes to the file changes those bytes: every byte pattern is valid, readers
        // validate what they parse, and `check` reports the change. If a program truncates the
        // file, the guard replaces the missing pages.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self {
            #[cfg(unix)]
            guarded: Guarded::new(&map),
            map,
            file,
            path: path.to_owned(),
            stamp,
        })
    }

    pub fn map(&self) -> &Mmap {
        &self.map
    }

    /// Copies the bytes at `offset` without mapping their pages. Returns false if they cannot be
    /// read; the map then reports why.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileExt;
            self.file.read_exact_at(out, offset as u64).is_ok()
        }
        #[cfg(not(unix))]
        {
            let _ = (offset, out);
            false
        }
    }

    fn change(&self) -> Option<FileChange> {
        let Ok(metadata) = self.file.metadata() else {
            return Some(FileChange::Unreadable);
        };
        let now = FileStamp::from(&metadata);
        if now.len != self.stamp.len {
            let (from, to) = (self.stamp.len, now.len);
            return Some(FileChange::Resized { from, to });
        }
        if now != self.stamp {
            return Some(FileChange::Written);
        }
        #[cfg(unix)]
        if self.guarded.is_lost() {
            return Some(FileChange::Unreadable);
        }
        None
    }
}

/// The files that weights are read from. If [`check`](Self::check) succeeds, all values read before
/// are those the files had when they were opened.
#[derive(Clone, Default)]
pub struct FileWatch {
    files: Vec<Arc<MappedFile>>,
}

impl FileWatch {
    /// Adds the file of these bytes, if they are mapped from one.
    pub fn add_blob(&mut self, blob: &Blob) {
        let Some(file) = blob.file() else { return };
        if !self.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            self.files.push(Arc::clone(file));
        }
    }

    /// Adds the files of a matrix.
    pub fn add(&mut self, matrix: &Matrix) {
        for tensor in matrix.tensors() {
            self.add_blob(&tensor.data);
        }
    }

    /// Fails if a file was truncated, written to or unreadable since it was opened. A file that was
    /// deleted, or replaced by a new file, is still intact.
    pub fn check(&self) -> Result<(), WeightsError> {
        for file in &self.files {
            if let Some(change) = file.change() {
                let path = file.path.clone();
                return Err(WeightsError::FileChanged { path, change });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.files.iter().map(|file| &file.path);
        f.debug_list().entries(paths).finish()
    }
}
