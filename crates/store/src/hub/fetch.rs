//! Brings the files of a commit, several at once, and tells one watcher of all.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::digest::Expected;
use super::download::{Download, Wanted, Watcher};
use super::layout::{RepoDir, is_inner_path, is_word};
use super::lock::BlobLock;
use super::part::Part;
use super::patience::Stop;
use super::{Hub, HubError, Listing, RemoteFile, Repo, listing, place};
use crate::{FileProgress, Progress};

/// Left free on the disk beyond what a download takes.
const MARGIN: u64 = 16 << 20;

impl Hub {
    /// The snapshot directory, in which every one of `files` is whole and verified; downloads
    /// what is missing. Changes the cache only, and the revision's ref last.
    ///
    /// Concurrent calls, from any process, download each byte once: the others wait.
    pub fn fetch(
        &self,
        repo: &Repo,
        listing: &Listing,
        files: &[&RemoteFile],
        progress: &mut dyn Progress,
    ) -> Result<PathBuf, HubError> {
        let snapshot = self.bring(repo, listing, files, progress)?;
        self.point(repo, listing)?;
        Ok(snapshot)
    }

    /// Writes down that the repository's revision stands at the listing's commit, which whoever
    /// asks for the revision gets from now on.
    pub fn point(&self, repo: &Repo, listing: &Listing) -> Result<(), HubError> {
        if self.offline {
            Ok(())
        } else {
            place::point(&self.dir(repo)?, &repo.revision, &listing.commit)
        }
    }

    /// [`Hub::fetch`] without moving the revision's ref: what it leads to stays in use until all
    /// that takes its place is here.
    pub fn bring(
        &self,
        repo: &Repo,
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
        let wanted = missing
            .iter()
            .map(|file| listing::complete(&self.client, repo, &listing.commit, file))
            .collect::<Result<Vec<_>, _>>()?;
        if !wanted.is_empty() {
            self.check_room(&dir, &wanted)?;
            let errand = Errand {
                hub: self,
                dir: &dir,
                repo,
                commit: &listing.commit,
                wanted: &wanted,
            };
            progress.start(&format!("downloading {}", repo.id), Some(total(&wanted)));
            let outcome = errand.run(progress);
            progress.finish();
            outcome?;
        }
        Ok(snapshot)
    }

    /// Hashes those of `files` that are here, and removes what is damaged, so that
    /// [`Hub::bring`] brings it again; says which they were.
    pub fn discard_damaged(
        &self,
        repo: &Repo,
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
        let here = files
            .iter()
            .filter(|file| !absent.contains(file.path.as_str()));
        let here: Vec<(&str, Expected)> = here
            .filter_map(|file| {
                let expected =
                    Expected::of(file).or_else(|| listing::blob_of(&snapshot.join(&file.path)))?;
                Some((file.path.as_str(), expected))
            })
            .collect();
        if here.is_empty() {
            return Ok(Vec::new());
        }
        let size = |path: &str| fs::metadata(snapshot.join(path)).map_or(0, |found| found.len());
        let total = here.iter().map(|(path, _)| size(path)).sum();
        progress.start(&format!("verifying {}", repo.id), Some(total));
        let mut seen = |read| progress.advance(read);
        let damaged = here
            .iter()
            .map(|(path, expected)| {
                let path = snapshot.join(path);
                let found = expected.mismatch(&path, &mut seen);
                found.map_err(|cause| HubError::io("read", &path, cause))
            })
            .collect::<Result<Vec<_>, _>>();
        progress.finish();
        let mut discarded = Vec::new();
        for ((path, expected), found) in here.into_iter().zip(damaged?) {
            if found.is_some() && discard(&dir, &snapshot.join(path), &expected)? {
                discarded.push(path.to_owned());
            }
        }
        Ok(discarded)
    }

    /// Refuses what the disk cannot hold before a byte is asked for.
    fn check_room(&self, dir: &RepoDir, wanted: &[Wanted]) -> Result<(), HubError> {
        let mut seen = HashSet::new();
        let absent = wanted.iter().filter(|file| {
            let etag = file.expected.etag();
            seen.insert(etag) && !place::has_size(&dir.blob(etag), file.size)
        });
        let needed = absent
            .map(|file| {
                let here = Part::bytes_on_disk(dir, file.expected.etag(), file.size);
                file.size - here
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

/// The files that the snapshot lacks.
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
        let here = match file.size {
            Some(size) => place::has_size(&path, size),
            None => path.is_file(),
        };
        if !here && seen.insert(&file.path) {
            missing.push(file);
        }
    }
    Ok(missing)
}

/// Removes content that was found wrong, unless someone is at work on it or has mended it.
fn discard(dir: &RepoDir, pointer: &Path, expected: &Expected) -> Result<bool, HubError> {
    let Some(_held) = BlobLock::if_free(&dir.lock(expected.etag())) else {
        return Ok(false);
    };
    let wrong = expected.mismatch(pointer, &mut |_| {});
    if !matches!(wrong, Ok(Some(_))) {
        return Ok(false);
    }
    // A link to the blob of that name stays, and will lead to the right content again.
    let path = match listing::blob_of(pointer) {
        Some(blob) if blob == *expected => dir.blob(expected.etag()),
        _ => pointer.to_owned(),
    };
    fs::remove_file(&path).map_err(|cause| HubError::io("remove", &path, cause))?;
    Ok(true)
}

fn total(wanted: &[Wanted]) -> u64 {
    wanted
        .iter()
        .map(|file| file.size)
        .fold(0, u64::saturating_add)
}

/// Bytes that this account may still write where `dir` is or will be; `None` where the system
/// does not say.
fn free_space(dir: &Path) -> Option<u64> {
    let existing = dir.ancestors().find(|dir| dir.exists())?;
    fs4::available_space(existing).ok()
}

/// One fetch's work, shared by its threads.
struct Errand<'a> {
    hub: &'a Hub,
    dir: &'a RepoDir,
    repo: &'a Repo,
    commit: &'a str,
    wanted: &'a [Wanted],
}

enum Event {
    Started(usize),
    At(usize, u64),
    Ended(usize),
    Note(String),
}

impl Errand<'_> {
    fn run(&self, progress: &mut dyn Progress) -> Result<(), HubError> {
        let next = AtomicUsize::new(0);
        let stop = Stop::default();
        let failed = Mutex::new(None);
        let (events, told) = mpsc::channel();
        thread::scope(|scope| {
            let threads = self
                .hub
                .client
                .tuning()
                .files_at_once
                .min(self.wanted.len());
            for _ in 0..threads {
                let events = events.clone();
                scope.spawn(|| {
                    if let Err(error) = self.work(&next, &stop, events) {
                        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                        // Those that follow are of its making.
                        failed.get_or_insert(error);
                        stop.now();
                    }
                });
            }
            drop(events);
            self.tell(&told, progress);
        });
        let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }

    fn work(
        &self,
        next: &AtomicUsize,
        stop: &Stop<'_>,
        events: Sender<Event>,
    ) -> Result<(), HubError> {
        while !stop.is_over() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = self.wanted.get(index) else {
                return Ok(());
            };
            let reporter = Reporter {
                index,
                events: events.clone(),
            };
            reporter.send(Event::Started(index));
            let download = Download {
                client: &self.hub.client,
                dir: self.dir,
                repo: self.repo,
                commit: self.commit,
                wanted,
                stop,
                watcher: &reporter,
            };
            download.bring()?;
            reporter.send(Event::Ended(index));
        }
        Ok(())
    }

    /// Passes on what the threads say, until the last of them has ended.
    fn tell(&self, told: &Receiver<Event>, progress: &mut dyn Progress) {
        // A file begun anew goes back, the total does not: it counts each byte once.
        let mut furthest: HashMap<usize, u64> = HashMap::new();
        for event in told {
            match event {
                Event::Started(index) => {
                    let Wanted { path, size, .. } = &self.wanted[index];
                    let (name, bytes) = (path.as_str(), *size);
                    progress.file(index, FileProgress::Started { name, bytes });
                }
                Event::At(index, bytes) => {
                    progress.file(index, FileProgress::At(bytes));
                    let known = furthest.entry(index).or_default();
                    if bytes > *known {
                        progress.advance(bytes - *known);
                        *known = bytes;
                    }
                }
                Event::Ended(index) => progress.file(index, FileProgress::Ended),
                Event::Note(text) => progress.note(&text),
            }
        }
    }
}

struct Reporter {
    index: usize,
    events: Sender<Event>,
}

impl Reporter {
    /// Nobody listens only once the fetch has ended, and then nothing need be said.
    fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

impl Watcher for Reporter {
    fn at(&self, bytes: u64) {
        self.send(Event::At(self.index, bytes));
    }

    fn note(&self, text: String) {
        self.send(Event::Note(text));
    }
}
