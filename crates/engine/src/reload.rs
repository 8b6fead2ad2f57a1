//! Replaces the session while requests keep arriving.
//!
//! The old session is dropped first: a device may not hold two. The new one is opened on its own
//! thread, so that cancellations, deadlines and shutdown keep working.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Instant;

use loquat_session::{
    Capabilities, HeldMemory, Memory, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

use crate::error::panic_message;
use crate::sequence::{Sequence, SequenceEnd};
use crate::worker::{Command, Worker, plan};
use crate::{EngineError, EngineFailure};

/// Opens the new session.
pub(crate) type Opener = Box<dyn FnOnce() -> Opened + Send>;
type Opened = Result<Box<dyn Session>, EngineFailure>;

pub(crate) struct Reload {
    /// Running sequences may finish until then.
    pub deadline: Instant,
    pub open: Opener,
    pub done: mpsc::Sender<()>,
    /// Wakes the worker.
    pub commands: mpsc::Sender<Command>,
}

/// A session that is being opened.
pub(crate) struct Opening {
    opened: mpsc::Receiver<Opened>,
    thread: JoinHandle<()>,
    done: mpsc::Sender<()>,
}

impl Opening {
    fn start(reload: Reload) -> Result<Self, EngineFailure> {
        let Reload {
            open,
            done,
            commands,
            ..
        } = reload;
        let (sender, opened) = mpsc::channel();
        let work = move || {
            let opened = catch_unwind(AssertUnwindSafe(open))
                .unwrap_or_else(|panic| Err(EngineFailure::open(panic_message(&*panic))));
            // Fails if the engine was shut down; the session is dropped here.
            let _ = sender.send(opened);
            let _ = commands.send(Command::Wake);
        };
        let thread = std::thread::Builder::new()
            .name("loquat-open".into())
            .spawn(work)
            .map_err(EngineFailure::open)?;
        Ok(Self {
            opened,
            thread,
            done,
        })
    }

    /// Waits for the session and drops it.
    pub fn abandon(self) {
        drop(self.opened);
        if self.thread.join().is_err() {
            tracing::error!("a session that nobody wants any more could not be dropped");
        }
    }
}

impl Worker {
    /// Starts a due reload, or installs an opened session.
    pub(super) fn advance_reload(&mut self, now: Instant) -> Result<(), EngineError> {
        if let Some(opening) = &self.opening {
            match opening.opened.try_recv() {
                Ok(Ok(session)) => self.install(session).map_err(EngineError::Dead)?,
                Ok(Err(failure)) => return Err(EngineError::Dead(failure)),
                Err(mpsc::TryRecvError::Disconnected) => {
                    return Err(EngineError::Dead(EngineFailure::ThreadGone));
                }
                Err(mpsc::TryRecvError::Empty) => {}
            }
        }
        if self.is_reload_due(now) {
            self.begin_reload(now).map_err(EngineError::Dead)
        } else {
            Ok(())
        }
    }

    /// Whether it is time to drop the session.
    pub(super) fn is_reload_due(&self, now: Instant) -> bool {
        let due = |reload: &Reload| self.running.is_empty() || now >= reload.deadline;
        self.opening.is_none() && self.reloads.front().is_some_and(due)
    }

    /// Whether a reload is pending or in progress.
    pub(super) fn is_reloading(&self) -> bool {
        self.opening.is_some() || !self.reloads.is_empty()
    }

    /// Drops the old session; its sequences are computed again by the next.
    fn begin_reload(&mut self, now: Instant) -> Result<(), EngineFailure> {
        let Some(reload) = self.reloads.pop_front() else {
            return Ok(());
        };
        while let Some(last) = self.running.len().checked_sub(1) {
            self.preempt(last, now);
        }
        self.cache.clear(&mut *self.session);
        self.drop_session();
        self.publish();
        self.opening = Some(Opening::start(reload)?);
        Ok(())
    }

    /// Drops the session.
    pub(super) fn drop_session(&mut self) {
        let absent = NoSession {
            capabilities: self.session.capabilities().clone(),
            memory: Memory {
                kv_in_use: 0,
                states_in_use: 0,
                ..self.shared.view().memory
            },
        };
        self.session = Box::new(absent);
    }

    fn install(&mut self, session: Box<dyn Session>) -> Result<(), EngineFailure> {
        let found = session.capabilities().vocab_size;
        let expected = self.limits.vocab_size;
        // Queued requests were validated against it.
        if found != expected {
            return Err(EngineFailure::Vocabulary { expected, found });
        }
        self.session = session;
        let capabilities = self.session.capabilities();
        self.shared.view().capabilities = Arc::new(capabilities.clone());
        self.cache.reuse(capabilities.prefix_copy);
        (self.limits, self.scheduler) = plan(&*self.session, &self.options, &self.cache);
        self.failures = 0;
        self.retry_at = None;
        let opening = self.opening.take();
        let mut refused = self.queue.remove_if(|_| true);
        let kept = refused.extract_if(.., |sequence| self.refuse(sequence).is_none());
        for sequence in kept.collect::<Vec<_>>() {
            self.queue.push(sequence);
        }
        self.conclude(refused, self.time.now());
        self.publish();
        if let Some(opening) = opening {
            // Fails if the caller no longer waits.
            let _ = opening.done.send(());
        }
        Ok(())
    }

    /// Fails a request that this session can never serve; it may have been validated against the
    /// previous session.
    pub(super) fn refuse(&self, sequence: &mut Sequence) -> Option<()> {
        let needs_logits = sequence.emit_logits || sequence.scores.is_some();
        let checked = if needs_logits && !self.session.capabilities().logits {
            Err(EngineError::Unsupported {
                field: "sampling",
                why: "this session gives no logits, only greedy tokens",
            })
        } else {
            self.limits
                .check_size(sequence.prompt_len, sequence.max_tokens)
        };
        sequence.end(SequenceEnd::Failed(checked.err()?));
        Some(())
    }
}

/// Placeholder while there is no session. Nothing is admitted meanwhile.
struct NoSession {
    capabilities: Capabilities,
    memory: Memory,
}

impl NoSession {
    fn refusal<T>() -> Result<T, SessionError> {
        Err(SessionError::Device("there is no session".into()))
    }
}

impl Session for NoSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn create(&mut self) -> Result<SequenceId, SessionError> {
        Self::refusal()
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        Err(SessionError::UnknownSequence(sequence))
    }

    fn reusable(&self, sequence: SequenceId, _at_most: usize) -> Result<usize, SessionError> {
        Err(SessionError::UnknownSequence(sequence))
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<HeldMemory, SessionError> {
        match sequences.first() {
            Some(sequence) => Err(SessionError::UnknownSequence(*sequence)),
            None => Ok(HeldMemory::default()),
        }
    }

    fn fork(&mut self, _source: SequenceId, _len: usize) -> Result<SequenceId, SessionError> {
        Self::refusal()
    }

    fn truncate(&mut self, _sequence: SequenceId, _len: usize) -> Result<(), SessionError> {
        Self::refusal()
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        Err(SessionError::UnknownSequence(sequence))
    }

    fn step(&mut self, _batch: &StepBatch, _output: &mut StepOutput) -> Result<(), SessionError> {
        Self::refusal()
    }

    fn export(&self, _sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        Self::refusal()
    }

    fn import(&mut self, _bytes: &[u8]) -> Result<SequenceId, SessionError> {
        Self::refusal()
    }
}
