//! Lists, verifies and removes what the shared cache holds.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{RepoDir, is_word, repo_in_folder};
use super::lock::BlobLock;
use super::{Hub, HubError, digest::ExpectedHash, listing};
use crate::{FileProgress, Progress};

/// The downloaded files of one commit of a repository.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CachedSnapshot {
    /// `owner/name`.
    pub repo: String,
    /// The commit's hash.
    pub commit: String,
    /// Branches and tags that pointed to this commit when last fetched.
    pub refs: Vec<String>,
    /// The directory with the links to the files.
    pub dir: PathBuf,
    /// Sorted by path.
    pub files: Vec<CachedFile>,
}

/// A downloaded file of a snapshot.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CachedFile {
    /// Path within the repository.
    pub path: String,
    /// 0 for a dangling link.
    pub size: u64,
    /// The expected hash, SHA-256 or git's, distinguished by length. `None` if the file is not a
    /// link, as on systems without symlinks.
    pub hash: Option<String>,
}

/// A file whose content does not match its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedFile {
    /// Path within the repository.
    pub path: String,
    /// The hash it should have.
    pub expected: String,
    /// `None` if there is no content.
    pub found: Option<String>,
}

/// Unused data in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// The file or directory.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl CachedFile {
    /// Whether its content can be verified. Mirrors may use names that are not hashes, and copies
    /// have none.
    pub fn can_be_checked(&self) -> bool {
        let expected = self.hash.as_deref().and_then(ExpectedHash::from_etag);
        !matches!(expected, None | Some(ExpectedHash::Opaque(_)))
    }
}

impl CachedSnapshot {
    /// The size of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

impl Hub {
    /// Every snapshot in the cache; none if the cache does not exist.
    pub fn cached(&self) -> Result<Vec<CachedSnapshot>, HubError> {
        let mut found = Vec::new();
        for folder in names(&self.cache_dir)? {
            let Some(repo) = repo_in_folder(&folder) else {
                continue;
            };
            match snapshots(&RepoDir::for_folder(&self.cache_dir, &folder), &repo) {
                Ok(snapshots) => found.extend(snapshots),
                // An unreadable repository does not hide the others.
                Err(error) => tracing::warn!("{folder} in the hub's cache is skipped: {error}"),
            }
        }
        Ok(found)
    }

    /// Removes a snapshot, the refs that point to it and the blobs that only it uses. Returns the
    /// bytes freed. Keeps content that another process is downloading.
    pub fn remove(&self, snapshot: &CachedSnapshot) -> Result<u64, HubError> {
        let dir = RepoDir::for_repo(&self.cache_dir, &snapshot.repo);
        let all = snapshots(&dir, &snapshot.repo)?;
        let (same_commit, others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|other| other.commit == snapshot.commit);
        // Refs go first: a dangling ref would resolve to an empty model.
        for reference in same_commit.iter().flat_map(|cached| &cached.refs) {
            remove_file(&dir.reference(reference))?;
        }
        let mut freed = 0;
        for cached in &same_commit {
            for file in &cached.files {
                let removed = remove_file(&cached.dir.join(&file.path))?;
                freed += file.hash.as_ref().map_or(removed, |_| 0);
            }
            // A concurrent download into it keeps the folder.
            remove_empty(&cached.dir);
        }
        let used = same_commit.iter().flat_map(|cached| &cached.files);
        let used: HashSet<&str> = used.filter_map(|file| file.hash.as_deref()).collect();
        for etag in used {
            freed += remove_blob(&dir, &snapshot.repo, etag)?;
        }
        if others.is_empty() {
            freed += sweep(&dir, &snapshot.repo, LeftoverKinds::Parts)?
                .iter()
                .map(|leftover| leftover.bytes)
                .sum::<u64>();
            remove_empty(dir.root());
        }
        Ok(freed)
    }

    /// Removes some of a snapshot's files and the blobs that nothing else uses. Returns the bytes
    /// freed. Removes the whole snapshot if no file remains.
    pub fn remove_files(&self, snapshot: &CachedSnapshot, files: &[&str]) -> Result<u64, HubError> {
        let dir = RepoDir::for_repo(&self.cache_dir, &snapshot.repo);
        let all = snapshots(&dir, &snapshot.repo)?;
        let is_removed = |of: &CachedSnapshot, file: &CachedFile| {
            of.commit == snapshot.commit && files.contains(&file.path.as_str())
        };
        let cached = all.iter().find(|other| other.commit == snapshot.commit);
        let Some(cached) = cached else {
            return Ok(0);
        };
        if cached.files.iter().all(|file| is_removed(cached, file)) {
            return self.remove(cached);
        }
        let mut freed = 0;
        for file in cached.files.iter().filter(|file| is_removed(cached, file)) {
            let removed = remove_file(&cached.dir.join(&file.path))?;
            freed += match file.hash.as_deref() {
                Some(etag) => remove_blob(&dir, &snapshot.repo, etag)?,
                None => removed,
            };
        }
        remove_empty(&cached.dir);
        Ok(freed)
    }

    /// Lists what [`Hub::sweep`] would remove.
    pub fn leftovers(&self, is_ours: &dyn Fn(&str) -> bool) -> Result<Vec<Leftover>, HubError> {
        let mut found = Vec::new();
        self.each_repo(is_ours, &mut |dir, repo, kinds| {
            for (etag, path) in leftovers(dir, repo, kinds)? {
                if BlobLock::if_free(&dir.lock(&etag)).is_some() {
                    let bytes = fs::symlink_metadata(&path).map_or(0, |found| found.len());
                    found.push(Leftover { path, bytes });
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Removes our unfinished downloads and, in repositories for which `is_ours` is true, blobs
    /// that no snapshot uses. Returns what it removed. Keeps other tools' downloads and everything
    /// another process has locked.
    pub fn sweep(&self, is_ours: &dyn Fn(&str) -> bool) -> Result<Vec<Leftover>, HubError> {
        let mut removed = Vec::new();
        self.each_repo(is_ours, &mut |dir, repo, kinds| {
            removed.extend(sweep(dir, repo, kinds)?);
            Ok(())
        })?;
        Ok(removed)
    }

    fn each_repo(
        &self,
        is_ours: &dyn Fn(&str) -> bool,
        visit: &mut dyn FnMut(&RepoDir, &str, LeftoverKinds) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        for folder in names(&self.cache_dir)? {
            let dir = RepoDir::for_folder(&self.cache_dir, &folder);
            if let Some(repo) = repo_in_folder(&folder).filter(|_| dir.root().is_dir()) {
                let kinds = if is_ours(&repo) {
                    LeftoverKinds::PartsAndBlobs
                } else {
                    LeftoverKinds::Parts
                };
                visit(&dir, &repo, kinds)?;
            }
        }
        Ok(())
    }

    /// Hashes the snapshot's files and returns the damaged ones. Files that are not links have no
    /// expected hash and are skipped.
    pub fn verify(
        &self,
        snapshot: &CachedSnapshot,
        progress: &mut dyn Progress,
    ) -> Result<Vec<DamagedFile>, HubError> {
        progress.start(
            &format!("verifying {}", snapshot.repo),
            Some(snapshot.bytes()),
        );
        let damaged = snapshot
            .files
            .iter()
            .enumerate()
            .map(|(index, file)| verify_file(&snapshot.dir, index, file, progress))
            .collect::<Result<Vec<_>, _>>();
        progress.finish();
        Ok(damaged?.into_iter().flatten().collect())
    }
}

fn verify_file(
    dir: &Path,
    index: usize,
    file: &CachedFile,
    progress: &mut dyn Progress,
) -> Result<Option<DamagedFile>, HubError> {
    let path = dir.join(&file.path);
    let (name, bytes) = (file.path.as_str(), file.size);
    progress.file(index, FileProgress::Started { name, bytes });
    let mut at = 0;
    let mut on_read = |read: u64| {
        at += read;
        progress.file(index, FileProgress::At(at));
        progress.advance(read);
    };
    let damaged = |expected: &str, found| DamagedFile {
        path: file.path.clone(),
        expected: expected.to_owned(),
        found,
    };
    let outcome = match file.hash.as_deref().and_then(ExpectedHash::from_etag) {
        None => Ok(None),
        Some(expected) => match expected.mismatch(&path, &mut on_read) {
            Ok(found) => Ok(found.map(|found| damaged(expected.etag(), Some(found)))),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                Ok(Some(damaged(expected.etag(), None)))
            }
            Err(cause) => Err(HubError::io("read", &path, cause)),
        },
    };
    progress.file(index, FileProgress::Ended);
    outcome
}

fn snapshots(dir: &RepoDir, repo: &str) -> Result<Vec<CachedSnapshot>, HubError> {
    let mut refs = Vec::new();
    walk(&dir.refs(), "", &mut |name, path| {
        if let Ok(commit) = fs::read_to_string(path) {
            refs.push((name.to_owned(), commit.trim().to_owned()));
        }
    })?;
    let mut found = Vec::new();
    for commit in names(&dir.snapshots())? {
        let here = dir.snapshot(&commit);
        if !is_word(&commit) || !here.is_dir() {
            continue;
        }
        let mut files = Vec::new();
        walk(&here, "", &mut |name, path| {
            files.push(CachedFile {
                path: name.to_owned(),
                size: fs::metadata(path).map_or(0, |found| found.len()),
                hash: listing::linked_blob(path).map(|expected| expected.etag().to_owned()),
            });
        })?;
        let points = refs.iter().filter(|(_, at)| *at == commit);
        found.push(CachedSnapshot {
            repo: repo.to_owned(),
            refs: points.map(|(name, _)| name.clone()).collect(),
            dir: here,
            commit,
            files,
        });
    }
    Ok(found)
}

/// Which leftovers of a repository may be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeftoverKinds {
    /// Our unfinished downloads.
    Parts,
    /// Also blobs that no snapshot uses.
    PartsAndBlobs,
}

/// Removes an unused blob and its partial download, unless another process has locked it.
fn remove_blob(dir: &RepoDir, repo: &str, etag: &str) -> Result<u64, HubError> {
    let Some(_held) = BlobLock::if_free(&dir.lock(etag)) else {
        return Ok(0);
    };
    // Read under the lock: no other process can link to it now.
    let snapshots = snapshots(dir, repo)?;
    let mut files = snapshots.iter().flat_map(|snapshot| &snapshot.files);
    if files.any(|file| file.hash.as_deref() == Some(etag)) {
        return Ok(0);
    }
    let mut freed = 0;
    for path in [dir.blob(etag), dir.part(etag), dir.journal(etag)] {
        freed += remove_file(&path)?;
    }
    Ok(freed)
}

fn sweep(dir: &RepoDir, repo: &str, kinds: LeftoverKinds) -> Result<Vec<Leftover>, HubError> {
    let mut removed = Vec::new();
    for (etag, _) in leftovers(dir, repo, kinds)? {
        let Some(_held) = BlobLock::if_free(&dir.lock(&etag)) else {
            continue;
        };
        // Read again under the lock: no other process can link to it now.
        let still = leftovers(dir, repo, kinds)?;
        for (_, path) in still.into_iter().filter(|(other, _)| *other == etag) {
            let bytes = remove_file(&path)?;
            removed.push(Leftover { path, bytes });
        }
    }
    Ok(removed)
}

/// Our unfinished downloads and blobs that no snapshot uses, each with its etag.
fn leftovers(
    dir: &RepoDir,
    repo: &str,
    kinds: LeftoverKinds,
) -> Result<Vec<(String, PathBuf)>, HubError> {
    let snapshots = snapshots(dir, repo)?;
    let files = || snapshots.iter().flat_map(|snapshot| &snapshot.files);
    let used: HashSet<&str> = files().filter_map(|file| file.hash.as_deref()).collect();
    // If files are copies instead of links, their blobs are unknown.
    let linked = files().all(|file| file.hash.is_some());
    let blobs = linked && kinds == LeftoverKinds::PartsAndBlobs;
    let mut found = Vec::new();
    for name in names(&dir.blobs())? {
        // `<etag>.incomplete` and `<etag>.<random>.incomplete` belong to Python's client, which may
        // resume them.
        let etag = match name.split_once('.') {
            Some((etag, rest)) if rest.starts_with("loquat.") => etag,
            None if blobs && !used.contains(name.as_str()) => &name,
            _ => continue,
        };
        found.push((etag.to_owned(), dir.blobs().join(&name)));
    }
    Ok(found)
}

/// Removes a folder and its subfolders if they hold no files. `remove_dir` fails on a folder that
/// is not empty, so concurrent downloads are safe.
fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|found| found.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // A folder that is not empty stays.
    let _ = fs::remove_dir(dir);
}

/// Returns the bytes freed; 0 if the file does not exist.
fn remove_file(path: &Path) -> Result<u64, HubError> {
    let bytes = fs::symlink_metadata(path).map_or(0, |found| found.len());
    match fs::remove_file(path) {
        Ok(()) => Ok(bytes),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(cause) => Err(HubError::io("remove", path, cause)),
    }
}

/// Sorted names in a directory; empty if it does not exist. Skips names that are not UTF-8.
fn names(dir: &Path) -> Result<Vec<String>, HubError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(HubError::io("read", dir, cause)),
    };
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Ok(names)
}

/// Visits every file and link below `dir` in order, with `/`-separated names.
fn walk(dir: &Path, prefix: &str, visit: &mut dyn FnMut(&str, &Path)) -> Result<(), HubError> {
    for name in names(dir)? {
        let path = dir.join(&name);
        let name = format!("{prefix}{name}");
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_folder {
            walk(&path, &format!("{name}/"), visit)?
        } else {
            visit(&name, &path)
        }
    }
    Ok(())
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn blob_in_use_is_kept() {
        let cache = tempfile::tempdir().unwrap();
        let dir = RepoDir::for_repo(cache.path(), "o/n");
        let etag = "a".repeat(64);
        let snapshot = dir.snapshot("c");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(dir.blobs()).unwrap();
        fs::write(dir.blob(&etag), "whole").unwrap();
        let pointer = snapshot.join("model.gguf");
        std::os::unix::fs::symlink(format!("../../blobs/{etag}"), &pointer).unwrap();

        assert_eq!(remove_blob(&dir, "o/n", &etag).unwrap(), 0);
        remove_empty(dir.root());
        assert_eq!(fs::read(&pointer).unwrap(), b"whole");

        fs::remove_file(&pointer).unwrap();
        assert_eq!(remove_blob(&dir, "o/n", &etag).unwrap(), 5);
        remove_empty(dir.root());
        assert!(!dir.root().exists());
    }
}
