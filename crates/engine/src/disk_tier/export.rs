//! Exporting cached prefixes in slices.

use std::time::{Duration, Instant};

use loquat_kvdisk::{Block, BlockKey, TailRecord};
use loquat_session::{SequenceId, Session, SessionError};

use super::{BLOCK_TOKENS, DiskTier};
use crate::media_cache::MediaCache;
use crate::prefix_cache::PrefixCache;
use crate::worker::Worker;

/// Exporting takes this share of the time that steps take.
pub(super) const BUSY_SHARE: f64 = 0.01;
/// Exported between two steps: so little that each step takes its share of the time, not one in many
/// the time of many.
const BUSY: SliceSize = SliceSize {
    tokens: 1,
    bytes: 16 << 10,
};
/// Exported at once when nothing is computed: about a millisecond, for which a request waits.
const IDLE: SliceSize = SliceSize {
    tokens: 8,
    bytes: 1 << 20,
};
/// Exported at once by an engine that ends.
const LAST: SliceSize = SliceSize {
    tokens: BLOCK_TOKENS,
    bytes: 1 << 20,
};
/// Bytes of a tail that make a file, as large as a block of a large model.
const PART_BYTES: usize = 4 << 20;
/// A tail takes at most this part of the folder: a larger one could evict its own files.
const TAIL_SHARE: u64 = 4;
/// Bytes per second, until it is measured.
const ASSUMED_SPEED: f64 = 5e8;
/// Of a slice, until it is known.
const ASSUMED_BYTES: usize = 1 << 20;
/// How long an engine that ends exports and writes what is left.
const FLUSH_TIME: Duration = Duration::from_secs(20);

/// How much is exported at once.
#[derive(Debug, Clone, Copy)]
struct SliceSize {
    /// At least, of a range.
    tokens: usize,
    /// Beyond that, up to so much.
    bytes: usize,
}

/// A sequence that is being exported: its blocks, then the tokens after them and its tail, if it
/// needs one.
pub(super) struct Export {
    id: SequenceId,
    keys: Vec<BlockKey>,
    /// Blocks that are done.
    done: usize,
    /// The next block, or the tokens after the last one, so far.
    contents: Vec<u8>,
    /// Their tokens so far.
    tokens: usize,
    /// Of the sequence, as far as it is exported.
    len: usize,
    /// `None` if there is none to export.
    tail: Option<TailExport>,
    /// The tail's name, if it has one.
    tail_key: Option<BlockKey>,
}

#[derive(Default)]
struct TailExport {
    /// Bytes so far.
    offset: usize,
    /// Files so far.
    parts: u64,
    /// The next file so far.
    contents: Vec<u8>,
}

impl Export {
    /// Tokens after the last block, which are stored with the tail.
    fn rest(&self) -> usize {
        self.len - self.keys.len() * BLOCK_TOKENS
    }

    pub fn pending_tokens(&self) -> usize {
        let blocks = (self.keys.len() - self.done) * BLOCK_TOKENS;
        // A tail counts as a token, so that something is left until it is done.
        let tail = self.tail.as_ref().map_or(0, |_| self.rest() + 1);
        (blocks + tail).saturating_sub(self.tokens)
    }

    /// How many tokens of the next block, or of those after the last one, are missing.
    fn missing(&self) -> usize {
        let wanted = if self.done < self.keys.len() {
            BLOCK_TOKENS
        } else {
            self.rest()
        };
        wanted - self.tokens
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
    /// Returns whether there is something new to export.
    fn collect_new(&mut self, cache: &mut PrefixCache) -> bool {
        let changes = cache.take_changes();
        let is_new = !changes.kept.is_empty();
        for (id, len) in changes.kept {
            let mut same = self.pending.iter_mut().filter(|(other, _)| *other == id);
            match same.next() {
                // Its blocks include those of shorter ones.
                Some((_, longest)) if !self.needs_tails => *longest = len.max(*longest),
                _ => self.pending.push_back((id, len)),
            }
        }
        for id in changes.evicted {
            let waiting = self.pending.len();
            self.pending.retain(|(pending, _)| *pending != id);
            let current = self.current.take_if(|export| export.id == id);
            if current.is_some() || self.pending.len() < waiting {
                self.counts.lost += 1;
            }
        }
        is_new
    }

    /// Exports a slice of the oldest sequence that is not stored.
    fn export_slice(
        &mut self,
        known: (&PrefixCache, &MediaCache),
        session: &dyn Session,
        now: impl Fn() -> Instant,
        size: SliceSize,
    ) -> Slice {
        let Some(mut export) = self.next_export(known) else {
            return Slice::Nothing;
        };
        if !self.disk.has_room() {
            self.current = Some(export);
            return Slice::Blocked;
        }
        let began = now();
        let exported = if export.missing() > 0 {
            self.export_tokens(&mut export, session, size)
        } else {
            self.export_tail(&mut export, session, size)
        };
        match exported {
            Ok(bytes) => {
                self.export_speed.record(bytes, now() - began);
                self.slice_bytes = Some(bytes);
                self.current = Some(export);
            }
            Err(error) => {
                tracing::debug!(%error, "a cached prefix is not stored on disk");
                self.finished(&export);
            }
        }
        Slice::Exported
    }

    /// Exports tokens of a block, or of those after the last one. Returns their bytes.
    fn export_tokens(
        &mut self,
        export: &mut Export,
        session: &dyn Session,
        size: SliceSize,
    ) -> Result<usize, SessionError> {
        let fitting = match self.bytes_per_token {
            None => size.tokens,
            Some(bytes) => size.bytes.checked_div(bytes).unwrap_or(BLOCK_TOKENS),
        };
        let count = fitting.max(size.tokens).min(export.missing());
        let start = export.done * BLOCK_TOKENS + export.tokens;
        let before = export.contents.len();
        session.export_range(export.id, start..start + count, &mut export.contents)?;
        let bytes = export.contents.len() - before;
        self.bytes_per_token = Some(bytes / count);
        export.tokens += count;
        if export.missing() == 0 {
            let end = start + count;
            let whole = end - export.tokens..end;
            session.export_range_media(export.id, whole, &mut export.contents)?;
        }
        if export.done < export.keys.len() && export.missing() == 0 {
            let room = export.contents.len();
            let contents = std::mem::replace(&mut export.contents, Vec::with_capacity(room));
            self.write(export.keys[export.done], BLOCK_TOKENS, contents);
            export.done += 1;
            export.tokens = 0;
        }
        Ok(bytes)
    }

    /// Exports a part of the tail, and writes the tail's record after the last one. Returns the
    /// bytes.
    fn export_tail(
        &mut self,
        export: &mut Export,
        session: &dyn Session,
        size: SliceSize,
    ) -> Result<usize, SessionError> {
        let (Some(tail), Some(key)) = (&mut export.tail, export.tail_key) else {
            return Ok(0);
        };
        let before = tail.contents.len();
        let part = tail.offset..tail.offset + size.bytes;
        let is_last = session.export_tail(export.id, export.len, part, &mut tail.contents)?;
        let bytes = tail.contents.len() - before;
        tail.offset += bytes;
        let max_bytes = self.disk.stats().max_bytes;
        if tail.offset as u64 > max_bytes / TAIL_SHARE {
            tracing::warn!(
                max_bytes,
                "the windows and states of a sequence exceed a quarter of `kv_disk`: prefixes of \
                 this model are not stored from now on"
            );
            self.tails_too_large = true;
            export.tail = None;
            return Ok(bytes);
        }
        if tail.contents.len() >= PART_BYTES || is_last && !tail.contents.is_empty() {
            let contents = std::mem::take(&mut tail.contents);
            self.write(key.part(tail.parts), 0, contents);
            tail.parts += 1;
        }
        if is_last {
            let record = TailRecord {
                parts: tail.parts,
                rest: std::mem::take(&mut export.contents),
            };
            self.write(key, export.tokens, record.encode());
            export.tokens = 0;
            export.tail = None;
        }
        Ok(bytes)
    }

    fn write(&self, key: BlockKey, tokens: usize, contents: Vec<u8>) {
        self.disk.write(Block {
            key,
            tokens,
            contents,
            prompt_speed: self.prompt_speed.0.map_or(0, |speed| speed as u64),
        });
    }

    /// The export to continue, at a block or a tail that is not stored yet.
    fn next_export(&mut self, known: (&PrefixCache, &MediaCache)) -> Option<Export> {
        loop {
            let mut export = match self.current.take() {
                Some(export) => export,
                None => self.begin(self.pending.front().copied()?, known),
            };
            // Replaced by a longer one, which shares the blocks that are done.
            let is_gone = known.0.entry(export.id).is_none();
            // Blocks alone are of no use.
            if is_gone || self.tails_too_large {
                self.finished(&export);
                continue;
            }
            if export.tokens == 0 {
                let stored = export.keys[export.done..].iter();
                export.done += stored.take_while(|key| self.disk.contains(key)).count();
            }
            if export.done < export.keys.len() || export.tail.is_some() {
                return Some(export);
            }
            self.finished(&export);
            if !export.keys.is_empty() {
                self.disk.touch(export.keys, export.tail_key);
            }
        }
    }

    fn begin(
        &self,
        (id, len): (SequenceId, usize),
        (cache, media): (&PrefixCache, &MediaCache),
    ) -> Export {
        let entry = cache.entry(id);
        let tokens = entry
            .and_then(|(_, tokens)| tokens.get(..len))
            .unwrap_or(&[]);
        let prefix = media.content_of(tokens);
        let keys = entry.map_or_else(Vec::new, |(scope, _)| self.keys(scope, &prefix));
        let tail_key = self
            .tail_key(&keys, &prefix)
            .filter(|_| prefix.len() == tokens.len());
        let is_new = tail_key.is_some_and(|key| !self.disk.contains(&key));
        Export {
            id,
            keys,
            done: 0,
            contents: Vec::new(),
            tokens: 0,
            len,
            tail: is_new.then(TailExport::default),
            tail_key,
        }
    }

    fn finished(&mut self, export: &Export) {
        let done = (export.id, export.len);
        self.pending.retain(|pending| *pending != done);
    }
}

impl Worker {
    /// Exports a part of the cached prefixes that are not on disk; more of it if nothing else is to
    /// do. Returns whether to continue at once.
    pub(crate) fn store_prefixes(&mut self, busy: bool) -> bool {
        let Some(tier) = &mut self.disk else {
            return false;
        };
        tier.disk.set_computing(busy);
        if tier.collect_new(&mut self.cache) {
            // How much there is.
            self.publish();
        }
        let Some(tier) = &mut self.disk else {
            return false;
        };
        if tier.pending.is_empty() {
            tier.credit = Duration::ZERO;
            return false;
        }
        let now = || self.time.now();
        let started = now();
        let size = if busy {
            let bytes = tier.slice_bytes.unwrap_or(ASSUMED_BYTES);
            let speed = tier.export_speed.0.unwrap_or(ASSUMED_SPEED);
            if tier.credit < Duration::from_secs_f64(bytes as f64 / speed) {
                return false;
            }
            BUSY
        } else {
            IDLE
        };
        let slice = tier.export_slice((&self.cache, &self.media), &*self.session, now, size);
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
            match tier.export_slice(
                (&self.cache, &self.media),
                &*self.session,
                Instant::now,
                LAST,
            ) {
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
