//! A session's own thread.
//!
//! MLX keeps handles, compiled functions and the plans of cuDNN for each thread, and drops them
//! with it, whatever still runs on the device. A session may be moved from thread to thread, so it
//! computes on one that lives as long as it does; callers wait for its answers.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use loquat_session::{
    Capabilities, Held, Memory, OpenError, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

type Job = Box<dyn FnOnce(&mut dyn Session) + Send>;

/// How long the thread looks out for the next job before it sleeps: longer than an engine takes
/// from one step to the next, and much less than a step.
const LOOKOUT: Duration = Duration::from_micros(100);

/// A session that lives on a thread of its own.
pub struct Remote {
    capabilities: Capabilities,
    /// As it was after the last answer: nothing changes between.
    memory: Cell<Memory>,
    /// `None` only while being dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has to say while it opens the session.
enum Opening {
    Progress(f32),
    Done(Result<(Capabilities, Memory), OpenError>),
}

impl Remote {
    /// Opens a session on a new thread. `progress` is called on this one.
    pub fn open(
        open: impl FnOnce(&mut dyn FnMut(f32)) -> Result<Box<dyn Session>, OpenError> + Send + 'static,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, OpenError> {
        let (jobs, work) = channel::<Job>();
        let (tell, heard) = channel();
        let body = move || {
            let told = tell.clone();
            // Nobody listens any more only where the caller is gone, and then nobody misses it.
            let opened = open(&mut |share| drop(told.send(Opening::Progress(share))));
            drop(told);
            match opened {
                Ok(session) => {
                    let opened = (session.capabilities().clone(), session.memory());
                    drop(tell.send(Opening::Done(Ok(opened))));
                    drop(tell);
                    serve(session, &work);
                }
                Err(error) => drop(tell.send(Opening::Done(Err(error)))),
            }
        };
        let thread = Builder::new().name("mlx".to_owned()).spawn(body);
        let thread = thread.map_err(|error| OpenError::Device(error.to_string()))?;
        for news in heard {
            match news {
                Opening::Progress(share) => progress(share),
                Opening::Done(opened) => {
                    let (capabilities, memory) = opened?;
                    return Ok(Self {
                        capabilities,
                        memory: Cell::new(memory),
                        jobs: Some(jobs),
                        thread: Some(thread),
                    });
                }
            }
        }
        Err(OpenError::Device(
            "the thread that loads ended early".to_owned(),
        ))
    }

    /// Has the session do something, and waits.
    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Session) -> T + Send + 'static,
    ) -> Result<T, SessionError> {
        let gone = || SessionError::Device("its thread ended early".to_owned());
        let (answer, answered) = channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        let job: Job = Box::new(move |session| {
            let done = job(session);
            drop(answer.send((done, session.memory())));
        });
        jobs.send(job).map_err(|_| gone())?;
        let (done, memory) = answered.recv().map_err(|_| gone())?;
        self.memory.set(memory);
        Ok(done)
    }
}

/// Does what comes until nobody can send any more.
fn serve(mut session: Box<dyn Session>, work: &Receiver<Job>) {
    while let Some(job) = next(work) {
        job(session.as_mut());
    }
}

fn next(work: &Receiver<Job>) -> Option<Job> {
    let started = Instant::now();
    while started.elapsed() < LOOKOUT {
        match work.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    work.recv().ok()
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Memory is free when this returns; a panic over there has been told to callers.
            let _ = thread.join();
        }
    }
}

impl Session for Remote {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.memory.get()
    }

    fn create(&mut self) -> Result<SequenceId, SessionError> {
        self.ask(|session| session.create())?
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        self.ask(move |session| session.len(sequence))?
    }

    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        self.ask(move |session| session.reusable(sequence, at_most))?
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<Held, SessionError> {
        let sequences = sequences.to_vec();
        self.ask(move |session| session.held(&sequences))?
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        self.ask(move |session| session.fork(source, len))?
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        self.ask(move |session| session.truncate(sequence, len))?
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.ask(move |session| session.release(sequence))?
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        let (batch, mut lent) = (batch.clone(), std::mem::take(output));
        let (stepped, returned) = self.ask(move |session| {
            let stepped = session.step(&batch, &mut lent);
            (stepped, lent)
        })?;
        *output = returned;
        stepped
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        self.ask(move |session| session.export(sequence))?
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let bytes = bytes.to_vec();
        self.ask(move |session| session.import(&bytes))?
    }
}
