//! Downloads one file: streams, hash check, rename, link.

use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::WrongHash;
use super::client::{Client, HubResponse, RequestSubject, Span, escaped, unreachable};
use super::digest::ExpectedHash;
use super::layout::RepoDir;
use super::lock::BlobLock;
use super::partial_file::{self, PartialFile, Writer};
use super::retry::{RequestFailure, StopSignal};
use super::snapshot_links;
use super::{HubError, HubRepo};

const BUFFER: usize = 256 * 1024;
/// How often a file whose content changed is restarted.
const ROUNDS: usize = 3;

/// A file to download, with its size and hash.
#[derive(Debug, Clone)]
pub(crate) struct PendingFile {
    pub path: String,
    pub size: u64,
    pub expected: ExpectedHash,
}

/// Receives the progress of a download.
pub(crate) trait DownloadObserver: Sync {
    /// Bytes on disk; lower than before after a restart.
    fn at(&self, bytes: u64);
    fn note(&self, text: String);
}

pub(crate) struct Download<'a> {
    pub client: &'a Client,
    pub dir: &'a RepoDir,
    pub repo: &'a HubRepo,
    pub commit: &'a str,
    pub file: &'a PendingFile,
    pub stop: &'a StopSignal<'a>,
    pub observer: &'a dyn DownloadObserver,
}

/// The result of one attempt to complete the file.
enum RoundOutcome {
    Whole,
    /// The server does not support ranges.
    NoSpans,
    /// The content on the server changed.
    Changed,
}

/// Why a stream ended early.
enum StreamError {
    Round(RoundOutcome),
    Failure(RequestFailure),
}

impl From<HubError> for StreamError {
    fn from(error: HubError) -> Self {
        Self::Failure(RequestFailure::lasting(error))
    }
}

impl Download<'_> {
    /// Puts the verified file into its snapshot. Only one process downloads a blob at a time.
    pub(crate) fn run(&self) -> Result<(), HubError> {
        let PendingFile {
            path,
            size,
            expected,
        } = self.file;
        let pointer = self.dir.snapshot(self.commit).join(path);
        if snapshot_links::has_size(&pointer, *size) {
            return Ok(());
        }
        let _lock = BlobLock::acquire(&self.dir.lock(expected.etag()), || {
            let text = format!("another process is downloading {path}; waiting for it");
            self.observer.note(text);
        })?;
        let blob = self.dir.blob(expected.etag());
        // The previous lock holder may have downloaded it.
        if !snapshot_links::has_size(&blob, *size) && !snapshot_links::has_size(&pointer, *size) {
            self.download(&blob)?;
        }
        partial_file::clear(self.dir, expected.etag())?;
        self.observer.at(*size);
        snapshot_links::link(self.dir, self.commit, path, expected.etag())
    }

    fn download(&self, blob: &Path) -> Result<(), HubError> {
        let part = PartialFile::open(self.dir, self.file.expected.etag(), self.file.size)?;
        let mut spans = true;
        for _ in 0..ROUNDS {
            let resumed = part.bytes() > 0;
            let round = if spans {
                self.fetch_ranges(&part)?
            } else {
                self.fetch_whole(&part)?
            };
            match round {
                RoundOutcome::NoSpans => spans = false,
                RoundOutcome::Changed => self.restart(&part, "it changed on the hub")?,
                RoundOutcome::Whole => match self.wrong_hash(&part)? {
                    None => return part.install(blob),
                    Some(_) if resumed => self.restart(&part, "the partial download is damaged")?,
                    Some(error) => {
                        partial_file::clear(self.dir, self.file.expected.etag())?;
                        return Err(error);
                    }
                },
            }
        }
        partial_file::clear(self.dir, self.file.expected.etag())?;
        Err(HubError::KeepsChanging {
            repo: self.repo.id.clone(),
            file: self.file.path.clone(),
        })
    }

    fn restart(&self, part: &PartialFile, reason: &str) -> Result<(), HubError> {
        self.observer.note(format!(
            "{}: {reason}; downloading it again",
            self.file.path
        ));
        part.reset()
    }

    fn wrong_hash(&self, part: &PartialFile) -> Result<Option<HubError>, HubError> {
        let PendingFile {
            path,
            size,
            expected,
        } = self.file;
        // No stream creates an empty file.
        if *size == 0 {
            part.writer(0)?;
        }
        let unread = |cause| HubError::io("read", part.path(), cause);
        // Cut what an older, longer file left past the end.
        let file = fs::File::options()
            .write(true)
            .open(part.path())
            .map_err(unread)?;
        file.set_len(*size).map_err(unread)?;
        file.sync_all().map_err(unread)?;
        let found = expected
            .mismatch(part.path(), &mut |_| {})
            .map_err(unread)?;
        let wrong = |found| WrongHash {
            repo: self.repo.id.clone(),
            file: path.clone(),
            kind: expected.kind(),
            expected: expected.etag().to_owned(),
            found,
            hub: self.client.hub().to_owned(),
        };
        Ok(found.map(|found| HubError::WrongHash(Box::new(wrong(found)))))
    }

    /// Downloads the missing ranges, in several streams if they are large.
    fn fetch_ranges(&self, part: &PartialFile) -> Result<RoundOutcome, HubError> {
        let tuning = self.client.tuning();
        let pieces = split(
            part.missing(),
            tuning.streams_per_file,
            tuning.smallest_stream,
        );
        let on_disk = AtomicU64::new(part.bytes());
        self.observer.at(part.bytes());
        let streams = pieces.len().min(tuning.streams_per_file);
        let queue = Mutex::new(VecDeque::from(pieces));
        let ended = Mutex::new(Ok(RoundOutcome::Whole));
        let over = StopSignal::child_of(self.stop);
        thread::scope(|scope| {
            for _ in 0..streams {
                scope.spawn(|| {
                    while let Some(piece) = next(&queue) {
                        let stream = Stream {
                            download: self,
                            part,
                            over: &over,
                            on_disk: &on_disk,
                        };
                        if let Err(other) = stream.run(piece) {
                            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                            if matches!(*ended, Ok(RoundOutcome::Whole)) {
                                *ended = other;
                            }
                            over.stop();
                            return;
                        }
                    }
                });
            }
        });
        ended.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn fetch_whole(&self, part: &PartialFile) -> Result<RoundOutcome, HubError> {
        let retry = &self.client.tuning().retry;
        let mut failures = 0;
        loop {
            let on_disk = AtomicU64::new(0);
            let stream = Stream {
                download: self,
                part,
                over: self.stop,
                on_disk: &on_disk,
            };
            let mut writer = part.writer(0)?;
            let outcome = self
                .response(part, None)
                .and_then(|response| stream.copy(response, &mut writer, self.file.size));
            writer.record()?;
            match outcome {
                Ok(()) => return Ok(RoundOutcome::Whole),
                Err(StreamError::Round(round)) => return Ok(round),
                Err(StreamError::Failure(failure)) => {
                    failures += 1;
                    retry.wait(failures, failure, self.stop)?;
                }
            }
        }
    }

    /// Requests the file and checks that the response starts at the requested offset and serves the
    /// same content as before.
    fn response(&self, part: &PartialFile, span: Option<Span>) -> Result<HubResponse, StreamError> {
        let PendingFile { path, size, .. } = self.file;
        let address = format!(
            "{}/resolve/{}/{}",
            self.repo.id,
            escaped(self.commit, false),
            escaped(path, true)
        );
        let subject = RequestSubject {
            repo: &self.repo.id,
            revision: &self.repo.revision,
            file: Some(path),
        };
        let response = self
            .client
            .get(&address, span, subject)
            .map_err(StreamError::Failure)?;
        let whole_file = Span {
            start: 0,
            end: *size,
        };
        match (response.status, span) {
            (206, Some(span)) if response.span_start() == Some(span.start) => {}
            (200, None) => {}
            (200, Some(span)) if span == whole_file => {}
            (_, Some(_)) => return Err(StreamError::Round(RoundOutcome::NoSpans)),
            (status, None) => {
                return Err(self.unusable(&response, format!("status {status}")).into());
            }
        }
        if part.check_identity(response.identity())?.is_err() {
            return Err(StreamError::Round(RoundOutcome::Changed));
        }
        match response.file_size() {
            Some(stated) if stated != *size => {
                let problem = format!("it is {stated} bytes, but the listing says {size}");
                Err(self.unusable(&response, problem).into())
            }
            _ => Ok(response),
        }
    }

    fn unusable(&self, response: &HubResponse, problem: String) -> HubError {
        HubError::BadAnswer {
            host: response.host.clone(),
            what: self.file.path.clone(),
            problem,
        }
    }
}

/// One connection that downloads a piece of a file.
struct Stream<'a> {
    download: &'a Download<'a>,
    part: &'a PartialFile,
    over: &'a StopSignal<'a>,
    /// Bytes on disk, over all streams.
    on_disk: &'a AtomicU64,
}

impl Stream<'_> {
    /// Downloads a piece, reconnecting after failures. `Err` says why the attempt ended.
    fn run(&self, piece: Range<u64>) -> Result<(), Result<RoundOutcome, HubError>> {
        let retry = &self.download.client.tuning().retry;
        let mut writer = self.part.writer(piece.start).map_err(Err)?;
        let mut failures = 0;
        while writer.at() < piece.end {
            let before = writer.at();
            let span = Span {
                start: before,
                end: piece.end,
            };
            let outcome = self
                .download
                .response(self.part, Some(span))
                .and_then(|response| self.copy(response, &mut writer, piece.end));
            // Record the received bytes even if the stream failed.
            let recorded = writer.record();
            match outcome {
                Ok(()) => {}
                Err(StreamError::Round(round)) => return Err(Ok(round)),
                Err(StreamError::Failure(failure)) => {
                    if writer.at() > before {
                        failures = 0;
                    }
                    failures += 1;
                    retry.wait(failures, failure, self.over).map_err(Err)?;
                }
            }
            recorded.map_err(Err)?;
        }
        Ok(())
    }

    /// Writes the response's body up to `end`.
    fn copy(
        &self,
        response: HubResponse,
        writer: &mut Writer<'_>,
        end: u64,
    ) -> Result<(), StreamError> {
        let step = self.download.client.tuning().journal_step;
        let host = response.host;
        let mut body = response.body.into_reader();
        let mut buffer = vec![0; BUFFER];
        while writer.at() < end {
            if self.over.is_stopped() {
                let over = std::io::Error::other("the download was stopped");
                return Err(unreachable(&host, &over).into());
            }
            let room = buffer
                .len()
                .min(usize::try_from(end - writer.at()).unwrap_or(usize::MAX));
            let read = body.read(&mut buffer[..room]).map_err(|error| {
                StreamError::Failure(RequestFailure::passing(unreachable(&host, &error)))
            })?;
            if read == 0 {
                let short = std::io::Error::other("the connection ended early");
                return Err(StreamError::Failure(RequestFailure::passing(unreachable(
                    &host, &short,
                ))));
            }
            writer.write(&buffer[..read], step)?;
            let on_disk = self.on_disk.fetch_add(read as u64, Ordering::Relaxed) + read as u64;
            self.download.observer.at(on_disk);
        }
        Ok(())
    }
}

fn next(queue: &Mutex<VecDeque<Range<u64>>>) -> Option<Range<u64>> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

/// Splits the missing ranges among the streams, in pieces of at least `smallest` bytes.
fn split(missing: Vec<Range<u64>>, streams: usize, smallest: u64) -> Vec<Range<u64>> {
    let bytes: u64 = missing.iter().map(|gap| gap.end - gap.start).sum();
    let piece = bytes.div_ceil(streams as u64).max(smallest).max(1);
    missing
        .into_iter()
        .flat_map(|gap| {
            let count = ((gap.end - gap.start) / piece).max(1);
            let length = (gap.end - gap.start).div_ceil(count);
            (0..count).map(move |at| {
                let start = gap.start + at * length;
                start..gap.end.min(start + length)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::journal::tests::{Pairs, ranges};
    use super::*;

    #[test]
    fn missing_ranges_are_split_among_streams() {
        let cases: &[(Pairs, Pairs)] = &[
            (&[], &[]),
            (&[(0, 5)], &[(0, 5)]),
            (&[(0, 40)], &[(0, 10), (10, 20), (20, 30), (30, 40)]),
            (&[(0, 42)], &[(0, 14), (14, 28), (28, 42)]),
            (&[(3, 7), (20, 40)], &[(3, 7), (20, 30), (30, 40)]),
        ];
        for (missing, expected) in cases {
            assert_eq!(
                split(ranges(missing), 4, 10),
                ranges(expected),
                "{missing:?}"
            );
        }
    }
}
