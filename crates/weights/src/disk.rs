//! Paths and sizes on disk, for the crates that find, write and remove checkpoints.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The path that [`OsStr::as_encoded_bytes`](std::ffi::OsStr::as_encoded_bytes) wrote. `None` for
/// bytes that no path of this system has.
pub fn path_from_bytes(bytes: Vec<u8>) -> Option<PathBuf> {
    os_string(bytes).map(PathBuf::from)
}

#[cfg(unix)]
fn os_string(bytes: Vec<u8>) -> Option<OsString> {
    Some(std::os::unix::ffi::OsStringExt::from_vec(bytes))
}

#[cfg(not(unix))]
fn os_string(bytes: Vec<u8>) -> Option<OsString> {
    String::from_utf8(bytes).ok().map(OsString::from)
}

/// Size of a file or of all files below a directory. Unreadable entries count as 0, because files
/// change concurrently.
pub fn size_on_disk(path: &Path) -> u64 {
    let Ok(metadata) = path.symlink_metadata() else {
        return 0;
    };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_on_disk(&entry.path())).sum()
}
