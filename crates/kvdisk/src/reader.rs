//! The thread that finds and reads blocks.

use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::block_file::{HEADER, Unusable};
use crate::stats::Counters;
use crate::store::Shared;
use crate::tail::TailRecord;
use crate::{BlockKey, PrefixContent};

/// Blocks that are read before the first of them is taken.
const READ_AHEAD: usize = 2;

/// What reading competes with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Worth {
    /// Prompt tokens that the model computes per second, if that was measured since the cache was
    /// opened. Otherwise the speed in the files decides.
    pub prompt_speed: Option<f64>,
    /// Bytes that the session imports per second, if that was measured.
    pub import_speed: Option<f64>,
}

/// Blocks that are being read, in order.
#[derive(Debug)]
pub struct BlockLoad {
    events: Receiver<LoadEvent>,
}

/// What a load yields.
#[derive(Debug)]
pub enum LoadEvent {
    /// The next block.
    Block(Vec<u8>),
    /// After the last block: the record of the tail, which has so many tokens.
    Tail {
        /// Its parts follow.
        record: TailRecord,
        /// Tokens after the last block.
        tokens: usize,
    },
    /// The next part of the tail.
    Part(Vec<u8>),
    /// No more.
    End,
    /// Nothing yet; the cache's wake function is called when there is.
    Pending,
}

impl BlockLoad {
    /// The next event, without waiting.
    pub fn try_next(&self) -> LoadEvent {
        match self.events.try_recv() {
            Ok(event) => event,
            Err(TryRecvError::Empty) => LoadEvent::Pending,
            // The reader ended.
            Err(TryRecvError::Disconnected) => LoadEvent::End,
        }
    }
}

/// Where to look for tails.
#[derive(Debug, Clone)]
pub struct TailSearch {
    /// Of the prompt: tails end at its beginnings.
    pub prefix: PrefixContent,
    /// Only tails at greater lengths are of use.
    pub longer_than: usize,
}

pub(crate) struct ReadRequest {
    keys: Vec<BlockKey>,
    search: Option<TailSearch>,
    worth: Worth,
    events: SyncSender<LoadEvent>,
}

/// A request for the longest run of `keys`, and its result.
pub(crate) fn request(
    keys: Vec<BlockKey>,
    search: Option<TailSearch>,
    worth: Worth,
) -> (ReadRequest, BlockLoad) {
    let (sender, events) = mpsc::sync_channel(READ_AHEAD);
    let request = ReadRequest {
        keys,
        search,
        worth,
        events: sender,
    };
    (request, BlockLoad { events })
}

pub(crate) type Requests = Sender<ReadRequest>;

/// Serves requests until all senders are gone.
pub(crate) fn run(shared: &Arc<Shared>, requests: &Receiver<ReadRequest>) {
    let mut speed = ReadSpeed::default();
    for request in requests {
        let ReadRequest {
            keys,
            search,
            worth,
            events,
        } = request;
        let mut found = find(shared, &keys);
        if let Some(search) = search {
            found = find_tail(shared, &found, &search).unwrap_or_default();
        }
        if !is_worth_it(shared, &found, worth, &speed) {
            found.files.clear();
        }
        for file in &found.files {
            let started = Instant::now();
            let Some(event) = read(shared, file) else {
                break;
            };
            speed.record(file.bytes, started.elapsed());
            Counters::add(&shared.counters.read_bytes, file.bytes);
            if events.send(event).is_err() {
                // Nobody wants the rest.
                break;
            }
            (shared.wake)();
        }
        let _ = events.send(LoadEvent::End);
        (shared.wake)();
    }
}

/// Files to read, in order, and the tokens they bring.
#[derive(Default)]
struct FoundFiles {
    files: Vec<FoundFile>,
    tokens: usize,
}

#[derive(Clone, Copy)]
struct FoundFile {
    key: BlockKey,
    /// Of the file.
    bytes: u64,
    content: FileContent,
}

#[derive(Clone, Copy)]
enum FileContent {
    Block,
    /// A tail's record, with so many tokens.
    Record(usize),
    Part,
}

/// The blocks of the run that exist.
fn find(shared: &Shared, keys: &[BlockKey]) -> FoundFiles {
    let files = keys.iter().map_while(|key| {
        let bytes = shared.folder.size(key);
        if bytes.is_none() {
            shared.forget(key);
        }
        Some(FoundFile {
            key: *key,
            bytes: bytes?,
            content: FileContent::Block,
        })
    });
    let files: Vec<FoundFile> = files.collect();
    let tokens = files.len() * shared.block_tokens;
    FoundFiles { files, tokens }
}

/// The blocks, the record and the parts of the longest tail. Tails are looked for as far as there
/// are blocks.
fn find_tail(shared: &Shared, blocks: &FoundFiles, search: &TailSearch) -> Option<FoundFiles> {
    let block_tokens = shared.block_tokens;
    let longest = (blocks.tokens + block_tokens - 1).min(search.prefix.len());
    let shortest = (search.longer_than + 1).max(block_tokens);
    for len in (shortest..=longest).rev() {
        let whole = len / block_tokens;
        let blocks = &blocks.files[..whole];
        let rest = whole * block_tokens..len;
        let key = blocks.last()?.key.tail(&search.prefix, rest.clone());
        let Some(bytes) = shared.folder.size(&key) else {
            shared.forget(&key);
            continue;
        };
        let record = FoundFile {
            key,
            bytes,
            content: FileContent::Record(rest.len()),
        };
        let Some(LoadEvent::Tail { record: tail, .. }) = read(shared, &record) else {
            continue;
        };
        let Some(parts) = find_parts(shared, &key, tail.parts) else {
            // A part was evicted, or damaged and removed.
            shared.remove(&key);
            continue;
        };
        return Some(FoundFiles {
            files: [blocks, &[record], &parts].concat(),
            tokens: len - search.longer_than,
        });
    }
    None
}

/// All parts of a tail; `None` if one is missing.
fn find_parts(shared: &Shared, tail: &BlockKey, count: u64) -> Option<Vec<FoundFile>> {
    let parts = (0..count).map(|index| {
        let key = tail.part(index);
        Some(FoundFile {
            key,
            bytes: shared.folder.size(&key)?,
            content: FileContent::Part,
        })
    });
    parts.collect()
}

/// Reads a file; removes it if it is unusable.
fn read(shared: &Shared, file: &FoundFile) -> Option<LoadEvent> {
    let FoundFile { key, content, .. } = file;
    let tokens = match content {
        FileContent::Block => shared.block_tokens,
        FileContent::Record(tokens) => *tokens,
        FileContent::Part => 0,
    };
    let contents = shared.folder.read(key, shared.model, tokens);
    let event = contents.and_then(|contents| match content {
        FileContent::Block => Ok(LoadEvent::Block(contents)),
        FileContent::Part => Ok(LoadEvent::Part(contents)),
        FileContent::Record(tokens) => {
            let record = TailRecord::decode(&contents);
            let record = record.ok_or(Unusable::Damaged("it is no record of a tail"))?;
            Ok(LoadEvent::Tail {
                record,
                tokens: *tokens,
            })
        }
    });
    match event {
        Ok(event) => {
            // Another process may have written it.
            shared.learn([*key]);
            Some(event)
        }
        Err(why) => {
            shared.discard(key, why);
            None
        }
    }
}

/// Whether reading the files takes less time than computing their tokens. Reads until both speeds
/// are known, because that measures them.
fn is_worth_it(shared: &Shared, found: &FoundFiles, worth: Worth, speed: &ReadSpeed) -> bool {
    let Some(first) = found.files.first() else {
        return false;
    };
    let header = match shared.folder.header(&first.key) {
        Ok(header) => header,
        Err(why) => {
            shared.discard(&first.key, why);
            return false;
        }
    };
    let stored = (header.prompt_speed > 0).then_some(header.prompt_speed as f64);
    let (Some(prompt_speed), Some(read_speed)) = (worth.prompt_speed.or(stored), speed.0) else {
        return true;
    };
    let bytes: u64 = found.files.iter().map(|file| file.bytes).sum();
    let import = worth.import_speed.map_or(0.0, |speed| bytes as f64 / speed);
    let reading = bytes as f64 / read_speed + import;
    let computing = found.tokens as f64 / prompt_speed;
    if reading >= computing {
        Counters::add(&shared.counters.slower, 1);
    }
    reading < computing
}

/// Bytes per second, checking them included: a mean of the last few blocks.
#[derive(Debug, Default)]
struct ReadSpeed(Option<f64>);

impl ReadSpeed {
    fn record(&mut self, bytes: u64, took: Duration) {
        let speed = bytes as f64 / took.as_secs_f64().max(1e-9);
        self.0 = Some(self.0.map_or(speed, |mean| mean + (speed - mean) / 8.0));
    }
}

impl Shared {
    fn remove(&self, key: &BlockKey) {
        self.forget(key);
        let bytes = self.folder.size(key).unwrap_or(HEADER as u64);
        self.folder.remove(key);
        Counters::subtract(&self.counters.blocks, 1);
        Counters::subtract(&self.counters.bytes, bytes);
    }

    /// Removes a file that cannot be used.
    fn discard(&self, key: &BlockKey, why: Unusable) {
        self.forget(key);
        match why {
            Unusable::Damaged(why) => {
                tracing::warn!(%key, why, "removing a file of cached keys and values");
                Counters::add(&self.counters.damaged_blocks, 1);
                self.remove(key);
            }
            Unusable::Newer => {}
            Unusable::Unreadable(error) => {
                tracing::debug!(%key, %error, "a block could not be read");
            }
        }
    }
}
