//! Exporting cached prefixes in slices.

use std::time::{Duration, Instant};

use loquat_kvdisk::{Block, BlockKey};
use loquat_session::{SequenceId, Session};

use super::{BLOCK_TOKENS, DiskTier};
use crate::prefix_cache::PrefixCache;
use crate::worker::Worker;

/// Exporting takes this share of the time that steps take.
pub(super) const BUSY_SHARE: f64 = 0.01;
/// Exported between two steps.
const BUSY_TOKENS: usize = 8;
/// Exported at once when nothing is computed: about a millisecond, for which a request waits.
const IDLE_BYTES: usize = 1 << 20;
/// Bytes per second, until it is measured.
const ASSUMED_SPEED: f64 = 5e8;
/// Of a token, until it is known.
const ASSUMED_BYTES: usize = 128 << 10;
/// How long an engine that ends exports and writes what is left.
const FLUSH_TIME: Duration = Duration::from_secs(20);

/// A sequence that is being exported.
pub(super) struct Export {
    id: SequenceId,
    keys: Vec<BlockKey>,
    /// Blocks that are done.
    done: usize,
    /// The next block so far.
    contents: Vec<u8>,
    /// Its tokens so far.
    tokens: usize,
}

impl Export {
    pub fn pending_tokens(&self) -> usize {
        (self.keys.len() - self.done) * BLOCK_TOKENS - self.tokens
    }
}

/// What a slice did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slice {
    Exported,
    /// The writer has enough.
    Blocked,
    /// Everything is exported.
    Nothing,
}

impl DiskTier {
    fn collect_new(&mut self, cache: &mut PrefixCache) {
        let changes = cache.take_changes();
        self.pending.extend(changes.kept);
        for id in changes.evicted {
            let waiting = self.pending.len();
            self.pending.retain(|pending| *pending != id);
            let current = self.current.take_if(|export| export.id == id);
            if current.is_some() || self.pending.len() < waiting {
                self.counts.lost += 1;
            }
        }
    }

    /// Exports up to `most` bytes, but at least `least` tokens.
    fn export_slice(
        &mut self,
        cache: &PrefixCache,
        session: &dyn Session,
        now: impl Fn() -> Instant,
        (least, most): (usize, usize),
    ) -> Slice {
        let Some(mut export) = self.next_export(cache) else {
            return Slice::Nothing;
        };
        if !self.disk.has_room() {
            self.current = Some(export);
            return Slice::Blocked;
        }
        let fitting = self
            .bytes_per_token
            .and_then(|bytes| most.checked_div(bytes));
        let count = fitting.map_or(least, |tokens| tokens.max(least));
        let count = count.min(BLOCK_TOKENS - export.tokens);
        let start = export.done * BLOCK_TOKENS + export.tokens;
        let (began, before) = (now(), export.contents.len());
        let range = start..start + count;
        if let Err(error) = session.export_range(export.id, range, &mut export.contents) {
            tracing::debug!(%error, "a cached prefix is not stored on disk");
            self.finished(export.id);
            return Slice::Exported;
        }
        let exported = export.contents.len() - before;
        self.bytes_per_token = Some(exported / count);
        self.export_speed.record(exported, now() - began);
        export.tokens += count;
        if export.tokens == BLOCK_TOKENS {
            let room = export.contents.len();
            let contents = std::mem::replace(&mut export.contents, Vec::with_capacity(room));
            self.disk.write(Block {
                key: export.keys[export.done],
                contents,
                prompt_speed: self.prompt_speed.0.map_or(0, |speed| speed as u64),
            });
            export.done += 1;
            export.tokens = 0;
        }
        self.current = Some(export);
        Slice::Exported
    }

    /// The export to continue, at a block that is not stored yet.
    fn next_export(&mut self, cache: &PrefixCache) -> Option<Export> {
        loop {
            let mut export = match self.current.take() {
                Some(export) => export,
                None => self.begin(self.pending.front().copied()?, cache),
            };
            // Replaced by a longer one, which shares the blocks that are done.
            if cache.entry(export.id).is_none() {
                self.finished(export.id);
                continue;
            }
            if export.tokens == 0 {
                let stored = export.keys[export.done..].iter();
                export.done += stored.take_while(|key| self.disk.contains(key)).count();
            }
            if export.done < export.keys.len() {
                return Some(export);
            }
            self.finished(export.id);
            if !export.keys.is_empty() {
                self.disk.touch(export.keys);
            }
        }
    }

    fn begin(&self, id: SequenceId, cache: &PrefixCache) -> Export {
        let entry = cache.entry(id);
        let keys = entry.map_or_else(Vec::new, |(scope, tokens)| self.keys(scope, tokens));
        Export {
            id,
            keys,
            done: 0,
            contents: Vec::new(),
            tokens: 0,
        }
    }

    fn finished(&mut self, id: SequenceId) {
        self.pending.retain(|pending| *pending != id);
    }
}

impl Worker {
    /// Exports a part of the cached prefixes that are not on disk; more of it if nothing else is to
    /// do. Returns whether to continue at once.
    pub(crate) fn store_prefixes(&mut self, busy: bool) -> bool {
        let Some(tier) = &mut self.disk else {
            return false;
        };
        tier.collect_new(&mut self.cache);
        if tier.pending.is_empty() {
            tier.credit = Duration::ZERO;
            return false;
        }
        let now = || self.time.now();
        let started = now();
        let amount = if busy {
            let bytes = BUSY_TOKENS * tier.bytes_per_token.unwrap_or(ASSUMED_BYTES);
            let speed = tier.export_speed.0.unwrap_or(ASSUMED_SPEED);
            if tier.credit < Duration::from_secs_f64(bytes as f64 / speed) {
                return false;
            }
            (BUSY_TOKENS, 0)
        } else {
            (BUSY_TOKENS, IDLE_BYTES)
        };
        let slice = tier.export_slice(&self.cache, &*self.session, now, amount);
        tier.credit = if busy {
            tier.credit.saturating_sub(now() - started)
        } else {
            Duration::ZERO
        };
        if slice == Slice::Nothing {
            self.publish();
        }
        !busy && slice == Slice::Exported
    }

    /// Exports and writes what is left, before the engine ends.
    pub(crate) fn flush_prefixes(&mut self) {
        let Some(mut tier) = self.disk.take() else {
            return;
        };
        tier.collect_new(&mut self.cache);
        // Not the engine's clock, which may be virtual: threads are waited for.
        let deadline = Instant::now() + FLUSH_TIME;
        let left = || deadline.saturating_duration_since(Instant::now());
        loop {
            let amount = (BLOCK_TOKENS, 0);
            match tier.export_slice(&self.cache, &*self.session, Instant::now, amount) {
                Slice::Nothing => break,
                Slice::Exported => {}
                Slice::Blocked => std::thread::sleep(Duration::from_millis(1)),
            }
            if left().is_zero() {
                tracing::warn!("not all cached prefixes were stored on disk in {FLUSH_TIME:?}");
                break;
            }
        }
        tier.disk.flush(left());
    }
}
