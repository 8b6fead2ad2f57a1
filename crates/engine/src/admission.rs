//! Admission and preemption.
//!
//! A sequence starts only if the KV that running sequences hold, as the session counts it, and all
//! that is reserved for them fit the capacity. The prefix cache uses the rest and is evicted first.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use loquat_session::{AppliedAdapter, PrefixCopy, SequenceId, SessionError};

use crate::disk_tier::DiskTier;
use crate::limits::KvProgress;
use crate::prefix_cache::{Hit, release};
use crate::queue::QueueCandidate;
use crate::running::{HeldMedia, Running};
use crate::sequence::{Sequence, SequenceEnd};
use crate::worker::Worker;

/// A sequence whose reader lags for this long may be preempted for waiting requests.
const STALLED: Duration = Duration::from_millis(250);
/// A request that does not fit is retried when something ends, and after this long: by then it is
/// more urgent, or a reader has stalled.
const RETRY: Duration = Duration::from_millis(50);

impl Worker {
    /// Starts waiting requests in order while their reservations fit.
    pub(super) fn admit(&mut self, now: Instant) {
        if self.queue.is_empty() || self.retry_at.is_some_and(|at| now < at) {
            return;
        }
        self.retry_at = None;
        while let Some(turn) = self.next_candidate(now) {
            let mut started = self.try_start(turn, now);
            // Start at once, before the preempted sequences can take the room back.
            if !started && self.preempt_for(turn, now) {
                started = self.try_start(turn, now);
            }
            if !started {
                return self.retry_later(now);
            }
        }
    }

    pub(super) fn retry_later(&mut self, now: Instant) {
        self.retry_at = now.checked_add(RETRY);
    }

    /// Skips a request whose prefix another sequence is computing now.
    fn next_candidate(&self, now: Instant) -> Option<QueueCandidate> {
        self.queue
            .next(now, self.options.aging, &self.clients, |sequence| {
                let is_loading = |disk: &DiskTier| disk.is_loading(sequence.ordinal);
                sequence.sink.has_room()
                    && !self.disk.as_ref().is_some_and(is_loading)
                    && !self.running.iter().any(|r| self.is_ahead(r, sequence))
            })
    }

    /// Whether `running` will soon have computed much more of the sequence's prefix.
    fn is_ahead(&self, running: &Running, sequence: &Sequence) -> bool {
        if running.pending() <= 1 || running.paused.is_some() || !self.may_share(running, sequence)
        {
            return false;
        }
        let theirs = &running.sequence.tokens;
        let ours = &sequence.tokens[..sequence.shareable()];
        let soon = running.computed + self.limits.kv_granularity;
        let wanted = if self.cache.needs_snapshots() {
            soon.max(theirs.len() - 1)
        } else {
            soon
        };
        wanted < theirs.len() && theirs.get(..wanted) == ours.get(..wanted)
    }

    fn may_share(&self, running: &Running, sequence: &Sequence) -> bool {
        let (a, b) = (&running.sequence, sequence);
        let siblings = a.group.is_some() && a.group == b.group;
        let can_share = self.session.capabilities().prefix_copy != PrefixCopy::None;
        can_share && (siblings || (self.cache.is_on() && a.scope == b.scope))
    }

    /// The cached or running sequence with the longest common prefix.
    pub(super) fn find_hit(&self, sequence: &Sequence) -> Option<Hit> {
        let wanted = &sequence.tokens[..sequence.shareable()];
        let kept = if self.cache.is_on() {
            self.cache.find(&sequence.scope, wanted, &*self.session)
        } else {
            None
        };
        let running = self.running.iter().filter_map(|running| {
            if !self.may_share(running, sequence) {
                return None;
            }
            let common = common_prefix_len(&running.sequence.tokens[..running.computed], wanted);
            let len = self.session.reusable(running.id, common).ok()?;
            Some(Hit {
                source: running.id,
                len,
            })
        });
        let best = running.chain(kept).max_by_key(|hit| hit.len);
        best.filter(|hit| hit.len > 0)
    }

    /// Starts a waiting request, or fails it permanently; `false` if it does not fit now.
    fn try_start(&mut self, turn: QueueCandidate, now: Instant) -> bool {
        let sequence = self.queue.get(turn.index);
        let max_len = sequence.max_len();
        let hit = self.find_hit(sequence);
        let adapters = sequence.adapters.clone();
        let promised = |hit: Option<Hit>| {
            let progress = KvProgress::forked(max_len, hit.map_or(0, |hit| hit.len));
            self.limits.promised(&progress)
        };
        let full = self.running.len() >= self.limits.max_running;
        if full || self.committed(|_| true) + promised(hit) > self.limits.kv_capacity {
            return false;
        }
        let attempts = self.attempts(hit);
        let attempts: Vec<_> = attempts
            .into_iter()
            .map(|hit| (hit, promised(hit)))
            .collect();
        for (hit, promised) in attempts {
            match self.start(hit, &adapters) {
                Ok(id) if self.fits(id, promised) => {
                    let error = match self.hold_media(turn, hit) {
                        Ok(media) => {
                            self.run_from((turn, now), (id, hit), media);
                            return true;
                        }
                        Err(error) => error,
                    };
                    release(&mut *self.session, id);
                    if error.is_retryable() && !self.running.is_empty() {
                        return false;
                    }
                    self.fail(turn, now, error);
                    return true;
                }
                Ok(id) => release(&mut *self.session, id),
                Err(_) if hit.is_some() => {}
                Err(error) if error.is_retryable() && !self.running.is_empty() => {}
                Err(error) => {
                    self.fail(turn, now, error);
                    return true;
                }
            }
        }
        false
    }

    /// Fails a waiting request.
    fn fail(&mut self, turn: QueueCandidate, now: Instant, error: SessionError) {
        let mut sequence = self.queue.take(turn.index);
        sequence.end(SequenceEnd::Failed(error.into()));
        self.conclude(vec![sequence], now);
    }

    /// Prefixes to try, best first. A fork inside a KV page copies that page; without room for the
    /// copy, the fork ends at the page before.
    fn attempts(&self, hit: Option<Hit>) -> Vec<Option<Hit>> {
        let mut attempts = Vec::with_capacity(3);
        if let Some(hit) = hit {
            attempts.push(Some(hit));
            let len = self.limits.whole_runs(hit.len);
            if len != hit.len && len > 0 && !self.cache.needs_snapshots() {
                attempts.push(Some(Hit { len, ..hit }));
            }
        }
        attempts.push(None);
        attempts
    }

    /// Creates or forks a sequence, evicting cached ones if needed.
    pub(super) fn start(
        &mut self,
        hit: Option<Hit>,
        adapters: &[AppliedAdapter],
    ) -> Result<SequenceId, SessionError> {
        loop {
            let started = match hit {
                Some(hit) => self.session.fork(hit.source, hit.len),
                None => self.session.create_adapted(adapters),
            };
            let spared = hit.map(|hit| hit.source);
            match started {
                Err(error)
                    if error.is_retryable()
                        && (self.cache.evict(&mut *self.session, spared)
                            || self.give_up_load()) => {}
                started => return started,
            }
        }
    }

    /// Whether the capacity holds all running sequences with this one, and what they are promised.
    fn fits(&self, id: SequenceId, promised: usize) -> bool {
        let ids: Vec<SequenceId> = self.running.iter().map(|r| r.id).chain([id]).collect();
        let held = self.session.held(&ids).unwrap_or_default().kv_tokens;
        held + self.promised() + promised <= self.limits.kv_capacity
    }

    fn run_from(
        &mut self,
        (turn, now): (QueueCandidate, Instant),
        (id, hit): (SequenceId, Option<Hit>),
        media: Vec<HeldMedia>,
    ) {
        let mut sequence = self.queue.take(turn.index);
        let cached = hit.map_or(0, |hit| hit.len);
        if !sequence.watch.was_admitted() {
            self.cache.count(hit);
            let totals = &mut self.meter.totals;
            totals.prompt_tokens += sequence.prompt_len as u64;
            totals.cached_tokens += cached.min(sequence.prompt_len) as u64;
        }
        sequence.admit(now, cached);
        let draw = if self.session.capabilities().draws {
            sequence.next_draw()
        } else {
            None
        };
        self.running.push(Running {
            id,
            computed: cached,
            reservation: self.limits.reservation(sequence.max_len()),
            shared: cached,
            forked: cached,
            row_start: cached,
            urgency: turn.urgency,
            sequence,
            paused: None,
            drafts: Vec::new(),
            draw,
            media,
            whole_prompt: self.session.capabilities().media.whole_prompt,
        });
        self.reclaim();
    }

    /// Evicts cached sequences until the reservations fit.
    fn reclaim(&mut self) {
        let promised = self.promised();
        while self.session.memory().kv_in_use + promised > self.limits.kv_capacity
            && (self.cache.evict(&mut *self.session, None) || self.give_up_load())
        {}
    }

    /// Evicts cached sequences until the next rows have room. A row needs other pages for those of its
    /// windows that a cached sequence keeps, which no reservation includes.
    pub(super) fn make_room(&mut self) {
        if !self.limits.frees_within(self.limits.max_context) {
            return;
        }
        let rows = self.rows.iter();
        let wanted: usize = rows
            .map(|row| {
                let running = &self.running[row.index];
                let tokens = row.tokens + running.drafts.len();
                self.limits.row(running.computed, tokens)
            })
            .sum();
        while self.session.memory().kv_in_use + wanted > self.limits.kv_capacity
            && self.cache.evict(&mut *self.session, None)
        {}
    }

    /// Reserved KV tokens that running sequences have not used yet.
    pub(super) fn promised(&self) -> usize {
        let running = self.running.iter();
        running.map(|r| r.promised(&self.limits)).sum()
    }

    /// KV tokens that the running sequences selected by `counts` hold or have reserved.
    fn committed(&self, counts: impl Fn(usize) -> bool) -> usize {
        let running = self.running.iter().enumerate();
        let counted: Vec<&Running> = running
            .filter(|(index, _)| counts(*index))
            .map(|(_, running)| running)
            .collect();
        let ids: Vec<SequenceId> = counted.iter().map(|running| running.id).collect();
        let promised: usize = counted.iter().map(|r| r.promised(&self.limits)).sum();
        self.session.held(&ids).unwrap_or_default().kv_tokens + promised
    }

    /// Preempts the fewest running sequences that free enough KV for the waiting one; returns
    /// whether it did.
    ///
    /// Only sequences with a higher priority number are preempted, so preemption cannot cycle.
    fn preempt_for(&mut self, turn: QueueCandidate, now: Instant) -> bool {
        let waiting = self.queue.get(turn.index);
        let reservation = self.limits.reservation(waiting.max_len());
        let priority = i64::from(waiting.priority);
        let stalled =
            |running: &Running| running.paused.is_some_and(|since| now >= since + STALLED);
        let mut victims: Vec<usize> = (0..self.running.len())
            .filter(|&at| {
                let running = &self.running[at];
                stalled(running) || priority < running.urgency
            })
            .collect();
        victims.sort_by_key(|&at| {
            let running = &self.running[at];
            (!stalled(running), Reverse(running.urgency), Reverse(at))
        });
        let enough = (1..=victims.len()).find(|&count| {
            let left = self.running.len() - count;
            let stays = |at: usize| !victims[..count].contains(&at);
            left < self.limits.max_running
                && self.committed(stays) + reservation <= self.limits.kv_capacity
        });
        let Some(count) = enough else {
            return false;
        };
        victims.truncate(count);
        victims.sort_unstable();
        for at in victims.into_iter().rev() {
            self.preempt(at, now);
        }
        true
    }

    /// Moves a sequence's KV to the cache. A sequence that computed nothing beyond its prefix is
    /// released: keeping it would make the source copy shared pages.
    pub(super) fn keep(&mut self, mut running: Running) -> Sequence {
        Self::release_media(&mut self.media, &mut running, true);
        let Running {
            sequence,
            id,
            computed,
            shared,
            ..
        } = running;
        let session = &mut *self.session;
        if computed == shared {
            release(session, id)
        } else {
            self.cache
                .keep(session, &sequence.scope, &sequence.tokens[..computed], id)
        }
        sequence
    }

    /// Moves a running sequence back to the queue and its KV to the cache.
    pub(super) fn preempt(&mut self, at: usize, now: Instant) {
        let running = self.running.remove(at);
        let mut sequence = self.keep(running);
        sequence.requeue(now);
        self.queue.push(sequence);
        self.meter.totals.preempted += 1;
    }

    /// On sessions that fork only at snapshots, caches the state before the prompt's last token for
    /// later requests with the same prompt.
    pub(super) fn snapshot_prefix(&mut self, at: usize) {
        let running = &self.running[at];
        let (source, len) = (running.id, running.computed);
        let max_len = running.sequence.max_len();
        let needed = self.limits.kv_granularity + self.limits.windows(max_len);
        if self.session.memory().kv_in_use + self.promised() + needed > self.limits.kv_capacity {
            return;
        }
        // Optional: without room the snapshot is skipped.
        // A fork has the adapters of its source.
        let Ok(id) = self.start(Some(Hit { source, len }), &[]) else {
            return;
        };
        let running = &mut self.running[at];
        running.shared = len;
        let sequence = &running.sequence;
        self.cache.keep(
            &mut *self.session,
            &sequence.scope,
            &sequence.tokens[..len],
            id,
        );
    }
}

/// Length of the common prefix.
fn common_prefix_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
