//! Runs a session on its own thread.
//!
//! MLX keeps handles, compiled functions and cuDNN plans per thread, and drops them with the
//! thread, even while the device still uses them. A session may move between threads, so it runs on
//! one that lives as long as it does; callers wait for results.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use loquat_session::{
    AdapterId, AdapterWeights, AppliedAdapter, Capabilities, HeldMemory, Media, MediaHandle,
    MediaId, Memory, OpenError, SequenceId, Session, SessionError, StepBatch, StepOutput,
};

type Job = Box<dyn FnOnce(&mut dyn Session) + Send>;

/// How long the thread spins for the next job before it sleeps: longer than an engine needs between
/// steps, and much shorter than a step.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// A session on its own thread.
pub struct ThreadedSession {
    capabilities: Capabilities,
    /// The memory after the last job; it does not change in between.
    memory: Cell<Memory>,
    /// `None` only while being dropped.
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread reports while it opens the session.
enum OpenEvent {
    Progress(f32),
    Done(Box<Result<(Capabilities, Memory), OpenError>>),
}

impl ThreadedSession {
    /// Opens a session on a new thread. `progress` is called on this one.
    pub fn open(
        open: impl FnOnce(&mut dyn FnMut(f32)) -> Result<Box<dyn Session>, OpenError> + Send + 'static,
        progress: &mut dyn FnMut(f32),
    ) -> Result<Self, OpenError> {
        let (jobs, work) = channel::<Job>();
        let (events, opening) = channel();
        let body = move || {
            let progress = events.clone();
            // Sending fails only if the caller is gone.
            let opened = open(&mut |share| drop(progress.send(OpenEvent::Progress(share))));
            drop(progress);
            match opened {
                Ok(session) => {
                    let opened = (session.capabilities().clone(), session.memory());
                    drop(events.send(OpenEvent::Done(Box::new(Ok(opened)))));
                    drop(events);
                    serve(session, &work);
                }
                Err(error) => drop(events.send(OpenEvent::Done(Box::new(Err(error))))),
            }
        };
        let thread = Builder::new().name("mlx".to_owned()).spawn(body);
        let thread = thread.map_err(|error| OpenError::Device(error.to_string()))?;
        for event in opening {
            match event {
                OpenEvent::Progress(share) => progress(share),
                OpenEvent::Done(opened) => {
                    let (capabilities, memory) = (*opened)?;
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
            "the loading thread ended early".to_owned(),
        ))
    }

    /// Runs a job on the session's thread and waits for its result.
    fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut dyn Session) -> T + Send + 'static,
    ) -> Result<T, SessionError> {
        let gone = || SessionError::Device("the session's thread ended early".to_owned());
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

/// Runs jobs until the sender is dropped.
fn serve(mut session: Box<dyn Session>, work: &Receiver<Job>) {
    while let Some(job) = next(work) {
        job(session.as_mut());
    }
}

fn next(work: &Receiver<Job>) -> Option<Job> {
    let started = Instant::now();
    while started.elapsed() < SPIN_TIME {
        match work.try_recv() {
            Ok(job) => return Some(job),
            Err(TryRecvError::Disconnected) => return None,
            Err(TryRecvError::Empty) => std::hint::spin_loop(),
        }
    }
    work.recv().ok()
}

impl Drop for ThreadedSession {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Memory is free when this returns; callers have seen a panic as an error.
            let _ = thread.join();
        }
    }
}

impl Session for ThreadedSession {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn memory(&self) -> Memory {
        self.memory.get()
    }

    fn load_adapter(&mut self, adapter: &AdapterWeights) -> Result<AdapterId, SessionError> {
        let adapter = adapter.clone();
        self.call(move |session| session.load_adapter(&adapter))?
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Result<(), SessionError> {
        self.call(move |session| session.unload_adapter(adapter))?
    }

    fn create_adapted(&mut self, adapters: &[AppliedAdapter]) -> Result<SequenceId, SessionError> {
        let adapters = adapters.to_vec();
        self.call(move |session| session.create_adapted(&adapters))?
    }

    fn len(&self, sequence: SequenceId) -> Result<usize, SessionError> {
        self.call(move |session| session.len(sequence))?
    }

    fn reusable(&self, sequence: SequenceId, at_most: usize) -> Result<usize, SessionError> {
        self.call(move |session| session.reusable(sequence, at_most))?
    }

    fn held(&self, sequences: &[SequenceId]) -> Result<HeldMemory, SessionError> {
        let sequences = sequences.to_vec();
        self.call(move |session| session.held(&sequences))?
    }

    fn fork(&mut self, source: SequenceId, len: usize) -> Result<SequenceId, SessionError> {
        self.call(move |session| session.fork(source, len))?
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) -> Result<(), SessionError> {
        self.call(move |session| session.truncate(sequence, len))?
    }

    fn release(&mut self, sequence: SequenceId) -> Result<(), SessionError> {
        self.call(move |session| session.release(sequence))?
    }

    fn encode(&mut self, media: &Media) -> Result<MediaHandle, SessionError> {
        let media = media.clone();
        self.call(move |session| session.encode(&media))?
    }

    fn retain_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        self.call(move |session| session.retain_media(media))?
    }

    fn release_media(&mut self, media: MediaId) -> Result<(), SessionError> {
        self.call(move |session| session.release_media(media))?
    }

    fn media_features(&self, media: MediaId) -> Result<Vec<f32>, SessionError> {
        self.call(move |session| session.media_features(media))?
    }

    fn step(&mut self, batch: &StepBatch, output: &mut StepOutput) -> Result<(), SessionError> {
        let (batch, mut lent) = (batch.clone(), std::mem::take(output));
        let (stepped, returned) = self.call(move |session| {
            let stepped = session.step(&batch, &mut lent);
            (stepped, lent)
        })?;
        *output = returned;
        stepped
    }

    fn export(&self, sequence: SequenceId) -> Result<Vec<u8>, SessionError> {
        self.call(move |session| session.export(sequence))?
    }

    fn import(&mut self, bytes: &[u8]) -> Result<SequenceId, SessionError> {
        let bytes = bytes.to_vec();
        self.call(move |session| session.import(&bytes))?
    }
}
