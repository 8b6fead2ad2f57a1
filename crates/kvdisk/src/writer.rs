//! The thread that writes blocks and keeps the folder within its limit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, SystemTime};

use crate::BlockKey;
use crate::block_file::{BlockHeader, HEADER};
use crate::folder::StoredBlock;
use crate::stats::Counters;
use crate::store::{Block, Shared};

/// The folder is counted again when this part of its limit was written: other processes write too.
const RECOUNT: u64 = 16;

pub(crate) enum WriteCommand {
    Write(Block),
    /// Marks blocks of one prefix as used, in the order of the prefix, and then its tail.
    Touch(Vec<BlockKey>, Option<BlockKey>),
    /// Removes all blocks of the model.
    Clear,
    /// Answers when everything before is done.
    Flush(Sender<()>),
}

struct Writer {
    shared: Arc<Shared>,
    /// Written since the folder was counted.
    uncounted: u64,
    /// The last write failed and was reported.
    failing: bool,
}

/// Serves commands until all senders are gone.
pub(crate) fn run(shared: &Arc<Shared>, commands: &Receiver<WriteCommand>) {
    let mut writer = Writer {
        shared: Arc::clone(shared),
        uncounted: 0,
        failing: false,
    };
    let listed = writer.count().unwrap_or_else(|error| {
        tracing::warn!(%error, "the folder of cached keys and values is unreadable");
        Vec::new()
    });
    shared.learn_listed(listed.iter().map(|block| block.key));
    yield_to_others();
    for command in commands {
        match command {
            WriteCommand::Write(block) => {
                writer.write(&block);
                shared.queued.fetch_sub(1, Ordering::SeqCst);
                (shared.wake)();
            }
            WriteCommand::Touch(keys, tail) => writer.touch(&keys, tail),
            WriteCommand::Clear => writer.clear(),
            WriteCommand::Flush(done) => _ = done.send(()),
        }
    }
}

/// Computing threads come first. Elsewhere than on Linux the value would apply to the process.
fn yield_to_others() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(19) {
        tracing::debug!(%error, "the writer of blocks runs at normal priority");
    }
}

impl Writer {
    fn write(&mut self, block: &Block) {
        let shared = &self.shared;
        let bytes = (HEADER + block.contents.len()) as u64;
        if shared.folder.size(&block.key) == Some(bytes) {
            // Another process was faster.
            return self.touch(&[block.key], None);
        }
        let header = BlockHeader {
            key: block.key,
            model: shared.model,
            tokens: block.tokens as u64,
            bytes: block.contents.len() as u64,
            prompt_speed: block.prompt_speed,
        };
        let made_room = self.make_room(bytes);
        let shared = &self.shared;
        let written = made_room.and_then(|()| {
            let file = (&header, &block.contents[..]);
            shared.folder.write(file, |began| shared.pace.rest(began))
        });
        match written {
            Ok(()) => {
                self.failing = false;
                self.uncounted += bytes;
                let counters = &shared.counters;
                Counters::add(&counters.written_blocks, 1);
                Counters::add(&counters.written_bytes, bytes);
                Counters::add(&counters.blocks, 1);
                Counters::add(&counters.bytes, bytes);
            }
            Err(error) => {
                shared.forget(&block.key);
                Counters::add(&shared.counters.failed_writes, 1);
                // Once, until a write succeeds.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(
                        %error,
                        "cached keys and values could not be written to disk; they stay in memory"
                    );
                }
            }
        }
    }

    /// Removes the least recently used blocks until `bytes` more fit.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        let max = self.shared.max_bytes;
        if bytes > max {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("a block has {bytes} bytes and the limit is {max}"),
            ));
        }
        let stored = self.shared.counters.bytes.load(Ordering::Relaxed);
        if stored + bytes <= max && self.uncounted <= max / RECOUNT {
            return Ok(());
        }
        let mut blocks = self.count()?;
        blocks.sort_by_key(|block| block.used);
        let counters = &self.shared.counters;
        for block in blocks {
            if counters.bytes.load(Ordering::Relaxed) + bytes <= max {
                break;
            }
            self.shared.folder.remove(&block.key);
            self.shared.forget(&block.key);
            Counters::add(&counters.evicted_blocks, 1);
            Counters::subtract(&counters.blocks, 1);
            Counters::subtract(&counters.bytes, block.bytes);
        }
        Ok(())
    }

    /// Lists the folder and counts its bytes.
    fn count(&mut self) -> io::Result<Vec<StoredBlock>> {
        let blocks = self.shared.folder.list()?;
        self.uncounted = 0;
        let counters = &self.shared.counters;
        let bytes = blocks.iter().map(|block| block.bytes).sum();
        counters.bytes.store(bytes, Ordering::Relaxed);
        let count = blocks.len() as u64;
        counters.blocks.store(count, Ordering::Relaxed);
        Ok(blocks)
    }

    /// Earlier blocks of a prefix are the newer ones: later ones are useless without them.
    fn touch(&self, keys: &[BlockKey], tail: Option<BlockKey>) {
        let now = SystemTime::now();
        let mut place = 0;
        let mut touch = |key: &BlockKey| {
            let used = now - Duration::from_micros(place);
            place += 1;
            let touched = self.shared.folder.touch(key, used).is_ok();
            if !touched {
                self.shared.forget(key);
            }
            touched
        };
        for key in keys {
            touch(key);
        }
        let Some(tail) = tail.filter(&mut touch) else {
            return;
        };
        // How many there are is in the record; one that is missing makes the tail useless.
        let _ = (0..).take_while(|index| touch(&tail.part(*index))).count();
    }

    fn clear(&mut self) {
        let blocks = self.count().unwrap_or_default();
        for StoredBlock { key, bytes, .. } in blocks {
            let header = self.shared.folder.header(&key);
            if header.is_ok_and(|header| header.model == self.shared.model) {
                self.shared.folder.remove(&key);
                self.shared.forget(&key);
                Counters::subtract(&self.shared.counters.blocks, 1);
                Counters::subtract(&self.shared.counters.bytes, bytes);
            }
        }
    }
}
