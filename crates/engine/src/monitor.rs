//! Detects steps that hang, and gives up the engine's thread that is stuck in one.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::generation::EventChannel;
use crate::shared::Shared;
use crate::{EngineError, EngineFailure};

/// Watches an engine's steps, also while it is being shut down.
#[derive(Debug, Clone)]
pub struct StepMonitor(Arc<Shared>);

impl StepMonitor {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// How long the current step has been running; `None` between steps.
    pub fn step_time(&self) -> Option<Duration> {
        let began = self.0.thread.lock().step_began;
        began.map(|began| began.elapsed())
    }

    /// Ends the engine while its thread is stuck in a step: all requests fail, and shutting the
    /// engine down does not wait. The thread drops the session if the step ever returns.
    pub fn abandon(&self) {
        let Self(shared) = self;
        let time = self.step_time().unwrap_or_default();
        // Set before any channel closes: its reader asks for the reason.
        shared.end(EngineError::Dead(EngineFailure::StepHangs(time)));
        let channels = shared.thread.abandon();
        channels.iter().for_each(EventChannel::close);
        shared.forget_session();
    }
}

/// What the engine's thread does, for those who wait for it.
#[derive(Debug, Default)]
pub(crate) struct ThreadWatch {
    state: Mutex<ThreadState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ThreadState {
    step_began: Option<Instant>,
    /// The events of requests that have not ended, by number.
    channels: HashMap<u64, EventChannel>,
    next_channel: u64,
    ended: bool,
    abandoned: bool,
}

impl ThreadWatch {
    /// Marks the time of a step until it is dropped.
    pub fn step(&self) -> RunningStep<'_> {
        self.lock().step_began = Some(Instant::now());
        RunningStep(self)
    }

    /// Registers the events of a request; returns its number.
    pub fn add_channel(&self, channel: EventChannel) -> u64 {
        let mut state = self.lock();
        let number = state.next_channel;
        state.next_channel += 1;
        state.channels.insert(number, channel);
        number
    }

    pub fn remove_channel(&self, number: u64) {
        self.lock().channels.remove(&number);
    }

    pub fn is_abandoned(&self) -> bool {
        self.lock().abandoned
    }

    pub fn ended(&self) {
        self.lock().ended = true;
        self.changed.notify_all();
    }

    /// Waits for the thread's end. Returns false if the thread was abandoned.
    pub fn wait(&self) -> bool {
        let running = |state: &mut ThreadState| !state.ended && !state.abandoned;
        let state = self.changed.wait_while(self.lock(), running);
        state.unwrap_or_else(PoisonError::into_inner).ended
    }

    fn abandon(&self) -> Vec<EventChannel> {
        let mut state = self.lock();
        state.abandoned = true;
        state.step_began = None;
        let channels = std::mem::take(&mut state.channels);
        drop(state);
        self.changed.notify_all();
        channels.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, ThreadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step under way.
pub(crate) struct RunningStep<'a>(&'a ThreadWatch);

impl Drop for RunningStep<'_> {
    fn drop(&mut self) {
        self.0.lock().step_began = None;
    }
}

/// Reports the thread's end when it is dropped.
pub(crate) struct EngineThread(pub Arc<Shared>);

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.0.thread.ended();
    }
}
