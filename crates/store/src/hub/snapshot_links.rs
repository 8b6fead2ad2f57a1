//! Links blobs into snapshots and commits into refs.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::HubError;
use super::layout::{RepoDir, link_to_blob};
use super::partial_file::sync_dir;

/// How often to recreate a folder that another process removes.
const ATTEMPTS: usize = 10;

/// Whether a file or link target exists with this size.
pub(crate) fn has_size(path: &Path, size: u64) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == size)
}

/// Links `path` of the commit's snapshot to the blob, atomically. On systems without symlinks,
/// moves the blob instead.
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
            // A concurrent removal deleted the empty folder.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound && left > 0 => continue,
            Err(_) => fs::rename(&blob, &pointer),
        };
        linked.map_err(failed)?;
        sync_dir(&pointer);
        return Ok(());
    }
}

/// Points the revision's ref to the commit, atomically.
pub(crate) fn set_ref(dir: &RepoDir, revision: &str, commit: &str) -> Result<(), HubError> {
    let path = dir.reference(revision);
    if revision == commit || fs::read_to_string(&path).is_ok_and(|found| found.trim() == commit) {
        return Ok(());
    }
    let failed = |cause| HubError::io("write", &path, cause);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    // Outside `refs`, where a leftover would look like a revision.
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
    // Normal permissions, because other accounts may share the cache.
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
