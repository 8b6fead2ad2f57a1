//! Downloads the files of a commit in parallel and merges their progress.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::digest::ExpectedHash;
use super::download::{Download, DownloadObserver, PendingFile};
use super::layout::{RepoDir, is_inner_path, is_word};
use super::lock::BlobLock;
use super::partial_file::PartialFile;
use super::retry::StopSignal;
use super::{Hub, HubError, HubRepo, Listing, RemoteFile, listing, snapshot_links};
use crate::{FileProgress, Progress};

/// Disk space to leave free beyond a download's size.
const MARGIN: u64 = 16 << 20;

impl Hub {
    /// Points the revision's ref to the listing's commit, whose files must be complete.
    pub fn set_ref(&self, repo: &HubRepo, listing: &Listing) -> Result<(), HubError> {
        if self.offline {
            Ok(())
        } else {
            snapshot_links::set_ref(&self.dir(repo)?, &repo.revision, &listing.commit)
        }
    }

    /// Downloads what is missing of `files`, verifies it and returns the snapshot directory.
    /// Changes only the cache. The revision's ref does not move, so that the old commit stays in
    /// use until [`set_ref`](Self::set_ref).
    ///
    /// Concurrent calls, from any process, download each byte once: the others wait.
    pub fn download(
        &self,
        repo: &HubRepo,
        listing: &Listing,
        files: &[&RemoteFile],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let dir = self.dir(repo)?;
        if !is_word(&listing.commit) {
            return Err(HubError::BadRevision {
                revision: listing.commit.clone(),
            });
        }
        let snapshot = dir.snapshot(&listing.commit);
        let missing = missing(&snapshot, files)?;
        if self.offline && !missing.is_empty() {
            return Err(HubError::FilesNotCached {
                repo: repo.id.clone(),
                files: missing.iter().map(|file| file.path.clone()).collect(),
            });
        }
        if self.offline {
            return Ok(snapshot);
        }
        let pending = missing
            .iter()
            .map(|file| listing::resolve_file(&self.client, repo, &listing.commit, file))
            .collect::<Result<Vec<_>, _>>()?;
        if !pending.is_empty() {
            self.check_room(&dir, &pending)?;
            let errand = FetchJob {
                hub: self,
                dir: &dir,
                repo,
                commit: &listing.commit,
                files: &pending,
            };
            progress.start(&format!("downloading {}", repo.id), Some(total(&pending)));
            let outcome = errand.run(progress);
            progress.finish();
            outcome?;
        }
        Ok(snapshot)
    }

    /// Hashes those of `files` that are on disk, removes damaged ones and returns their paths.
    /// [`Hub::download`] then downloads them again.
    pub fn discard_damaged(
        &self,
        repo: &HubRepo,
        listing: &Listing,
        files: &[&RemoteFile],
        progress: &mut dyn Progress,
    ) -> Result<Vec<String>, HubError> {
        let dir = self.dir(repo)?;
        let snapshot = dir.snapshot(&listing.commit);
        let absent: HashSet<&str> = missing(&snapshot, files)?
            .iter()
            .map(|file| file.path.as_str())
            .collect();
        let on_disk = files
            .iter()
            .filter(|file| !absent.contains(file.path.as_str()));
        let on_disk: Vec<(&str, ExpectedHash)> = on_disk
            .filter_map(|file| {
                let expected = ExpectedHash::from_listing(file)
                    .or_else(|| listing::linked_blob(&snapshot.join(&file.path)))?;
                Some((file.path.as_str(), expected))
            })
            .collect();
        if on_disk.is_empty() {
            return Ok(Vec::new());
        }
        let size = |path: &str| fs::metadata(snapshot.join(path)).map_or(0, |found| found.len());
        let total = on_disk.iter().map(|(path, _)| size(path)).sum();
        progress.start(&format!("verifying {}", repo.id), Some(total));
        let mut on_read = |read| progress.advance(read);
        let damaged = on_disk
            .iter()
            .map(|(path, expected)| {
                let path = snapshot.join(path);
                let found = expected.mismatch(&path, &mut on_read);
                found.map_err(|cause| HubError::io("read", &path, cause))
            })
            .collect::<Result<Vec<_>, _>>();
        progress.finish();
        let mut discarded = Vec::new();
        for ((path, expected), found) in on_disk.into_iter().zip(damaged?) {
            if found.is_some() && discard(&dir, &snapshot.join(path), &expected)? {
                discarded.push(path.to_owned());
            }
        }
        Ok(discarded)
    }

    /// Fails before the first request if the disk lacks space.
    fn check_room(&self, dir: &RepoDir, files: &[PendingFile]) -> Result<(), HubError> {
        let mut seen = HashSet::new();
        let absent = files.iter().filter(|file| {
            let etag = file.expected.etag();
            seen.insert(etag) && !snapshot_links::has_size(&dir.blob(etag), file.size)
        });
        let needed = absent
            .map(|file| {
                let on_disk = PartialFile::bytes_on_disk(dir, file.expected.etag(), file.size);
                file.size - on_disk
            })
            .fold(0, u64::saturating_add);
        let Some(free) = free_space(&self.cache_dir) else {
            return Ok(());
        };
        match needed.saturating_add(MARGIN) {
            with_margin if needed > 0 && with_margin > free => Err(HubError::NoRoom {
                dir: self.cache_dir.clone(),
                needed: with_margin,
                free,
            }),
            _ => Ok(()),
        }
    }
}

/// Files missing from the snapshot.
fn missing<'f>(snapshot: &Path, files: &[&'f RemoteFile]) -> Result<Vec<&'f RemoteFile>, HubError> {
    let mut missing = Vec::new();
    let mut seen = HashSet::new();
    for &file in files {
        if !is_inner_path(&file.path) {
            return Err(HubError::BadAnswer {
                host: "the hub".to_owned(),
                what: format!("{:?}", file.path),
                problem: "it is not a path in a repository".to_owned(),
            });
        }
        let path = snapshot.join(&file.path);
        let on_disk = match file.size {
            Some(size) => snapshot_links::has_size(&path, size),
            None => path.is_file(),
        };
        if !on_disk && seen.insert(&file.path) {
            missing.push(file);
        }
    }
    Ok(missing)
}

/// Removes damaged content, unless another process has locked or repaired it.
fn discard(dir: &RepoDir, pointer: &Path, expected: &ExpectedHash) -> Result<bool, HubError> {
    let Some(_held) = BlobLock::if_free(&dir.lock(expected.etag())) else {
        return Ok(false);
    };
    let wrong = expected.mismatch(pointer, &mut |_| {});
    if !matches!(wrong, Ok(Some(_))) {
        return Ok(false);
    }
    // The link to the blob stays and works again after the download.
    let path = match listing::linked_blob(pointer) {
        Some(blob) if blob == *expected => dir.blob(expected.etag()),
        _ => pointer.to_owned(),
    };
    fs::remove_file(&path).map_err(|cause| HubError::io("remove", &path, cause))?;
    Ok(true)
}

fn total(files: &[PendingFile]) -> u64 {
    files
        .iter()
        .map(|file| file.size)
        .fold(0, u64::saturating_add)
}

/// Free bytes on the disk of `dir`; `None` if unknown.
fn free_space(dir: &Path) -> Option<u64> {
    let existing = dir.ancestors().find(|dir| dir.exists())?;
    fs4::available_space(existing).ok()
}

/// The work of one fetch, shared by its threads.
struct FetchJob<'a> {
    hub: &'a Hub,
    dir: &'a RepoDir,
    repo: &'a HubRepo,
    commit: &'a str,
    files: &'a [PendingFile],
}

enum FetchEvent {
    Started(usize),
    At(usize, u64),
    Ended(usize),
    Note(String),
}

impl FetchJob<'_> {
    fn run(&self, progress: &mut dyn Progress) -> Result<(), HubError> {
        let next = AtomicUsize::new(0);
        let stop = StopSignal::default();
        let failed = Mutex::new(None);
        let (events, received) = mpsc::channel();
        thread::scope(|scope| {
            let threads = self.hub.client.tuning().files_at_once.min(self.files.len());
            for _ in 0..threads {
                let events = events.clone();
                scope.spawn(|| {
                    if let Err(error) = self.work(&next, &stop, events) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // Later errors are consequences of the first.
                        failed.get_or_insert(error);
                        stop.stop();
                    }
                });
            }
            drop(events);
            self.report(&received, progress);
        });
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }

    fn work(
        &self,
        next: &AtomicUsize,
        stop: &StopSignal<'_>,
        events: Sender<FetchEvent>,
    ) -> Result<(), HubError> {
        while !stop.is_stopped() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = self.files.get(index) else {
                return Ok(());
            };
            let reporter = Reporter {
                index,
                events: events.clone(),
            };
            reporter.send(FetchEvent::Started(index));
            let download = Download {
                client: &self.hub.client,
                dir: self.dir,
                repo: self.repo,
                commit: self.commit,
                file,
                stop,
                observer: &reporter,
            };
            download.run()?;
            reporter.send(FetchEvent::Ended(index));
        }
        Ok(())
    }

    /// Forwards the threads' events until all threads have ended.
    fn report(&self, received: &Receiver<FetchEvent>, progress: &mut dyn Progress) {
        // A restarted file goes back, but the total counts each byte once.
        let mut furthest: HashMap<usize, u64> = HashMap::new();
        for event in received {
            match event {
                FetchEvent::Started(index) => {
                    let PendingFile { path, size, .. } = &self.files[index];
                    let (name, bytes) = (path.as_str(), *size);
                    progress.file(index, FileProgress::Started { name, bytes });
                }
                FetchEvent::At(index, bytes) => {
                    progress.file(index, FileProgress::At(bytes));
                    let known = furthest.entry(index).or_default();
                    if bytes > *known {
                        progress.advance(bytes - *known);
                        *known = bytes;
                    }
                }
                FetchEvent::Ended(index) => progress.file(index, FileProgress::Ended),
                FetchEvent::Note(text) => progress.note(&text),
            }
        }
    }
}

struct Reporter {
    index: usize,
    events: Sender<FetchEvent>,
}

impl Reporter {
    /// Fails only after the fetch has ended.
    fn send(&self, event: FetchEvent) {
        let _ = self.events.send(event);
    }
}

impl DownloadObserver for Reporter {
    fn at(&self, bytes: u64) {
        self.send(FetchEvent::At(self.index, bytes));
    }

    fn note(&self, text: String) {
        self.send(FetchEvent::Note(text));
    }
}
