//! Reading the prefixes of waiting requests.

use std::time::{Duration, Instant};

use loquat_kvdisk::{BlockLoad, LoadEvent, TailSearch, Worth};
use loquat_session::{AppliedAdapter, SequenceId, SessionError};

use super::BLOCK_TOKENS;
use crate::adapters::Scope;
use crate::prefix_cache::release;
use crate::sequence::Sequence;
use crate::worker::Worker;

/// A request waits no longer than this for the next block of a disk that hangs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Blocks that are read for a waiting request.
pub(super) struct Load {
    blocks: BlockLoad,
    scope: Scope,
    adapters: Vec<AppliedAdapter>,
    /// Of the request, as far as blocks were asked for.
    tokens: Vec<u32>,
    /// Tokens that are in memory and begin the imported sequence.
    start: usize,
    /// Holds the imported blocks; `None` before the first.
    target: Option<SequenceId>,
    /// Tokens of `target`.
    len: usize,
    /// `target` lacks its tail, without which it is of no use.
    lacks_tail: bool,
    last_event: Instant,
}

impl Load {
    pub fn deadline(&self) -> Instant {
        self.last_event + PATIENCE
    }
}

impl Worker {
    /// Asks for the blocks of a new request that are not in memory.
    pub(crate) fn look_on_disk(&mut self, sequence: &Sequence) {
        if self.disk.is_none() {
            return;
        }
        let in_memory = self.find_hit(sequence).map_or(0, |hit| hit.len);
        let now = self.time.now();
        let Some(tier) = &mut self.disk else {
            return;
        };
        let wanted = &sequence.tokens[..sequence.shareable()];
        let prefix = self.media.content_of(wanted);
        let tokens = wanted[..prefix.len()].to_vec();
        let mut keys = tier.keys(&sequence.scope, &prefix);
        let blocks = in_memory / BLOCK_TOKENS;
        let Some(next) = keys.get(blocks) else {
            return;
        };
        // A conversation that continues in memory does not wait for a look at the disk.
        if blocks > 0 && !tier.disk.may_contain(next) {
            return;
        }
        let worth = Worth {
            prompt_speed: tier.prompt_speed.0,
            import_speed: tier.import_speed.0,
        };
        // What is in memory cannot be cut where a block begins.
        let start = if tier.needs_tails {
            0
        } else {
            blocks * BLOCK_TOKENS
        };
        let load = Load {
            blocks: if tier.needs_tails {
                let search = TailSearch {
                    prefix,
                    longer_than: in_memory,
                };
                tier.disk.load_with_tail(keys, search, worth)
            } else {
                tier.disk.load(keys.split_off(blocks), worth)
            },
            tokens,
            scope: sequence.scope.clone(),
            adapters: sequence.adapters.clone(),
            start,
            target: None,
            len: start,
            lacks_tail: tier.needs_tails,
            last_event: now,
        };
        tier.loads.insert(sequence.ordinal, load);
    }

    /// Imports files that were read. While sequences run, one for each step.
    pub(crate) fn advance_loads(&mut self, now: Instant) {
        let Some(tier) = &self.disk else {
            return;
        };
        let ordinals: Vec<u64> = tier.loads.keys().copied().collect();
        for ordinal in ordinals {
            if !self.queue.iter().any(|waiting| waiting.ordinal == ordinal) {
                self.finish_load(ordinal);
                continue;
            }
            while let Some(load) = self.load_mut(ordinal) {
                let event = load.blocks.try_next();
                match event {
                    LoadEvent::Pending if now < load.deadline() => break,
                    LoadEvent::Pending | LoadEvent::End => {
                        self.finish_load(ordinal);
                        break;
                    }
                    event => {
                        load.last_event = now;
                        match self.import_file(ordinal, event) {
                            // Blocks of models without keys and values are empty.
                            Ok(0) => {}
                            Ok(_) if self.running.is_empty() => {}
                            Ok(_) => return,
                            Err(error) => {
                                tracing::debug!(%error, "a prefix on disk is computed instead");
                                self.finish_load(ordinal);
                                break;
                            }
                        }
                    }
                }
            }
        }
    }

    /// Imports what a file has, and returns its bytes.
    fn import_file(&mut self, ordinal: u64, event: LoadEvent) -> Result<usize, SessionError> {
        match event {
            LoadEvent::Block(bytes) => {
                self.import_tokens(ordinal, BLOCK_TOKENS, &bytes)?;
                Ok(bytes.len())
            }
            LoadEvent::Tail { record, tokens } => {
                self.import_tokens(ordinal, tokens, &record.rest)?;
                if record.parts == 0 {
                    self.import_tail(ordinal, &[])?;
                }
                Ok(record.rest.len())
            }
            LoadEvent::Part(bytes) => {
                self.import_tail(ordinal, &bytes)?;
                Ok(bytes.len())
            }
            LoadEvent::Pending | LoadEvent::End => Ok(0),
        }
    }

    fn load_mut(&mut self, ordinal: u64) -> Option<&mut Load> {
        self.disk.as_mut()?.loads.get_mut(&ordinal)
    }

    fn import_tokens(
        &mut self,
        ordinal: u64,
        tokens: usize,
        bytes: &[u8],
    ) -> Result<(), SessionError> {
        let Some(load) = self.load_mut(ordinal) else {
            return Ok(());
        };
        let (start, len, adapters) = (load.start, load.len, load.adapters.clone());
        let end = len + tokens;
        if end > load.tokens.len() {
            return Err(SessionError::BadImport(
                "more tokens than wanted".to_owned(),
            ));
        }
        let target = match load.target {
            Some(target) => target,
            None => {
                let (scope, tokens) = (load.scope.clone(), load.tokens[..start].to_vec());
                let hit = self.cache.find(&scope, &tokens, &*self.session);
                let hit = hit.filter(|hit| hit.len == start);
                if start > 0 && hit.is_none() {
                    return Err(SessionError::LengthOutOfRange {
                        len: start,
                        available: 0,
                    });
                }
                self.start(hit, &adapters)?
            }
        };
        let Some(load) = self.load_mut(ordinal) else {
            release(&mut *self.session, target);
            return Ok(());
        };
        load.target = Some(target);
        self.make_room_for_tokens(tokens)?;
        let began = self.time.now();
        self.session.import_range(target, tokens, bytes)?;
        let took = self.time.now() - began;
        if let Some(tier) = &mut self.disk {
            tier.import_speed.record(bytes.len(), took);
            if let Some(load) = tier.loads.get_mut(&ordinal) {
                load.len = end;
            }
        }
        Ok(())
    }

    fn import_tail(&mut self, ordinal: u64, bytes: &[u8]) -> Result<(), SessionError> {
        let Some(target) = self.load_mut(ordinal).and_then(|load| load.target) else {
            return Err(SessionError::BadImport("a tail without blocks".to_owned()));
        };
        let began = self.time.now();
        let is_complete = loop {
            match self.session.import_tail(target, bytes) {
                Err(error)
                    if error.is_retryable() && self.cache.evict(&mut *self.session, None) => {}
                imported => break imported?,
            }
        };
        let took = self.time.now() - began;
        if let Some(tier) = &mut self.disk {
            tier.import_speed.record(bytes.len(), took);
            if let Some(load) = tier.loads.get_mut(&ordinal) {
                load.lacks_tail = !is_complete;
            }
        }
        Ok(())
    }

    /// Evicts cached sequences until so much KV is free besides all reservations.
    fn make_room_for_tokens(&mut self, tokens: usize) -> Result<(), SessionError> {
        let promised = self.promised();
        let wanted = tokens + self.limits.kv_granularity;
        while self.session.memory().kv_in_use + promised + wanted > self.limits.kv_capacity {
            if !self.cache.evict(&mut *self.session, None) {
                return Err(SessionError::KvExhausted {
                    wanted,
                    available: 0,
                });
            }
        }
        Ok(())
    }

    /// Moves what was imported to the prefix cache.
    fn finish_load(&mut self, ordinal: u64) {
        let load = self
            .disk
            .as_mut()
            .and_then(|tier| tier.loads.remove(&ordinal));
        let Some(Load {
            target: Some(target),
            scope,
            tokens,
            start,
            len,
            lacks_tail,
            ..
        }) = load
        else {
            return;
        };
        if len == start || lacks_tail {
            return release(&mut *self.session, target);
        }
        if let Some(tier) = &mut self.disk {
            tier.counts.hits += 1;
            tier.counts.hit_tokens += (len - start) as u64;
        }
        let tokens = &tokens[..len];
        self.cache.keep(&mut *self.session, &scope, tokens, target);
    }

    /// Ends loads whose requests are gone.
    pub(crate) fn drop_loads_without_requests(&mut self) {
        let Some(tier) = &self.disk else {
            return;
        };
        let is_gone = |ordinal: &u64| !self.queue.iter().any(|waiting| waiting.ordinal == *ordinal);
        let gone: Vec<u64> = tier.loads.keys().copied().filter(is_gone).collect();
        for ordinal in gone {
            self.finish_load(ordinal);
        }
    }

    /// Ends a load so that what it imported can be evicted; returns whether there was one.
    pub(crate) fn give_up_load(&mut self) -> bool {
        let loads = self.disk.as_ref().map(|tier| &tier.loads);
        let mut held = loads.into_iter().flatten();
        let held = held.find(|(_, load)| load.target.is_some());
        let Some((&ordinal, _)) = held else {
            return false;
        };
        self.finish_load(ordinal);
        true
    }

    /// Ends all loads without caching what they imported.
    pub(crate) fn cancel_loads(&mut self) {
        let Some(tier) = &mut self.disk else {
            return;
        };
        let targets = std::mem::take(&mut tier.loads).into_values();
        for target in targets.filter_map(|load| load.target) {
            release(&mut *self.session, target);
        }
    }
}
