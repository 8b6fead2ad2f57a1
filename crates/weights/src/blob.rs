//! Shared read-only bytes.

use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use crate::WeightsError;
use crate::mapped_file::MappedFile;

/// Read-only bytes, mapped from a file or held in memory.
///
/// Cloning and slicing are cheap: all views keep the one underlying store alive.
#[derive(Clone)]
pub struct Blob {
    store: Arc<Store>,
    /// Always within the store, because only [`Blob::slice`] changes it.
    range: Range<usize>,
}

enum Store {
    Map(Arc<MappedFile>),
    Vec(Vec<u8>),
}

impl Store {
    fn bytes(&self) -> &[u8] {
        match self {
            Store::Map(file) => file.map(),
            Store::Vec(bytes) => bytes,
        }
    }
}

impl Blob {
    /// Maps a whole file. Another program may change it at any time: rely on the bytes only after a
    /// [`FileWatch`](crate::FileWatch) confirms that the file is unchanged.
    pub fn map(path: &Path) -> Result<Blob, WeightsError> {
        let file = MappedFile::open(path).map_err(|source| WeightsError::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Blob::whole(Store::Map(Arc::new(file))))
    }

    pub fn from_vec(bytes: Vec<u8>) -> Blob {
        Blob::whole(Store::Vec(bytes))
    }

    fn whole(store: Store) -> Blob {
        let range = 0..store.bytes().len();
        Blob {
            store: Arc::new(store),
            range,
        }
    }

    /// A view of `range` of this view, or `None` if it is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Blob> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        Some(Blob {
            store: Arc::clone(&self.store),
            range: self.range.start + range.start..self.range.start + range.end,
        })
    }

    /// The file they are mapped from.
    pub(crate) fn file(&self) -> Option<&Arc<MappedFile>> {
        match &*self.store {
            Store::Map(file) => Some(file),
            Store::Vec(_) => None,
        }
    }

    /// Copies bytes that are mapped from a file from the file itself, which takes less time than
    /// mapping their pages and keeps none of them. Returns false if that is not possible.
    pub(crate) fn read_file(&self, range: Range<usize>, out: &mut [u8]) -> bool {
        let inside = range.start <= range.end && range.end <= self.range.len();
        let file = self.file().filter(|_| inside && range.len() == out.len());
        file.is_some_and(|file| file.read_at(self.range.start + range.start, out))
    }

    /// Releases the memory of these bytes if they are mapped from a file. Reading them maps them
    /// again.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Some(file) = self.file() {
            let (start, len) = (self.range.start, self.range.len());
            // SAFETY: no code writes to the map, so its pages have the file's bytes, or the zeros
            // that replace them, and the system reads them again on the next access.
            let advised = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                file.map().unchecked_advise_range(advice, start, len)
            };
            // Best effort: on failure the pages stay until the system needs the memory.
            let _ = advised;
        }
    }
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.store.bytes()[self.range.clone()]
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({} bytes)", self.range.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_stay_within_parent() {
        let blob = Blob::from_vec((0..10).collect());
        let middle = blob.slice(2..6).unwrap();
        assert_eq!(*middle, [2, 3, 4, 5]);
        assert_eq!(*middle.slice(1..3).unwrap(), [3, 4]);
        assert_eq!(*middle.slice(4..4).unwrap(), [0u8; 0]);
        #[expect(clippy::reversed_empty_ranges)]
        let refused = [0..5, 5..5, 3..2, 0..usize::MAX, usize::MAX..usize::MAX];
        for range in refused {
            assert!(middle.slice(range.clone()).is_none(), "{range:?}");
        }
    }

    #[test]
    fn released_bytes_can_still_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        for blob in [Blob::map(&path).unwrap(), Blob::from_vec(content.clone())] {
            for range in [0..100_000, 1..99_999, 5000..5001, 7..7] {
                let part = blob.slice(range.clone()).unwrap();
                part.release();
                assert_eq!(*part, content[range]);
                assert_eq!(*blob, content);
            }
        }
    }

    #[test]
    #[cfg(unix)]
    fn parts_are_read_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let content: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let blob = Blob::map(&path).unwrap();
        let part = blob.slice(1000..90_000).unwrap();
        for range in [0..89_000, 1..5000, 7..7] {
            let mut out = vec![0; range.len()];
            assert!(part.read_file(range.clone(), &mut out), "{range:?}");
            assert_eq!(out, part[range]);
        }
        // Outside, another length, and after the file was cut off.
        assert!(!part.read_file(88_999..89_001, &mut [0; 2]));
        assert!(!part.read_file(0..3, &mut [0; 2]));
        assert!(!Blob::from_vec(content).read_file(0..2, &mut [0; 2]));
        std::fs::write(&path, [0; 10]).unwrap();
        assert!(!part.read_file(0..2, &mut [0; 2]));
    }

    #[test]
    fn missing_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        for content in [&b"loquat"[..], b""] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(*Blob::map(&path).unwrap(), *content);
        }
        let missing = dir.path().join("missing");
        let error = Blob::map(&missing).unwrap_err();
        assert!(matches!(&error, WeightsError::Io { path, .. } if *path == missing));
    }
}
