//! State shared by the engine's thread and its callers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use loquat_kvdisk::DiskStats;
use loquat_session::Memory;

use crate::monitor::ThreadWatch;
use crate::stats::Meter;
use crate::{CacheStats, EngineError, EngineFailure, SpeculationStats, Stats, Totals};

#[derive(Debug)]
pub(crate) struct Shared {
    taken: Mutex<QueueCounts>,
    refused: AtomicU64,
    /// No new requests are accepted.
    closing: AtomicBool,
    view: Mutex<EngineSnapshot>,
    pub thread: ThreadWatch,
    /// Why the engine ended; set before any event channel closes.
    end: OnceLock<EngineError>,
}

/// Accepted requests. The choices of a request are sequences.
#[derive(Debug, Default)]
struct QueueCounts {
    /// Requests of which no choice has run yet.
    waiting: usize,
    /// The same by client; clients with at least one.
    by_client: HashMap<Option<Arc<str>>, usize>,
    /// Sequences that have not run yet.
    waiting_sequences: usize,
    /// Sequences that run, or were preempted.
    started_sequences: usize,
}

/// Limits of the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueLimits {
    pub for_all: usize,
    pub for_one: usize,
    /// Sequences that may run at once.
    pub running: usize,
}

/// The engine's last published state.
#[derive(Debug)]
pub(crate) struct EngineSnapshot {
    pub memory: Memory,
    pub running: usize,
    pub paused: usize,
    /// Preempted requests, which are not in the queue's counts.
    pub preempted: usize,
    pub kv_reserved: usize,
    pub cache: CacheStats,
    pub disk: DiskStats,
    pub speculation: SpeculationStats,
    pub meter: Meter,
}

impl EngineSnapshot {
    pub fn new(memory: Memory, now: Instant) -> Self {
        Self {
            memory,
            running: 0,
            paused: 0,
            preempted: 0,
            kv_reserved: 0,
            cache: CacheStats::default(),
            disk: DiskStats::default(),
            speculation: SpeculationStats::default(),
            meter: Meter::new(now),
        }
    }
}

impl Shared {
    pub fn new(view: EngineSnapshot) -> Self {
        Self {
            taken: Mutex::default(),
            refused: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            view: Mutex::new(view),
            thread: ThreadWatch::default(),
            end: OnceLock::new(),
        }
    }

    pub fn view(&self) -> MutexGuard<'_, EngineSnapshot> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, QueueCounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stats(&self, now: Instant) -> Stats {
        let view = self.view();
        let meter = &view.meter;
        Stats {
            running: view.running,
            paused: view.paused,
            waiting: view.preempted + self.taken().waiting_sequences,
            memory: view.memory,
            kv_reserved: view.kv_reserved,
            cache: view.cache,
            disk: view.disk,
            speculation: view.speculation,
            steps: meter.steps,
            step_time: meter.step_time,
            overhead: meter.overhead,
            prompt_speed: meter.prompt.per_second(now),
            decode_speed: meter.decode.per_second(now),
            totals: Totals {
                refused: self.refused.load(Ordering::SeqCst),
                ..meter.totals
            },
        }
    }

    /// Clears what the session held.
    pub fn forget_session(&self) {
        let mut view = self.view();
        view.memory.kv_in_use = 0;
        view.memory.states_in_use = 0;
        view.cache.entries = 0;
        view.cache.bytes = 0;
        (view.running, view.paused, view.preempted, view.kv_reserved) = (0, 0, 0, 0);
    }

    /// Sets the reason; the first one is kept.
    pub fn end(&self, why: EngineError) {
        if self.end.set(why).is_ok() {
            tracing::debug!(why = %self.end_reason(), "the engine ended");
        }
    }

    /// Rejects new requests from now on.
    pub fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub fn check_open(&self) -> Result<(), EngineError> {
        match self.end.get() {
            Some(why) => Err(why.clone()),
            None if self.closing.load(Ordering::SeqCst) => Err(EngineError::ShutDown),
            None => Ok(()),
        }
    }

    /// The reason for callers that find the engine ended.
    pub fn end_reason(&self) -> EngineError {
        self.end
            .get()
            .cloned()
            .unwrap_or(EngineError::Dead(EngineFailure::ThreadGone))
    }
}

/// The place of a sequence: in the queue until it first runs, then among those that run. Released
/// on drop: by the sequence's end, cancellation or the engine's end.
#[derive(Debug)]
pub(crate) struct QueueSlot {
    shared: Arc<Shared>,
    client: Option<Arc<str>>,
    /// Choices that the request waits with in the queue; 0 once one of them has run. Changed under
    /// the lock of the counts only.
    waiting_choices: Arc<AtomicUsize>,
    has_started: bool,
}

impl QueueSlot {
    /// Takes a slot for each choice of a request, or none. A request counts once, however many
    /// choices it has, and sequences that can run at once need no room in the queue.
    pub fn take(
        shared: &Arc<Shared>,
        client: Option<&str>,
        choices: usize,
        limits: QueueLimits,
    ) -> Result<Vec<Self>, EngineError> {
        let client: Option<Arc<str>> = client.map(Arc::from);
        let mut taken = shared.taken();
        let by_client = taken.by_client.get(&client).copied().unwrap_or(0);
        let free = limits.running.saturating_sub(taken.started_sequences);
        let fits = |waiting: usize, most: usize| waiting < most.saturating_add(free);
        if !fits(taken.waiting, limits.for_all) || !fits(by_client, limits.for_one) {
            shared.refused.fetch_add(choices as u64, Ordering::SeqCst);
            return Err(EngineError::QueueFull);
        }
        taken.waiting += 1;
        taken.by_client.insert(client.clone(), by_client + 1);
        taken.waiting_sequences += choices;
        let waiting_choices = Arc::new(AtomicUsize::new(choices));
        let queue_slot = |_| Self {
            shared: Arc::clone(shared),
            client: client.clone(),
            waiting_choices: Arc::clone(&waiting_choices),
            has_started: false,
        };
        Ok((0..choices).map(queue_slot).collect())
    }

    /// Leaves the queue for the running sequences, and with it the request's other choices.
    pub fn start(&mut self) {
        if !self.has_started {
            let mut taken = self.shared.taken();
            self.leave(&mut taken, 0);
            taken.started_sequences += 1;
            self.has_started = true;
        }
    }

    pub fn has_started(&self) -> bool {
        self.has_started
    }

    /// The sequence stops waiting; the request waits with `others`.
    fn leave(&self, taken: &mut QueueCounts, others: usize) {
        taken.waiting_sequences -= 1;
        let before = self.waiting_choices.swap(others, Ordering::Relaxed);
        if before == 0 || others > 0 {
            return;
        }
        taken.waiting -= 1;
        if let Some(by_client) = taken.by_client.get_mut(&self.client) {
            *by_client -= 1;
            if *by_client == 0 {
                taken.by_client.remove(&self.client);
            }
        }
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        let mut taken = self.shared.taken();
        if self.has_started {
            taken.started_sequences -= 1;
        } else {
            let others = self
                .waiting_choices
                .load(Ordering::Relaxed)
                .saturating_sub(1);
            self.leave(&mut taken, others);
        }
    }
}
