//! Puts blobs into snapshots, and commits into refs.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::HubError;
use super::layout::{RepoDir, link_to_blob};
use super::part::sync_dir;

/// How often a folder that is removed again is made again.
const ATTEMPTS: usize = 10;

/// Whether a file, or what a link leads to, is there and so long.
pub(crate) fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

/// Makes `path` of the commit's snapshot lead to the blob, in one step: whoever looks sees it
/// whole or not at all. Where the system has no links, the blob itself is moved there.
pub(crate) fn link(dir: &RepoDir, commit: &str, path: &str, etag: &str) -> Result<(), HubError> {
    let pointer = dir.snapshot(commit).join(path);
    let blob = dir.blob(etag);
    let target = link_to_blob(path, etag);
    if !blob.exists() || fs::read_link(&pointer).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let failed = |cause| HubError::io("create", &pointer, cause);
    match fs::remove_file(&pointer) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    let mut left = ATTEMPTS;
    loop {
        if let Some(parent) = pointer.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        left -= 1;
        let linked = match symlink(&target, &pointer) {
            Ok(()) => Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            // Whoever removes a snapshot took the folder while it was empty.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && left > 0 => continue,
            Err(_) => fs::rename(&blob, &pointer),
        };
        linked.map_err(failed)?;
        sync_dir(&pointer);
        return Ok(());
    }
}

/// Writes down that the revision stands at this commit, by a rename: no reader finds half a
/// commit.
pub(crate) fn point(dir: &RepoDir, revision: &str, commit: &str) -> Result<(), HubError> {
    let path = dir.reference(revision);
    if revision == commit || fs::read_to_string(&path).is_ok_and(|found| found.trim() == commit) {
        return Ok(());
    }
    let failed = |cause| HubError::io("write", &path, cause);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    // Beside the refs and not among them, where a leftover would be taken for a revision.
    let mut draft = draft(dir.root()).map_err(failed)?;
    draft.write_all(commit.as_bytes()).map_err(failed)?;
    draft.as_file().sync_all().map_err(failed)?;
    draft.persist(&path).map_err(|error| failed(error.error))?;
    sync_dir(&path);
    Ok(())
}

fn draft(dir: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("ref.");
    // As any other file would be, since other accounts may share the cache.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(dir)
}

#[cfg(unix)]
fn symlink(target: &Path, pointer: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, pointer)
}

#[cfg(windows)]
fn symlink(target: &Path, pointer: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, pointer)
}
