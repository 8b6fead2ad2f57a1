//! The thread that owns the session.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use loquat_session::{Memory, Session, SessionError, StepBatch, StepOutput};

use crate::EngineError;
use crate::error::panic_message;
use crate::sampling::Scratch;
use crate::scheduler::{Scheduled, Scheduler, reserved};
use crate::sequence::{Arrival, Ending, Sequence};
use crate::settle::{conclude, retire};
use crate::shared::Shared;

/// Steps that may fail one after the other before the session is given up.
const MAX_FAILURES: usize = 3;

#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Arrival>),
    /// A reader made room, or is gone.
    Wake,
    Shutdown,
}

pub(crate) struct Worker {
    session: Box<dyn Session>,
    scheduler: Scheduler,
    /// In order of arrival.
    running: Vec<Sequence>,
    commands: mpsc::Receiver<Command>,
    /// A command came since the last schedule, so a reader may be gone.
    woken: bool,
    rows: Vec<Scheduled>,
    batch: StepBatch,
    output: StepOutput,
    scratch: Scratch,
    /// Failed steps since one succeeded.
    failures: usize,
    shared: Arc<Shared>,
}

impl Worker {
    pub fn new(
        session: Box<dyn Session>,
        scheduler: Scheduler,
        commands: mpsc::Receiver<Command>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            session,
            scheduler,
            running: Vec::new(),
            commands,
            woken: false,
            rows: Vec::new(),
            batch: StepBatch::default(),
            output: StepOutput::default(),
            scratch: Scratch::default(),
            failures: 0,
            shared,
        }
    }

    /// The thread's whole life. A session that was shut down whole comes back empty; one that
    /// failed does not.
    pub fn run_to_end(mut self) -> Option<Box<dyn Session>> {
        let served = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let why = match served {
            Ok(Ok(())) => EngineError::ShutDown,
            Ok(Err(dead)) => dead,
            Err(panic) => EngineError::Dead {
                reason: panic_message(&*panic),
            },
        };
        // Said before any channel closes: a reader whose channel closes early asks why.
        self.shared.end(why.clone());
        let shared = Arc::clone(&self.shared);
        let closed = catch_unwind(AssertUnwindSafe(move || self.close(why)));
        let session = closed.unwrap_or_else(|panic| {
            tracing::error!(panic = panic_message(&*panic), "closing the session failed");
            None
        });
        let memory = Memory {
            kv_in_use: 0,
            ..shared.memory()
        };
        shared.publish(memory, 0, 0);
        session
    }

    /// Serves until told to stop, parked whenever there is nothing to do.
    fn serve(&mut self) -> Result<(), EngineError> {
        let mut idle = true;
        while self.take_commands(idle) {
            idle = !self.step()?;
        }
        Ok(())
    }

    /// Whether to go on.
    fn take_commands(&mut self, wait: bool) -> bool {
        let mut next = match wait {
            true => self.commands.recv().ok(),
            false => self.commands.try_recv().ok(),
        };
        while let Some(command) = next {
            self.woken = true;
            match command {
                Command::Submit(arrival) => self.scheduler.enqueue(*arrival),
                Command::Wake => {}
                Command::Shutdown => return false,
            }
            next = self.commands.try_recv().ok();
        }
        true
    }

    /// Whether there was anything to run.
    fn step(&mut self) -> Result<bool, EngineError> {
        let scheduled = self.schedule();
        self.run()?;
        self.sample();
        self.settle();
        Ok(scheduled)
    }

    fn schedule(&mut self) -> bool {
        if std::mem::take(&mut self.woken) {
            self.scheduler.forget_cancelled();
            for sequence in &mut self.running {
                if sequence.sink.is_cancelled() {
                    sequence.end(Ending::Cancelled);
                }
            }
            retire(&mut self.running, &mut *self.session);
        }
        self.scheduler.admit(&mut self.running, &mut *self.session);
        self.scheduler
            .fill(&self.running, &mut self.rows, &mut self.batch);
        !self.rows.is_empty()
    }

    /// Computes the batch. A failed step ends the sequences in it; too many in a row, the engine.
    fn run(&mut self) -> Result<(), EngineError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let stepped = self.session.step(&self.batch, &mut self.output);
        let Err(error) = stepped.and_then(|()| self.check_output()) else {
            self.failures = 0;
            return Ok(());
        };
        tracing::error!(%error, "a step failed");
        self.failures += 1;
        if self.failures == MAX_FAILURES {
            return Err(EngineError::Dead {
                reason: format!(
                    "{MAX_FAILURES} steps failed one after the other; the last: {error}"
                ),
            });
        }
        for row in self.rows.drain(..) {
            self.running[row.index].end(Ending::Failed(error.clone().into()));
        }
        Ok(())
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
        for (row, scheduled) in self.rows.iter().enumerate() {
            let sequence = &mut self.running[scheduled.index];
            let sampled = guarded("sampling", || {
                sequence.sample(row, scheduled.tokens, &mut self.output, &mut self.scratch)
            });
            if let Err(error) = sampled {
                sequence.end(Ending::Failed(error));
            }
        }
    }

    fn settle(&mut self) {
        for scheduled in &self.rows {
            let sequence = &mut self.running[scheduled.index];
            if sequence.has_ended() {
                continue;
            }
            let settled = guarded("settling", || {
                sequence.settle();
                Ok(())
            });
            if let Err(error) = settled {
                sequence.end(Ending::Failed(error));
            }
        }
        let ended = retire(&mut self.running, &mut *self.session);
        self.publish();
        conclude(ended);
    }

    fn publish(&self) {
        let memory = self.session.memory();
        self.shared
            .publish(memory, self.running.len(), reserved(&self.running));
    }

    /// Gives everything back. A session that failed is not asked to do more than be dropped.
    fn close(mut self, why: EngineError) -> Option<Box<dyn Session>> {
        if why != EngineError::ShutDown {
            return None;
        }
        for sequence in &mut self.running {
            sequence.end(Ending::Cancelled);
        }
        retire(&mut self.running, &mut *self.session);
        Some(self.session)
    }
}

/// Keeps a bug in one request's handling from ending the others.
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
    fn a_guarded_panic_is_an_error() {
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
