//! What the cache holds, whoever brought it: looked through, removed, hashed again.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{RepoDir, is_word, repo_of};
use super::lock::BlobLock;
use super::{Hub, HubError, digest::Expected, listing};
use crate::{FileProgress, Progress};

/// A commit of a repository, or as much of it as was downloaded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CachedSnapshot {
    /// `owner/name`.
    pub repo: String,
    pub commit: String,
    /// The branches and tags that stood at this commit when they were last asked for.
    pub refs: Vec<String>,
    pub dir: PathBuf,
    /// In the order of their paths.
    pub files: Vec<CachedFile>,
}

#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CachedFile {
    /// Within the repository.
    pub path: String,
    /// 0 where a link leads nowhere.
    pub size: u64,
    /// The hash its content should have: SHA-256 or git's, by its length. `None` where the file
    /// is no link, as on systems without them.
    pub hash: Option<String>,
}

/// A file whose content is not what its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damaged {
    pub path: String,
    pub expected: String,
    /// `None` where there is no content at all.
    pub found: Option<String>,
}

/// Something in the cache that serves nobody.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    pub path: PathBuf,
    pub bytes: u64,
}

impl CachedFile {
    /// Whether its content can be told right from wrong: mirrors may give names that are no
    /// hashes, and copies have none.
    pub fn can_be_checked(&self) -> bool {
        let expected = self.hash.as_deref().and_then(Expected::named);
        !matches!(expected, None | Some(Expected::Opaque(_)))
    }
}

impl CachedSnapshot {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

impl Hub {
    /// Every snapshot in the cache; one that is not there yet holds none.
    pub fn cached(&self) -> Result<Vec<CachedSnapshot>, HubError> {
        let mut found = Vec::new();
        for folder in names(&self.cache_dir)? {
            let Some(repo) = repo_of(&folder) else {
                continue;
            };
            match snapshots(&RepoDir::named(&self.cache_dir, &folder), &repo) {
                Ok(snapshots) => found.extend(snapshots),
                // One that cannot be read hides none of the others.
                Err(error) => tracing::warn!("{folder} in the hub's cache is left out: {error}"),
            }
        }
        Ok(found)
    }

    /// Removes a snapshot, the refs that point to it and the blobs that only it uses, and says
    /// how many bytes that freed. Content that another process is bringing stays.
    pub fn remove(&self, snapshot: &CachedSnapshot) -> Result<u64, HubError> {
        let dir = RepoDir::of(&self.cache_dir, &snapshot.repo);
        let all = snapshots(&dir, &snapshot.repo)?;
        let (ours, others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|other| other.commit == snapshot.commit);
        // Refs go first: one that points to nothing would be found by name and be empty.
        for reference in ours.iter().flat_map(|ours| &ours.refs) {
            remove_file(&dir.reference(reference))?;
        }
        let mut freed = 0;
        for ours in &ours {
            for file in &ours.files {
                let removed = remove_file(&ours.dir.join(&file.path))?;
                freed += file.hash.as_ref().map_or(removed, |_| 0);
            }
            // What someone brings into it meanwhile keeps it.
            remove_empty(&ours.dir);
        }
        let used = ours.iter().flat_map(|ours| &ours.files);
        let used: HashSet<&str> = used.filter_map(|file| file.hash.as_deref()).collect();
        for etag in used {
            freed += remove_blob(&dir, &snapshot.repo, etag)?;
        }
        if others.is_empty() {
            freed += sweep(&dir, &snapshot.repo, Reach::Parts)?
                .iter()
                .map(|leftover| leftover.bytes)
                .sum::<u64>();
            remove_empty(dir.root());
        }
        Ok(freed)
    }

    /// Removes some of a snapshot's files and the blobs that nothing else uses, and says how many
    /// bytes that freed; the whole snapshot where these are all it has.
    pub fn remove_files(&self, snapshot: &CachedSnapshot, files: &[&str]) -> Result<u64, HubError> {
        let dir = RepoDir::of(&self.cache_dir, &snapshot.repo);
        let all = snapshots(&dir, &snapshot.repo)?;
        let goes = |of: &CachedSnapshot, file: &CachedFile| {
            of.commit == snapshot.commit && files.contains(&file.path.as_str())
        };
        let ours = all.iter().find(|other| other.commit == snapshot.commit);
        let Some(ours) = ours else {
            return Ok(0);
        };
        if ours.files.iter().all(|file| goes(ours, file)) {
            return self.remove(ours);
        }
        let mut freed = 0;
        for file in ours.files.iter().filter(|file| goes(ours, file)) {
            let removed = remove_file(&ours.dir.join(&file.path))?;
            freed += match file.hash.as_deref() {
                Some(etag) => remove_blob(&dir, &snapshot.repo, etag)?,
                None => removed,
            };
        }
        remove_empty(&ours.dir);
        Ok(freed)
    }

    /// What [`Hub::sweep`] would remove.
    pub fn leftovers(&self, is_ours: &dyn Fn(&str) -> bool) -> Result<Vec<Leftover>, HubError> {
        let mut found = Vec::new();
        self.each_repo(is_ours, &mut |dir, repo, reach| {
            for (etag, path) in leftovers(dir, repo, reach)? {
                if BlobLock::if_free(&dir.lock(&etag)).is_some() {
                    let bytes = fs::symlink_metadata(&path).map_or(0, |found| found.len());
                    found.push(Leftover { path, bytes });
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Removes what our downloads that ended early left behind and, of the repositories that
    /// `is_ours` says we brought something of, the blobs that no snapshot uses; says what it
    /// removed. What other tools began stays, and what another process is at work on.
    pub fn sweep(&self, is_ours: &dyn Fn(&str) -> bool) -> Result<Vec<Leftover>, HubError> {
        let mut removed = Vec::new();
        self.each_repo(is_ours, &mut |dir, repo, reach| {
            removed.extend(sweep(dir, repo, reach)?);
            Ok(())
        })?;
        Ok(removed)
    }

    fn each_repo(
        &self,
        is_ours: &dyn Fn(&str) -> bool,
        visit: &mut dyn FnMut(&RepoDir, &str, Reach) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        for folder in names(&self.cache_dir)? {
            let dir = RepoDir::named(&self.cache_dir, &folder);
            if let Some(repo) = repo_of(&folder).filter(|_| dir.root().is_dir()) {
                let reach = if is_ours(&repo) {
                    Reach::PartsAndBlobs
                } else {
                    Reach::Parts
                };
                visit(&dir, &repo, reach)?;
            }
        }
        Ok(())
    }

    /// Hashes the snapshot's files again, and names those that are wrong. A file that is no link
    /// has nothing to be compared with.
    pub fn verify(
        &self,
        snapshot: &CachedSnapshot,
        progress: &mut dyn Progress,
    ) -> Result<Vec<Damaged>, HubError> {
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
) -> Result<Option<Damaged>, HubError> {
    let path = dir.join(&file.path);
    let (name, bytes) = (file.path.as_str(), file.size);
    progress.file(index, FileProgress::Started { name, bytes });
    let mut at = 0;
    let mut seen = |read: u64| {
        at += read;
        progress.file(index, FileProgress::At(at));
        progress.advance(read);
    };
    let damaged = |expected: &str, found| Damaged {
        path: file.path.clone(),
        expected: expected.to_owned(),
        found,
    };
    let outcome = match file.hash.as_deref().and_then(Expected::named) {
        None => Ok(None),
        Some(expected) => match expected.mismatch(&path, &mut seen) {
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
                hash: listing::blob_of(path).map(|expected| expected.etag().to_owned()),
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

/// Which leftovers of a repository may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Downloads that carry our name.
    Parts,
    /// Also content that no snapshot uses.
    PartsAndBlobs,
}

/// Removes a blob that nothing uses and what there is of its download, unless someone is at work
/// on it.
fn remove_blob(dir: &RepoDir, repo: &str, etag: &str) -> Result<u64, HubError> {
    let Some(_held) = BlobLock::if_free(&dir.lock(etag)) else {
        return Ok(0);
    };
    // Looked at now that nobody else can link to it.
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

fn sweep(dir: &RepoDir, repo: &str, reach: Reach) -> Result<Vec<Leftover>, HubError> {
    let mut removed = Vec::new();
    for (etag, _) in leftovers(dir, repo, reach)? {
        let Some(_held) = BlobLock::if_free(&dir.lock(&etag)) else {
            continue;
        };
        // Again, now that nobody else can link to it.
        let still = leftovers(dir, repo, reach)?;
        for (_, path) in still.into_iter().filter(|(other, _)| *other == etag) {
            let bytes = remove_file(&path)?;
            removed.push(Leftover { path, bytes });
        }
    }
    Ok(removed)
}

/// Downloads of ours that did not end, and blobs that no snapshot uses, each with its etag.
fn leftovers(dir: &RepoDir, repo: &str, reach: Reach) -> Result<Vec<(String, PathBuf)>, HubError> {
    let snapshots = snapshots(dir, repo)?;
    let files = || snapshots.iter().flat_map(|snapshot| &snapshot.files);
    let used: HashSet<&str> = files().filter_map(|file| file.hash.as_deref()).collect();
    // Where files are copies and not links, nothing says which blobs they are copies of.
    let linked = files().all(|file| file.hash.is_some());
    let blobs = linked && reach == Reach::PartsAndBlobs;
    let mut found = Vec::new();
    for name in names(&dir.blobs())? {
        // `<etag>.incomplete` and `<etag>.<random>.incomplete` are Python's, who may go on.
        let etag = match name.split_once('.') {
            Some((etag, rest)) if rest.starts_with("loquat.") => etag,
            None if blobs && !used.contains(name.as_str()) => &name,
            _ => continue,
        };
        found.push((etag.to_owned(), dir.blobs().join(&name)));
    }
    Ok(found)
}

/// Removes a folder with those in it, as far as no file is in them. Each goes only if it is empty
/// at that moment, so nothing that comes meanwhile is lost.
fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|found| found.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // It stays where something is in it, which is what is wanted.
    let _ = fs::remove_dir(dir);
}

/// The bytes that this freed; nothing for what is not there.
fn remove_file(path: &Path) -> Result<u64, HubError> {
    let bytes = fs::symlink_metadata(path).map_or(0, |found| found.len());
    match fs::remove_file(path) {
        Ok(()) => Ok(bytes),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(cause) => Err(HubError::io("remove", path, cause)),
    }
}

/// What a directory holds, in order; nothing where there is none. Names that are not text are
/// not ours.
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

/// Visits every file and link below, in order, by its name with `/` between folders.
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
    fn content_that_came_into_use_meanwhile_stays() {
        let cache = tempfile::tempdir().unwrap();
        let dir = RepoDir::of(cache.path(), "o/n");
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
