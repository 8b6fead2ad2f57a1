//! The thread that finds and reads blocks.

use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::BlockKey;
use crate::block_file::{HEADER, Unusable};
use crate::stats::Counters;
use crate::store::Shared;

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

pub(crate) struct ReadRequest {
    keys: Vec<BlockKey>,
    worth: Worth,
    events: SyncSender<LoadEvent>,
}

/// A request for the longest run of `keys`, and its result.
pub(crate) fn request(keys: Vec<BlockKey>, worth: Worth) -> (ReadRequest, BlockLoad) {
    let (sender, events) = mpsc::sync_channel(READ_AHEAD);
    let request = ReadRequest {
        keys,
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
            worth,
            events,
        } = request;
        let found = find(shared, &keys);
        let wanted = if is_worth_it(shared, &found, worth, &speed) {
            found.len()
        } else {
            0
        };
        for (key, bytes) in &found[..wanted] {
            let started = Instant::now();
            let Some(block) = read(shared, key) else {
                break;
            };
            speed.record(*bytes, started.elapsed());
            Counters::add(&shared.counters.read_bytes, *bytes);
            if events.send(LoadEvent::Block(block)).is_err() {
                // Nobody wants the rest.
                break;
            }
            (shared.wake)();
        }
        let _ = events.send(LoadEvent::End);
        (shared.wake)();
    }
}

/// The blocks of the run that exist, with the sizes of their files.
fn find(shared: &Shared, keys: &[BlockKey]) -> Vec<(BlockKey, u64)> {
    let sizes = keys.iter().map_while(|key| {
        let size = shared.folder.size(key);
        if size.is_none() {
            shared.forget(key);
        }
        Some((*key, size?))
    });
    sizes.collect()
}

/// Reads a block; removes it if it is unusable.
fn read(shared: &Shared, key: &BlockKey) -> Option<Vec<u8>> {
    let why = match shared.folder.read(key, shared.model, shared.block_tokens) {
        Ok(block) => return Some(block),
        Err(why) => why,
    };
    shared.discard(key, why);
    None
}

/// Whether reading the blocks takes less time than computing their tokens. Reads until both speeds
/// are known, because that measures them.
fn is_worth_it(
    shared: &Shared,
    found: &[(BlockKey, u64)],
    worth: Worth,
    speed: &ReadSpeed,
) -> bool {
    let Some((first, _)) = found.first() else {
        return false;
    };
    let header = match shared.folder.header(first) {
        Ok(header) => header,
        Err(why) => {
            shared.discard(first, why);
            return false;
        }
    };
    let stored = (header.prompt_speed > 0).then_some(header.prompt_speed as f64);
    let (Some(prompt_speed), Some(read_speed)) = (worth.prompt_speed.or(stored), speed.0) else {
        return true;
    };
    let bytes: u64 = found.iter().map(|(_, bytes)| bytes).sum();
    let import = worth.import_speed.map_or(0.0, |speed| bytes as f64 / speed);
    let reading = bytes as f64 / read_speed + import;
    let computing = (found.len() * shared.block_tokens) as f64 / prompt_speed;
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
    /// Removes a file that cannot be used.
    fn discard(&self, key: &BlockKey, why: Unusable) {
        self.forget(key);
        match why {
            Unusable::Damaged(why) => {
                tracing::warn!(%key, why, "removing a file of cached keys and values");
                let bytes = self.folder.size(key).unwrap_or(HEADER as u64);
                self.folder.remove(key);
                Counters::add(&self.counters.damaged_blocks, 1);
                Counters::subtract(&self.counters.blocks, 1);
                Counters::subtract(&self.counters.bytes, bytes);
            }
            Unusable::Newer => {}
            Unusable::Unreadable(error) => {
                tracing::debug!(%key, %error, "a block could not be read");
            }
        }
    }
}
