//! The thread that owns the session.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use loquat_session::{Session, SessionError, StepBatch, StepOutput};

use crate::adapters::{AdapterCommand, Unloading};
use crate::clients::Clients;
use crate::constraint_worker::ConstraintWorker;
use crate::disk_tier::DiskTier;
use crate::error::panic_message;
use crate::limits::Limits;
use crate::media_cache::MediaCache;
use crate::no_session::NoSession;
use crate::pacing::PromptPacer;
use crate::prefix_cache::{PrefixCache, release};
use crate::queue::Queue;
use crate::running::Running;
use crate::sampling::SamplerScratch;
use crate::scheduler::{Scheduled, Scheduler, StepMix};
use crate::sequence::{Sequence, SequenceEnd};
use crate::shared::Shared;
use crate::speculation::Speculator;
use crate::stats::Meter;
use crate::time::TimeSource;
use crate::{EngineError, EngineFailure, EngineOptions};

/// Consecutive failed steps after which the engine ends.
const MAX_FAILURES: usize = 3;

/// With at least this many streams, wait briefly for their readers.
const MIN_STREAMS_TO_YIELD: usize = 4;
/// Short compared to a step, long enough for a reader to be scheduled.
const YIELD_SLEEP: Duration = Duration::from_micros(50);

pub(crate) enum Command {
    Submit(Box<Sequence>),
    /// A reader made room or dropped its end.
    Wake,
    ClearCache,
    Adapter(AdapterCommand),
    /// End when all requests are done, or at the deadline.
    Drain(Instant),
    Shutdown,
}

pub(crate) struct Worker {
    pub(super) session: Box<dyn Session>,
    pub(super) options: EngineOptions,
    pub(super) limits: Limits,
    pub(super) queue: Queue,
    /// In order of admission.
    pub(super) running: Vec<Running>,
    pub(super) cache: PrefixCache,
    /// `None` if prefixes are not stored.
    pub(super) disk: Option<DiskTier>,
    pub(super) media: MediaCache,
    pub(super) clients: Clients,
    pub(super) unloading: Vec<Unloading>,
    pub(super) meter: Meter,
    /// When to retry admission.
    pub(super) retry_at: Option<Instant>,
    /// Streams run without encoding until then.
    pub(super) encode_after: Option<Instant>,
    pub(super) scheduler: Scheduler,
    commands: mpsc::Receiver<Command>,
    /// A command arrived since the last schedule, so a reader may have dropped its end.
    pub(super) woken: bool,
    arrivals: u64,
    /// The engine ends then, or when all requests are done.
    drain_until: Option<Instant>,
    shutdown: bool,
    pub(super) speculator: Speculator,
    pub(super) rows: Vec<Scheduled>,
    mix: StepMix,
    batch: StepBatch,
    output: StepOutput,
    scratch: SamplerScratch,
    constraint_worker: ConstraintWorker,
    /// Consecutive failed steps.
    failures: usize,
    /// A row of this step ran out of KV.
    starved: Option<SessionError>,
    pub(super) shared: Arc<Shared>,
    pub(super) time: TimeSource,
}

impl Worker {
    pub fn new(
        session: Box<dyn Session>,
        options: EngineOptions,
        commands: mpsc::Receiver<Command>,
        shared: Arc<Shared>,
        time: TimeSource,
        disk: Option<DiskTier>,
    ) -> Self {
        let capabilities = session.capabilities();
        let mut cache = PrefixCache::new(capabilities.prefix_copy, options.cache_bytes);
        if disk.is_some() {
            cache.record_changes();
        }
        let limits = Limits::new(&options, capabilities, &session.memory());
        let pace = PromptPacer::new(options.max_slowdown, limits.max_running);
        let stops_short = cache.needs_snapshots();
        let scheduler = Scheduler::new(capabilities, limits.step_tokens, stops_short, pace);
        let positions = scheduler.scored_positions();
        let replays = session.memory().state_bytes > 0;
        let speculator = Speculator::new(options.speculation, capabilities, (positions, replays));
        Self {
            session,
            options,
            limits,
            queue: Queue::default(),
            running: Vec::new(),
            cache,
            disk,
            media: MediaCache::new(),
            clients: Clients::default(),
            unloading: Vec::new(),
            meter: Meter::new(time.now()),
            retry_at: None,
            encode_after: None,
            scheduler,
            speculator,
            commands,
            woken: false,
            arrivals: 0,
            drain_until: None,
            shutdown: false,
            rows: Vec::new(),
            mix: StepMix::default(),
            batch: StepBatch::default(),
            output: StepOutput::default(),
            scratch: SamplerScratch::default(),
            constraint_worker: ConstraintWorker::default(),
            failures: 0,
            starved: None,
            shared,
            time,
        }
    }

    /// Runs the thread to its end. Returns the session, without sequences, unless it failed.
    pub fn run_to_end(mut self) -> Option<Box<dyn Session>> {
        let why = match catch_unwind(AssertUnwindSafe(|| self.serve())) {
            Ok(Ok(())) => EngineError::ShutDown,
            Ok(Err(dead)) => dead,
            Err(panic) => EngineError::Dead(EngineFailure::Panicked(panic_message(&*panic))),
        };
        // Set before any channel closes: a reader whose channel closes early asks for the reason.
        self.shared.end(why.clone());
        let shared = Arc::clone(&self.shared);
        let closed = catch_unwind(AssertUnwindSafe(move || self.close(why)));
        let session = closed.unwrap_or_else(|panic| {
            tracing::error!(panic = panic_message(&*panic), "closing the session failed");
            None
        });
        shared.forget_session();
        session
    }

    /// Serves until stopped; sleeps while there is nothing to do.
    fn serve(&mut self) -> Result<(), EngineError> {
        let mut idle = false;
        loop {
            self.take_commands(idle);
            if self.is_over(self.time.now()) {
                return Ok(());
            }
            // A step without rows may still have ended the last sequence.
            let stepped = self.step()?;
            let storing = self.store_prefixes(stepped);
            self.yield_to_readers();
            idle = !stepped && !storing && !self.is_over(self.time.now());
        }
    }

    /// Waits briefly for readers. A single reader gets a core without this; many do not.
    fn yield_to_readers(&self) {
        let grace = self.options.reader_grace;
        if grace.is_zero() || self.running.len() < MIN_STREAMS_TO_YIELD {
            return;
        }
        let began = Instant::now();
        let has_one_event = |running: &Running| running.sequence.sink.has_one_event();
        while self.running.iter().any(has_one_event) && began.elapsed() < grace {
            std::thread::sleep(YIELD_SLEEP);
        }
    }

    /// Handles all pending commands; if `wait`, waits for one.
    pub fn take_commands(&mut self, wait: bool) {
        let mut next = if wait {
            self.wait()
        } else {
            self.commands.try_recv().ok()
        };
        while let Some(command) = next {
            self.woken = true;
            self.retry_at = None;
            match command {
                Command::Submit(sequence) => self.enqueue(*sequence),
                Command::Wake => {}
                Command::ClearCache => {
                    // Otherwise sequences cancelled before the command would be cached after it.
                    self.drop_cancelled(self.time.now());
                    self.cancel_loads();
                    if let Some(disk) = &mut self.disk {
                        disk.clear();
                    }
                    self.cache.clear(&mut *self.session);
                    self.media.clear(&mut *self.session);
                }
                Command::Adapter(command) => self.handle_adapter(command),
                Command::Drain(until) => {
                    let earlier = self.drain_until.unwrap_or(until);
                    self.drain_until = Some(until.min(earlier));
                }
                Command::Shutdown => self.shutdown = true,
            }
            next = self.commands.try_recv().ok();
        }
    }

    /// Waits for the next command; `None` at the next deadline.
    fn wait(&mut self) -> Option<Command> {
        self.meter.idle();
        let received = match self.next_deadline() {
            None => self
                .commands
                .recv()
                .map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(at) => {
                let left = at.saturating_duration_since(self.time.now());
                self.commands.recv_timeout(left)
            }
        };
        match received {
            Ok(command) => Some(command),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.woken = true;
                None
            }
            // All senders are gone.
            Err(mpsc::RecvTimeoutError::Disconnected) => Some(Command::Shutdown),
        }
    }

    /// The next time at which something is due without a command.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.iter().map(|running| &running.sequence);
        let deadlines = running
            .chain(self.queue.iter())
            .filter_map(Sequence::deadline);
        let retry = self.retry_at.filter(|_| !self.queue.is_empty());
        let load = self.disk.as_ref().and_then(DiskTier::next_deadline);
        let others = retry.into_iter().chain(self.drain_until).chain(load);
        deadlines.chain(others).min()
    }

    fn enqueue(&mut self, mut sequence: Sequence) {
        sequence.ordinal = self.arrivals;
        self.arrivals += 1;
        self.meter.totals.submitted += 1;
        self.key_media(&mut sequence);
        self.check_adapters(&mut sequence);
        self.clients.arrive(&sequence.client);
        if sequence.ending().is_some() {
            return self.conclude(vec![sequence], self.time.now());
        }
        self.look_on_disk(&sequence);
        self.queue.push(sequence);
    }

    /// Whether the engine should end.
    fn is_over(&self, now: Instant) -> bool {
        let is_empty = self.running.is_empty() && self.queue.is_empty();
        self.shutdown
            || self
                .drain_until
                .is_some_and(|until| is_empty || now >= until)
    }

    /// Runs one step; returns whether there was anything to compute.
    pub fn step(&mut self) -> Result<bool, EngineError> {
        let scheduled = self.schedule()?;
        self.run()?;
        self.sample();
        self.settle();
        Ok(scheduled)
    }

    /// Returns whether the step does anything.
    fn schedule(&mut self) -> Result<bool, EngineError> {
        let now = self.time.now();
        if std::mem::take(&mut self.woken) {
            self.drop_cancelled(now);
        }
        self.drop_expired(now);
        for running in &mut self.running {
            if running.sequence.sink.has_room() {
                running.paused = None
            } else {
                _ = running.paused.get_or_insert(now)
            }
        }
        self.advance_loads(now);
        self.admit(now);
        let encoded = self.encode_next(now)?;
        self.mix = self.scheduler.fill(&self.running, &mut self.rows);
        self.draft();
        self.make_room();
        self.batch.clear();
        for row in &self.rows {
            self.running[row.index].push(row.tokens, &mut self.batch);
        }
        Ok(encoded || !self.rows.is_empty())
    }

    /// Adds drafts to the rows.
    fn draft(&mut self) {
        let tokens: usize = self.rows.iter().map(|row| row.tokens).sum();
        let room = self.scheduler.step_tokens().saturating_sub(tokens);
        let is_mixed = self.scheduler.has_prompts();
        self.speculator
            .draft(&mut self.running, &self.rows, (is_mixed, room));
    }

    fn drop_cancelled(&mut self, now: Instant) {
        for running in &mut self.running {
            if running.sequence.sink.is_cancelled() {
                running.sequence.end(SequenceEnd::Cancelled);
            }
        }
        let queued = self.queue.remove_if(|sequence| {
            let cancelled = sequence.sink.is_cancelled();
            if cancelled {
                sequence.end(SequenceEnd::Cancelled);
            }
            cancelled
        });
        let ended = self.retire();
        self.conclude(ended, now);
        self.conclude(queued, now);
    }

    fn drop_expired(&mut self, now: Instant) {
        let expired = self.queue.remove_if(|sequence| sequence.expire(now));
        let mut any = false;
        for running in &mut self.running {
            any |= running.sequence.expire(now);
        }
        let ended = if any { self.retire() } else { Vec::new() };
        self.conclude(ended, now);
        self.conclude(expired, now);
    }

    /// Computes the batch. A failed step fails its sequences; too many in a row, or a fatal one, end
    /// the engine.
    fn run(&mut self) -> Result<(), EngineError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.dispatch_constraints();
        let started = self.time.now();
        let running = self.shared.thread.step();
        let stepped = self.session.step(&self.batch, &mut self.output);
        drop(running);
        if self.shared.thread.is_abandoned() {
            return Err(self.shared.end_reason());
        }
        let ended = self.time.now();
        self.collect_constraints();
        self.meter.step(started, ended);
        // A step whose masks came late is as slow as they are.
        self.speculator.record(self.time.now() - started);
        if !self.speculator.has_drafts() {
            self.scheduler.record(self.mix, ended - started);
        }
        if let Some(disk) = &mut self.disk {
            disk.record_step(self.mix, ended - started);
        }
        let Err(error) = stepped.and_then(|()| self.check_output()) else {
            self.failures = 0;
            return Ok(());
        };
        tracing::error!(%error, "a step failed");
        if error.is_fatal() {
            return Err(EngineError::Dead(EngineFailure::Session(error)));
        }
        self.failures += 1;
        if self.failures == MAX_FAILURES {
            return Err(EngineError::Dead(EngineFailure::Steps {
                count: MAX_FAILURES,
                last: error,
            }));
        }
        for row in self.rows.drain(..) {
            let sequence = &mut self.running[row.index].sequence;
            sequence.end(SequenceEnd::Failed(error.clone().into()));
        }
        Ok(())
    }

    /// Sends constraints to the worker, which computes masks during the step.
    fn dispatch_constraints(&mut self) {
        let vocab_size = self.session.capabilities().vocab_size;
        for &Scheduled { index, tokens } in &self.rows {
            let running = &mut self.running[index];
            if running.chooses(tokens)
                && let Some(constraint) = running.sequence.constraint.take()
            {
                self.constraint_worker.submit(index, constraint, vocab_size);
            }
        }
    }

    fn collect_constraints(&mut self) {
        while let Some((index, constraint)) = self.constraint_worker.receive() {
            self.running[index].sequence.constraint = Some(constraint);
        }
    }

    fn check_output(&self) -> Result<(), SessionError> {
        let (wanted, found) = (self.rows.len(), self.output.rows().len());
        if wanted == found {
            return Ok(());
        }
        Err(SessionError::Device(format!(
            "{wanted} rows went in and {found} came out"
        )))
    }

    fn sample(&mut self) {
        let mut starved = None;
        for (row, scheduled) in self.rows.iter().enumerate() {
            let running = &mut self.running[scheduled.index];
            if let Some(error) = &self.output.rows()[row].error {
                if error.is_retryable() {
                    starved = Some(error.clone())
                } else {
                    running
                        .sequence
                        .end(SequenceEnd::Failed(error.clone().into()))
                }
                running.drafts.clear();
                continue;
            }
            let sampled = guarded("sampling", || {
                running.sample(row, scheduled.tokens, &mut self.output, &mut self.scratch)
            });
            self.clients
                .serve(&running.sequence.client, scheduled.tokens);
            if let Err(error) = sampled {
                running.sequence.end(SequenceEnd::Failed(error));
            }
            Self::release_media(&mut self.media, running, false);
        }
        self.starved = starved;
    }

    fn settle(&mut self) {
        let now = self.time.now();
        let mut generated = 0;
        for (row, scheduled) in self.rows.iter().enumerate() {
            let running = &mut self.running[scheduled.index];
            if running.sequence.ending().is_some() {
                continue;
            }
            let before = running.sequence.completion_tokens();
            while settle_token(running, now)
                && sample_next(running, row, &mut self.output, &mut self.scratch)
            {}
            generated += running.sequence.completion_tokens() - before;
            match running.end_drafts(&mut *self.session) {
                Ok(accepted) => {
                    self.speculator.accept(accepted);
                    self.clients.serve(&running.sequence.client, accepted);
                }
                Err(error) => running.sequence.end(SequenceEnd::Failed(error.into())),
            }
        }
        self.speculator.settle(generated);
        self.meter.totals.completion_tokens += generated as u64;
        self.meter.decode.add(generated, now);
        self.meter.prompt.add(self.mix.prompt_tokens, now);
        self.snapshot_prompts();
        self.free_starved(now);
        let ended = self.retire();
        self.conclude(ended, now);
        self.finish_unloads();
        self.publish();
    }

    /// On sessions that fork only at snapshots, caches prompts without their last token.
    fn snapshot_prompts(&mut self) {
        if !self.cache.needs_snapshots() || !self.cache.is_on() {
            return;
        }
        let has_states = self.session.memory().state_bytes > 0;
        for row in 0..self.rows.len() {
            let Scheduled { index, tokens } = self.rows[row];
            let running = &self.running[index];
            // A row without room computed nothing.
            let began = running.computed.saturating_sub(tokens);
            let is_prompt = began < running.sequence.prompt_len;
            let at_the_end = is_prompt && tokens > 1 && running.pending() == 1;
            // Without states, a sequence that keeps all its KV can be forked anywhere.
            let keeps_all = !has_states && !self.limits.frees_within(running.sequence.max_len());
            if keeps_all {
                continue;
            }
            if at_the_end && running.sequence.ending().is_none() {
                self.snapshot_prefix(index);
            }
        }
    }

    /// Frees KV for a row that found none despite its reservation: the session's accounting is
    /// wrong, or other programs took the memory.
    fn free_starved(&mut self, now: Instant) {
        let Some(error) = self.starved.take() else {
            return;
        };
        tracing::warn!(%error, "the session had less room than it said");
        let ending = |running: &Running| running.sequence.ending().is_some();
        if self.cache.evict(&mut *self.session, None) || self.running.iter().any(ending) {
            return;
        }
        match self.running.as_mut_slice() {
            [] => {}
            [last] => last.sequence.end(SequenceEnd::Failed(error.into())),
            [.., _] => {
                self.preempt(self.running.len() - 1, now);
                self.retry_later(now);
            }
        }
    }

    /// Removes ended sequences from `running`. Caches the KV of those that did not fail, and
    /// releases the rest.
    pub(super) fn retire(&mut self) -> Vec<Sequence> {
        let has_ended = |running: &mut Running| running.sequence.ending().is_some();
        let ended: Vec<Running> = self.running.extract_if(.., has_ended).collect();
        let retired = ended
            .into_iter()
            .map(|mut running| match running.sequence.ending() {
                Some(SequenceEnd::Failed(_)) => {
                    Self::release_media(&mut self.media, &mut running, true);
                    release(&mut *self.session, running.id);
                    running.sequence
                }
                _ => self.keep(running),
            });
        retired.collect()
    }

    /// Sends the last events, after publishing that the KV is free.
    pub(super) fn conclude(&mut self, ended: Vec<Sequence>, now: Instant) {
        if ended.is_empty() {
            return;
        }
        self.retry_at = None;
        for sequence in &ended {
            self.clients.leave(&sequence.client);
            self.speculator.forget(sequence.ordinal);
            let totals = &mut self.meter.totals;
            *match sequence.ending() {
                Some(SequenceEnd::Finished { .. }) => &mut totals.finished,
                Some(SequenceEnd::Failed(
                    EngineError::QueueTimeout { .. } | EngineError::FirstTokenTimeout { .. },
                )) => &mut totals.timed_out,
                Some(SequenceEnd::Failed(_)) => &mut totals.failed,
                Some(SequenceEnd::Cancelled) | None => &mut totals.cancelled,
            } += 1;
        }
        self.publish();
        for sequence in ended {
            // Drops the request's constraint, which may panic.
            let concluded = guarded("ending", || {
                sequence.conclude(now);
                Ok(())
            });
            if let Err(error) = concluded {
                tracing::error!(%error, "a request did not end cleanly");
            }
        }
    }

    pub(super) fn publish(&mut self) {
        let cache = self.cache.stats(&*self.session);
        let disk = self.disk.as_ref().map(|disk| disk.stats(&self.cache));
        let disk = disk.unwrap_or_default();
        let mut view = self.shared.view();
        view.memory = self.session.memory();
        view.running = self.running.len();
        view.paused = self.running.iter().filter(|r| r.paused.is_some()).count();
        view.preempted = self.queue.iter().filter(|s| s.was_preempted()).count();
        view.kv_reserved = self.running.iter().map(|r| r.reservation).sum();
        view.cache = cache;
        view.disk = disk;
        view.speculation = self.speculator.stats();
        self.meter.totals.media_encoded = self.media.encoded;
        view.meter = self.meter;
    }

    /// Releases everything. A failed session is only dropped.
    fn close(mut self, why: EngineError) -> Option<Box<dyn Session>> {
        let now = self.time.now();
        // A step that panicked left them at the worker.
        self.collect_constraints();
        let whole = why == EngineError::ShutDown;
        if !whole {
            let capabilities = self.session.capabilities().clone();
            let absent = NoSession::new(capabilities, self.shared.view().memory);
            self.session = Box::new(absent);
        }
        while let Ok(command) = self.commands.try_recv() {
            if let Command::Submit(sequence) = command {
                self.enqueue(*sequence);
            }
        }
        let queued = self.queue.remove_if(|_| true);
        for running in &mut self.running {
            running.sequence.end(SequenceEnd::Cancelled);
        }
        let running = if whole {
            self.retire()
        } else {
            let running = self.running.drain(..);
            running.map(|running| running.sequence).collect()
        };
        self.conclude(running, now);
        self.conclude(queued, now);
        if !whole {
            return None;
        }
        self.cancel_loads();
        self.flush_prefixes();
        self.cache.clear(&mut *self.session);
        self.media.clear(&mut *self.session);
        Some(self.session)
    }
}

/// Sends what was chosen; returns whether the sequence goes on.
fn settle_token(running: &mut Running, now: Instant) -> bool {
    let sequence = &mut running.sequence;
    if let Err(error) = guarded("settling", || sequence.settle(now)) {
        sequence.end(SequenceEnd::Failed(error));
    }
    sequence.ending().is_none()
}

/// Chooses the next token that the drafts of a row allow to choose; returns whether there is one.
fn sample_next(
    running: &mut Running,
    row: usize,
    output: &mut StepOutput,
    scratch: &mut SamplerScratch,
) -> bool {
    let sampled = guarded("sampling", || running.sample_next(row, output, scratch));
    sampled.unwrap_or_else(|error| {
        running.sequence.end(SequenceEnd::Failed(error));
        false
    })
}

/// Turns a panic in one request's handling into an error of that request.
fn guarded<T>(
    doing: &'static str,
    work: impl FnOnce() -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(EngineError::Panicked {
            doing,
            message: panic_message(&*panic),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarded_panic_is_an_error() {
        let result: Result<(), _> = guarded("testing", || panic!("out of {}", "cheese"));
        assert_eq!(
            result,
            Err(EngineError::Panicked {
                doing: "testing",
                message: "out of cheese".into()
            })
        );
        assert_eq!(guarded("testing", || Ok(5)), Ok(5));
    }
}
