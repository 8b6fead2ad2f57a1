//! A thread that computes constraint masks while the session computes a step.

use std::sync::mpsc;

use crate::active_constraint::ActiveConstraint;

/// Sends constraints to the thread before a step and receives them after it. The thread starts with
/// the first constraint.
#[derive(Default)]
pub(crate) struct ConstraintWorker {
    thread: Option<WorkerChannels>,
    /// Constraints at the thread.
    away: usize,
    /// Computed here, because no thread could be started.
    here: Vec<MaskJob>,
}

struct WorkerChannels {
    jobs: mpsc::Sender<MaskJob>,
    done: mpsc::Receiver<MaskJob>,
}

struct MaskJob {
    /// The running sequence's index.
    owner: usize,
    constraint: Box<ActiveConstraint>,
    vocab_size: usize,
}

impl ConstraintWorker {
    /// Sends a constraint; [`Self::receive`] returns it.
    pub fn submit(&mut self, owner: usize, constraint: Box<ActiveConstraint>, vocab_size: usize) {
        let job = MaskJob {
            owner,
            constraint,
            vocab_size,
        };
        match self.thread.get_or_insert_with(start).jobs.send(job) {
            Ok(()) => self.away += 1,
            Err(mpsc::SendError(job)) => self.here.push(done(job)),
        }
    }

    /// Waits for a constraint that was sent; returns it with its owner's index.
    pub fn receive(&mut self) -> Option<(usize, Box<ActiveConstraint>)> {
        let job = match self.here.pop() {
            Some(job) => job,
            None => {
                self.away = self.away.checked_sub(1)?;
                self.thread.as_ref()?.done.recv().ok()?
            }
        };
        Some((job.owner, job.constraint))
    }
}

fn start() -> WorkerChannels {
    let (jobs, inbox) = mpsc::channel();
    let (outbox, results) = mpsc::channel();
    let work = move || {
        for job in inbox {
            if outbox.send(done(job)).is_err() {
                break;
            }
        }
    };
    let thread = std::thread::Builder::new().name("loquat-look-ahead".into());
    if let Err(error) = thread.spawn(work) {
        tracing::warn!(%error, "no thread for constraints; steps wait for them");
    }
    WorkerChannels {
        jobs,
        done: results,
    }
}

fn done(mut job: MaskJob) -> MaskJob {
    job.constraint.compute_masks(job.vocab_size);
    job
}
