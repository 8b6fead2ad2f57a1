//! A cache on disk as its user sees it.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::BlockKey;
use crate::folder::Folder;
use crate::pace::Pace;
use crate::reader::{self, BlockLoad, Requests, TailSearch, Worth};
use crate::stats::{Counters, DiskStats};
use crate::writer::{self, WriteCommand};

/// Blocks that may wait for the writer.
const MAX_QUEUED: usize = 4;

/// Where blocks are kept, and how many bytes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// Created if it does not exist, for its owner only.
    pub folder: PathBuf,
    /// Of all files in the folder, whoever wrote them.
    pub max_bytes: u64,
    /// Whether a user who cannot use it refuses to start, instead of going on without it.
    pub required: bool,
}

/// A block, or a file of a tail, to write.
#[derive(Debug)]
pub struct Block {
    /// Its name.
    pub key: BlockKey,
    /// Tokens whose keys and values it has; 0 for a part of a tail.
    pub tokens: usize,
    /// The session's bytes.
    pub contents: Vec<u8>,
    /// Prompt tokens that the model computes per second; 0 if not measured.
    pub prompt_speed: u64,
}

/// What the threads share.
pub(crate) struct Shared {
    pub folder: Folder,
    pub max_bytes: u64,
    pub model: u64,
    pub block_tokens: usize,
    pub counters: Counters,
    /// Called when something was read or written.
    pub wake: Box<dyn Fn() + Send + Sync>,
    /// Blocks that wait for the writer.
    pub queued: AtomicUsize,
    /// Of the writer.
    pub pace: Pace,
    known: Mutex<KnownBlocks>,
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, KnownBlocks> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn learn(&self, keys: impl IntoIterator<Item = BlockKey>) {
        self.known().keys.extend(keys);
    }

    pub fn learn_listed(&self, keys: impl IntoIterator<Item = BlockKey>) {
        self.known().learn_listed(keys);
    }

    pub fn forget(&self, key: &BlockKey) {
        self.known().forget(key);
    }
}

/// Blocks that exist or wait for the writer, as far as this process knows.
struct KnownBlocks {
    keys: HashSet<BlockKey>,
    /// Blocks forgotten while the writer lists the folder: its list may still have them. `None` once
    /// the folder is listed.
    forgotten: Option<HashSet<BlockKey>>,
}

impl KnownBlocks {
    fn new() -> Self {
        Self {
            keys: HashSet::new(),
            forgotten: Some(HashSet::new()),
        }
    }

    fn forget(&mut self, key: &BlockKey) {
        self.keys.remove(key);
        if let Some(forgotten) = &mut self.forgotten {
            forgotten.insert(*key);
        }
    }

    fn learn_listed(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        let forgotten = self.forgotten.take().unwrap_or_default();
        let keys = keys.into_iter().filter(|key| !forgotten.contains(key));
        self.keys.extend(keys);
    }
}

/// The blocks of one model in a folder. Dropping it writes what waits and ends its threads.
pub struct DiskCache {
    shared: Arc<Shared>,
    reads: Option<Requests>,
    writes: Option<Sender<WriteCommand>>,
    threads: Vec<JoinHandle<()>>,
}

impl DiskCache {
    /// Starts the threads. `model` is a fingerprint of the session, and `wake` is called, from the
    /// threads, when a load has an event or a block was written.
    pub fn open(
        options: &DiskOptions,
        (model, block_tokens): (u64, usize),
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            folder: Folder::open(&options.folder)?,
            max_bytes: options.max_bytes,
            model,
            block_tokens,
            counters: Counters::default(),
            wake: Box::new(wake),
            queued: AtomicUsize::new(0),
            pace: Pace::default(),
            known: Mutex::new(KnownBlocks::new()),
        });
        let (reads, requests) = mpsc::channel();
        let (writes, commands) = mpsc::channel();
        let own = Arc::clone(&shared);
        let reader = spawn("loquat-kv-read", move || reader::run(&own, &requests))?;
        let own = Arc::clone(&shared);
        let writer = spawn("loquat-kv-write", move || writer::run(&own, &commands))?;
        Ok(Self {
            shared,
            reads: Some(reads),
            writes: Some(writes),
            threads: vec![reader, writer],
        })
    }

    /// Finds the longest run of `keys`, from the first on, and reads it if that is worth it.
    pub fn load(&self, keys: Vec<BlockKey>, worth: Worth) -> BlockLoad {
        self.request(keys, None, worth)
    }

    /// Finds the longest sequence that ends in a tail, and reads it if that is worth it. `keys` are
    /// those of all its blocks, from the root on.
    pub fn load_with_tail(
        &self,
        keys: Vec<BlockKey>,
        search: TailSearch,
        worth: Worth,
    ) -> BlockLoad {
        self.request(keys, Some(search), worth)
    }

    fn request(&self, keys: Vec<BlockKey>, search: Option<TailSearch>, worth: Worth) -> BlockLoad {
        let (request, load) = reader::request(keys, search, worth);
        if let Some(reads) = &self.reads {
            // The load ends at once if the thread is gone.
            let _ = reads.send(request);
        }
        load
    }

    /// Whether the block exists or waits for the writer, as far as this process knows.
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.shared.known().keys.contains(key)
    }

    /// Whether the block may exist: also before the folder is listed, which takes a moment.
    pub fn may_contain(&self, key: &BlockKey) -> bool {
        let known = self.shared.known();
        known.forgotten.is_some() || known.keys.contains(key)
    }

    /// Whether the writer takes another block without much waiting in memory.
    pub fn has_room(&self) -> bool {
        self.queued() < MAX_QUEUED
    }

    /// Blocks that wait for the writer.
    pub fn queued(&self) -> usize {
        self.shared.queued.load(Ordering::SeqCst)
    }

    /// Says whether the user computes from now on. While it does, blocks are written slowly, so that
    /// they delay nothing.
    pub fn set_computing(&self, computing: bool) {
        self.shared.pace.set_computing(computing);
    }

    /// Queues a block.
    pub fn write(&self, block: Block) {
        self.shared.learn([block.key]);
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        self.command(WriteCommand::Write(block));
    }

    /// Marks the blocks of a prefix, and the files of its tail, as used, in the order of the prefix.
    pub fn touch(&self, keys: Vec<BlockKey>, tail: Option<BlockKey>) {
        self.command(WriteCommand::Touch(keys, tail));
    }

    /// Removes all blocks of the model, whoever wrote them.
    pub fn clear(&self) {
        self.command(WriteCommand::Clear);
    }

    /// Waits until all queued blocks are written; `false` if that takes longer than `patience`.
    pub fn flush(&self, patience: Duration) -> bool {
        self.set_computing(false);
        let (sender, done) = mpsc::channel();
        self.command(WriteCommand::Flush(sender));
        !matches!(
            done.recv_timeout(patience),
            Err(mpsc::RecvTimeoutError::Timeout)
        )
    }

    fn command(&self, command: WriteCommand) {
        if let Some(writes) = &self.writes {
            // Fails only if the thread is gone.
            let _ = writes.send(command);
        }
    }

    /// Counts so far.
    pub fn stats(&self) -> DiskStats {
        self.shared.counters.read(self.shared.max_bytes)
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.set_computing(false);
        (self.reads, self.writes) = (None, None);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the cache on disk panicked");
            }
        }
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PrefixIdentity;

    /// The list was read before the file was removed.
    #[test]
    fn blocks_removed_while_listing_stay_unknown() {
        let identity = PrefixIdentity {
            model: 1,
            block_tokens: 4,
            scope: None,
            adapters: &[],
        };
        let [kept, removed, rewritten] = [0, 1, 2].map(|index| identity.root().part(index));
        let mut known = KnownBlocks::new();
        known.forget(&removed);
        known.forget(&rewritten);
        known.keys.insert(rewritten);
        known.learn_listed([kept, removed, rewritten]);
        assert_eq!(known.keys, HashSet::from([kept, rewritten]));
    }
}
