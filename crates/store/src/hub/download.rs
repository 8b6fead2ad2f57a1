//! Brings one file: streams, then the hash, then its place.

use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::WrongHash;
use super::client::{Answer, Client, Span, Subject, escaped, unreachable};
use super::digest::Expected;
use super::layout::RepoDir;
use super::lock::BlobLock;
use super::part::{self, Part, Writer};
use super::patience::{Failure, Stop};
use super::place;
use super::{HubError, Repo};

const BUFFER: usize = 256 * 1024;
/// How often a file that turns out to be another is begun anew.
const ROUNDS: usize = 3;

/// A file of a commit, with all that must be known to bring it.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub path: String,
    pub size: u64,
    pub expected: Expected,
}

/// What a download tells whoever watches.
pub(crate) trait Watcher: Sync {
    /// So many of its bytes are here; less than before when it was begun anew.
    fn at(&self, bytes: u64);
    fn note(&self, text: String);
}

pub(crate) struct Download<'a> {
    pub client: &'a Client,
    pub dir: &'a RepoDir,
    pub repo: &'a Repo,
    pub commit: &'a str,
    pub wanted: &'a Wanted,
    pub stop: &'a Stop<'a>,
    pub watcher: &'a dyn Watcher,
}

/// How the streams of a round ended.
enum Round {
    Whole,
    /// The server gives the file only from its beginning.
    NoSpans,
    /// The file is not the one that was begun.
    Changed,
}

/// How one stream ended, short of success.
enum Broken {
    Round(Round),
    Failure(Failure),
}

impl From<HubError> for Broken {
    fn from(error: HubError) -> Self {
        Self::Failure(Failure::lasting(error))
    }
}

impl Download<'_> {
    /// Puts the file into its snapshot: whole, verified, once among all processes.
    pub(crate) fn bring(&self) -> Result<(), HubError> {
        let Wanted {
            path,
            size,
            expected,
        } = self.wanted;
        let pointer = self.dir.snapshot(self.commit).join(path);
        if place::has_size(&pointer, *size) {
            return Ok(());
        }
        let _lock = BlobLock::acquire(&self.dir.lock(expected.etag()), || {
            let text = format!("another process is downloading {path}; waiting for it");
            self.watcher.note(text);
        })?;
        let blob = self.dir.blob(expected.etag());
        // Whoever held the lock may have brought it.
        if !place::has_size(&blob, *size) && !place::has_size(&pointer, *size) {
            self.download(&blob)?;
        }
        part::clear(self.dir, expected.etag())?;
        self.watcher.at(*size);
        place::link(self.dir, self.commit, path, expected.etag())
    }

    fn download(&self, blob: &Path) -> Result<(), HubError> {
        let part = Part::open(self.dir, self.wanted.expected.etag(), self.wanted.size)?;
        let mut spans = true;
        for _ in 0..ROUNDS {
            let resumed = part.bytes() > 0;
            let round = if spans {
                self.by_spans(&part)?
            } else {
                self.without_spans(&part)?
            };
            match round {
                Round::NoSpans => spans = false,
                Round::Changed => self.begin_anew(&part, "it has changed on the hub")?,
                Round::Whole => match self.wrong_hash(&part)? {
                    None => return part.install(blob),
                    Some(_) if resumed => {
                        self.begin_anew(&part, "what was here of it is damaged")?
                    }
                    Some(error) => {
                        part::clear(self.dir, self.wanted.expected.etag())?;
                        return Err(error);
                    }
                },
            }
        }
        part::clear(self.dir, self.wanted.expected.etag())?;
        Err(HubError::KeepsChanging {
            repo: self.repo.id.clone(),
            file: self.wanted.path.clone(),
        })
    }

    fn begin_anew(&self, part: &Part, reason: &str) -> Result<(), HubError> {
        self.watcher.note(format!(
            "{}: {reason}; downloading it anew",
            self.wanted.path
        ));
        part.forget()
    }

    fn wrong_hash(&self, part: &Part) -> Result<Option<HubError>, HubError> {
        let Wanted {
            path,
            size,
            expected,
        } = self.wanted;
        // An empty file has no stream that would have made it.
        if *size == 0 {
            part.writer(0)?;
        }
        let unread = |cause| HubError::io("read", part.path(), cause);
        // What an older, longer file left behind the end.
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

    /// Brings what is missing, in several streams at once where it is much.
    fn by_spans(&self, part: &Part) -> Result<Round, HubError> {
        let tuning = self.client.tuning();
        let pieces = split(
            part.missing(),
            tuning.streams_per_file,
            tuning.smallest_stream,
        );
        let here = AtomicU64::new(part.bytes());
        self.watcher.at(part.bytes());
        let streams = pieces.len().min(tuning.streams_per_file);
        let queue = Mutex::new(VecDeque::from(pieces));
        let ended = Mutex::new(Ok(Round::Whole));
        let over = Stop::part_of(self.stop);
        thread::scope(|scope| {
            for _ in 0..streams {
                scope.spawn(|| {
                    while let Some(piece) = next(&queue) {
                        let stream = Stream {
                            download: self,
                            part,
                            over: &over,
                            here: &here,
                        };
                        if let Err(other) = stream.run(piece) {
                            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                            if matches!(*ended, Ok(Round::Whole)) {
                                *ended = other;
                            }
                            over.now();
                            return;
                        }
                    }
                });
            }
        });
        ended.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn without_spans(&self, part: &Part) -> Result<Round, HubError> {
        let patience = &self.client.tuning().patience;
        let mut failures = 0;
        loop {
            let here = AtomicU64::new(0);
            let stream = Stream {
                download: self,
                part,
                over: self.stop,
                here: &here,
            };
            let mut writer = part.writer(0)?;
            let outcome = self
                .answer(part, None)
                .and_then(|answer| stream.copy(answer, &mut writer, self.wanted.size));
            writer.promise()?;
            match outcome {
                Ok(()) => return Ok(Round::Whole),
                Err(Broken::Round(round)) => return Ok(round),
                Err(Broken::Failure(failure)) => {
                    failures += 1;
                    patience.wait(failures, failure, self.stop)?;
                }
            }
        }
    }

    /// An answer whose body begins where it was asked to, and is of the file that was begun.
    fn answer(&self, part: &Part, span: Option<Span>) -> Result<Answer, Broken> {
        let Wanted { path, size, .. } = self.wanted;
        let address = format!(
            "{}/resolve/{}/{}",
            self.repo.id,
            escaped(self.commit, false),
            escaped(path, true)
        );
        let subject = Subject {
            repo: &self.repo.id,
            revision: &self.repo.revision,
            file: Some(path),
        };
        let answer = self
            .client
            .get(&address, span, subject)
            .map_err(Broken::Failure)?;
        let whole = Span {
            start: 0,
            end: *size,
        };
        match (answer.status, span) {
            (206, Some(span)) if answer.span_start() == Some(span.start) => {}
            (200, None) => {}
            (200, Some(span)) if span == whole => {}
            (_, Some(_)) => return Err(Broken::Round(Round::NoSpans)),
            (status, None) => {
                return Err(self.unusable(&answer, format!("status {status}")).into());
            }
        }
        if part.agree(answer.identity())?.is_err() {
            return Err(Broken::Round(Round::Changed));
        }
        match answer.file_size() {
            Some(told) if told != *size => {
                let problem = format!("it is {told} bytes, and the listing says {size}");
                Err(self.unusable(&answer, problem).into())
            }
            _ => Ok(answer),
        }
    }

    fn unusable(&self, answer: &Answer, problem: String) -> HubError {
        HubError::BadAnswer {
            host: answer.host.clone(),
            what: self.wanted.path.clone(),
            problem,
        }
    }
}

/// One connection's share of a file.
struct Stream<'a> {
    download: &'a Download<'a>,
    part: &'a Part,
    over: &'a Stop<'a>,
    /// Bytes of the file that are here, over all streams.
    here: &'a AtomicU64,
}

impl Stream<'_> {
    /// Brings a piece, however often the connection breaks. `Err` says why the round is over.
    fn run(&self, piece: Range<u64>) -> Result<(), Result<Round, HubError>> {
        let patience = &self.download.client.tuning().patience;
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
                .answer(self.part, Some(span))
                .and_then(|answer| self.copy(answer, &mut writer, piece.end));
            // Whatever ended it, what came is kept.
            let kept = writer.promise();
            match outcome {
                Ok(()) => {}
                Err(Broken::Round(round)) => return Err(Ok(round)),
                Err(Broken::Failure(failure)) => {
                    if writer.at() > before {
                        failures = 0;
                    }
                    failures += 1;
                    patience.wait(failures, failure, self.over).map_err(Err)?;
                }
            }
            kept.map_err(Err)?;
        }
        Ok(())
    }

    /// Writes the answer's body up to `end`.
    fn copy(&self, answer: Answer, writer: &mut Writer<'_>, end: u64) -> Result<(), Broken> {
        let step = self.download.client.tuning().journal_step;
        let host = answer.host;
        let mut body = answer.body.into_reader();
        let mut buffer = vec![0; BUFFER];
        while writer.at() < end {
            if self.over.is_over() {
                let over = std::io::Error::other("the download was stopped");
                return Err(unreachable(&host, &over).into());
            }
            let room = buffer
                .len()
                .min(usize::try_from(end - writer.at()).unwrap_or(usize::MAX));
            let read = body
                .read(&mut buffer[..room])
                .map_err(|error| Broken::Failure(Failure::passing(unreachable(&host, &error))))?;
            if read == 0 {
                let short = std::io::Error::other("it ended the connection too early");
                return Err(Broken::Failure(Failure::passing(unreachable(
                    &host, &short,
                ))));
            }
            writer.write(&buffer[..read], step)?;
            let here = self.here.fetch_add(read as u64, Ordering::Relaxed) + read as u64;
            self.download.watcher.at(here);
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

/// Cuts what is missing so that there is something to do for each stream, in pieces of no less
/// than `smallest`.
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
    use super::*;

    type Pairs = &'static [(u64, u64)];

    fn ranges(pairs: Pairs) -> Vec<Range<u64>> {
        pairs.iter().map(|&(start, end)| start..end).collect()
    }

    #[test]
    fn what_is_missing_is_shared_among_the_streams() {
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
