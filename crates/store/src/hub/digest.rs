//! Content hashes used by the hub.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::RemoteFile;
use super::layout::is_word;

const CHUNK: usize = 256 * 1024;

/// The expected hash of a file, which also names its blob.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ExpectedHash {
    /// For large files, stored in LFS.
    Sha256(String),
    /// For small files: git's blob hash.
    GitBlob(String),
    /// From a mirror that does not forward the hub's hashes; cannot be verified.
    Opaque(String),
}

impl ExpectedHash {
    pub(crate) fn from_listing(file: &RemoteFile) -> Option<Self> {
        let hash = |text: &Option<String>, digits| {
            let text = text.as_deref()?.to_ascii_lowercase();
            (text.len() == digits && is_hexadecimal(&text)).then_some(text)
        };
        hash(&file.sha256, 64)
            .map(Self::Sha256)
            .or_else(|| hash(&file.blob_id, 40).map(Self::GitBlob))
    }

    /// Parses a blob's name or a server's ETag.
    pub(crate) fn from_etag(etag: &str) -> Option<Self> {
        match etag.len() {
            _ if !is_word(etag) => None,
            64 if is_hexadecimal(etag) => Some(Self::Sha256(etag.to_owned())),
            40 if is_hexadecimal(etag) => Some(Self::GitBlob(etag.to_owned())),
            _ => Some(Self::Opaque(etag.to_owned())),
        }
    }

    pub(crate) fn etag(&self) -> &str {
        let (Self::Sha256(etag) | Self::GitBlob(etag) | Self::Opaque(etag)) = self;
        etag
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "SHA-256",
            Self::GitBlob(_) => "git hash",
            Self::Opaque(_) => "tag",
        }
    }

    /// Returns the file's actual hash if it differs. Calls `on_read` with the bytes of each read.
    pub(crate) fn mismatch(
        &self,
        path: &Path,
        on_read: &mut dyn FnMut(u64),
    ) -> io::Result<Option<String>> {
        let mut file = File::open(path)?;
        let found = match self {
            Self::Sha256(_) => hash(&mut file, Sha256::new(), on_read)?,
            Self::GitBlob(_) => {
                let mut git = Sha1::new();
                git.update(format!("blob {}\0", file.metadata()?.len()));
                hash(&mut file, git, on_read)?
            }
            Self::Opaque(_) => return Ok(None),
        };
        Ok((found != self.etag()).then_some(found))
    }
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn hash(
    file: &mut File,
    mut hash: impl Digest,
    on_read: &mut dyn FnMut(u64),
) -> io::Result<String> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => {
                hash.update(&chunk[..read]);
                on_read(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let bytes = hash.finalize();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_git_and_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hello");
        std::fs::write(&path, "hello\n").unwrap();
        // From `git hash-object` and `sha256sum`.
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        for (etag, right) in [(git, true), (sha, true), ("any-tag", true)] {
            let expected = ExpectedHash::from_etag(etag).unwrap();
            let mut bytes = 0;
            let other = expected.mismatch(&path, &mut |read| bytes += read).unwrap();
            assert_eq!(other.is_none(), right, "{expected:?}");
        }
        for (wrong, found) in [("0".repeat(40), git), ("0".repeat(64), sha)] {
            let expected = ExpectedHash::from_etag(&wrong).unwrap();
            let other = expected.mismatch(&path, &mut |_| {}).unwrap();
            assert_eq!(other.as_deref(), Some(found));
        }
        assert_eq!(ExpectedHash::from_etag("../up"), None);
    }
}
