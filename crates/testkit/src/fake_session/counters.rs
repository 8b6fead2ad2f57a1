use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counters that tests read while the engine owns the session.
#[derive(Debug, Default)]
pub struct FakeCounters {
    live: AtomicUsize,
    created: AtomicUsize,
    kv_in_use: AtomicUsize,
    max_kv_in_use: AtomicUsize,
    computed_tokens: AtomicUsize,
    encoded: AtomicUsize,
    starved_rows: AtomicUsize,
    dropped: AtomicBool,
    steps: Mutex<Vec<StepShape>>,
}

/// The size of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    pub rows: usize,
    pub tokens: usize,
}

impl FakeCounters {
    /// Sequences not yet released.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    /// Sequences created, forked and imported so far.
    pub fn created(&self) -> usize {
        self.created.load(Ordering::SeqCst)
    }

    /// KV in use by sequences, in tokens.
    pub fn kv_in_use(&self) -> usize {
        self.kv_in_use.load(Ordering::SeqCst)
    }

    /// The maximum KV in use so far.
    pub fn max_kv_in_use(&self) -> usize {
        self.max_kv_in_use.load(Ordering::SeqCst)
    }

    /// Tokens of all accepted rows, without reused prefixes.
    pub fn computed_tokens(&self) -> usize {
        self.computed_tokens.load(Ordering::SeqCst)
    }

    /// Rows refused because KV or states ran out, without injected faults.
    pub fn starved_rows(&self) -> usize {
        self.starved_rows.load(Ordering::SeqCst)
    }

    /// Media encoded so far.
    pub fn encoded(&self) -> usize {
        self.encoded.load(Ordering::SeqCst)
    }

    /// Whether the session was dropped.
    pub fn dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }

    /// Every step so far, failed ones included.
    pub fn steps(&self) -> Vec<StepShape> {
        self.steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Records a step and returns its number.
    pub(super) fn record_step(&self, shape: StepShape) -> usize {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        steps.push(shape);
        steps.len() - 1
    }

    pub(super) fn record_encoded(&self) {
        self.encoded.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn record_created(&self) {
        self.created.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn record_computed(&self, tokens: usize) {
        self.computed_tokens.fetch_add(tokens, Ordering::SeqCst);
    }

    pub(super) fn record_starved(&self) {
        self.starved_rows.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn record_held(&self, live: usize, kv_in_use: usize) {
        self.live.store(live, Ordering::SeqCst);
        self.kv_in_use.store(kv_in_use, Ordering::SeqCst);
        self.max_kv_in_use.fetch_max(kv_in_use, Ordering::SeqCst);
    }

    pub(super) fn record_dropped(&self) {
        self.record_held(0, 0);
        self.dropped.store(true, Ordering::SeqCst);
    }
}
