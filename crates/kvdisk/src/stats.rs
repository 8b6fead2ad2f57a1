//! Counters of a cache, which its threads share.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is on disk and what happened to it. Counts are since the cache was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Files in the folder, of all models and processes, as of the last count.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The folder's limit; 0 without a cache on disk.
    pub max_bytes: u64,
    /// Requests of which a longer prefix was on disk than in memory, and was read.
    pub hits: u64,
    /// Tokens read for them.
    pub hit_tokens: u64,
    /// Bytes read for them.
    pub read_bytes: u64,
    /// Requests whose prefix would have been slower to read than to compute.
    pub slower: u64,
    /// Files written.
    pub written_blocks: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Files that could not be written; their prefixes stay in memory.
    pub failed_writes: u64,
    /// Files removed because the folder was full, least recently used first.
    pub evicted_blocks: u64,
    /// Files removed because they were damaged, of another model or of an older version.
    pub damaged_blocks: u64,
    /// Tokens of prefixes in memory that are still to be written.
    pub pending_tokens: u64,
    /// Sequences that left memory before all of their blocks were written.
    pub lost: u64,
}

/// The same, while threads count.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub blocks: AtomicU64,
    pub bytes: AtomicU64,
    pub slower: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_blocks: AtomicU64,
    pub written_bytes: AtomicU64,
    pub failed_writes: AtomicU64,
    pub evicted_blocks: AtomicU64,
    pub damaged_blocks: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub fn subtract(counter: &AtomicU64, count: u64) {
        let fewer = |now: u64| Some(now.saturating_sub(count));
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    pub fn read(&self, max_bytes: u64) -> DiskStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskStats {
            blocks: get(&self.blocks),
            bytes: get(&self.bytes),
            max_bytes,
            slower: get(&self.slower),
            read_bytes: get(&self.read_bytes),
            written_blocks: get(&self.written_blocks),
            written_bytes: get(&self.written_bytes),
            failed_writes: get(&self.failed_writes),
            evicted_blocks: get(&self.evicted_blocks),
            damaged_blocks: get(&self.damaged_blocks),
            ..DiskStats::default()
        }
    }
}
