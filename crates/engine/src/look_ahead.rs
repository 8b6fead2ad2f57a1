//! A thread that asks constraints what may come next while the device computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use crate::EngineError;
use crate::error::panic_message;
use crate::guide::Guide;

/// Hands guides over before a step and takes them back after it. The thread starts with the
/// first guide and ends with this.
#[derive(Default)]
pub(crate) struct LookAhead {
    thread: Option<Ends>,
    /// Guides that the thread has.
    away: usize,
    /// Done without a thread, because none could be had.
    here: Vec<Job>,
}

struct Ends {
    jobs: mpsc::Sender<Job>,
    done: mpsc::Receiver<Job>,
}

struct Job {
    /// Whose guide it is: a running sequence's index.
    owner: usize,
    guide: Box<Guide>,
    vocab_size: usize,
}

impl LookAhead {
    /// The guide is away until it is [taken back](Self::take_back).
    pub fn hand_over(&mut self, owner: usize, guide: Box<Guide>, vocab_size: usize) {
        let job = Job {
            owner,
            guide,
            vocab_size,
        };
        match self.thread.get_or_insert_with(start).jobs.send(job) {
            Ok(()) => self.away += 1,
            Err(mpsc::SendError(job)) => self.here.push(done(job)),
        }
    }

    /// Waits for a guide that was handed over; gives its owner's index with it.
    pub fn take_back(&mut self) -> Option<(usize, Box<Guide>)> {
        let job = match self.here.pop() {
            Some(job) => job,
            None => {
                self.away = self.away.checked_sub(1)?;
                self.thread.as_ref()?.done.recv().ok()?
            }
        };
        Some((job.owner, job.guide))
    }
}

fn start() -> Ends {
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
    Ends {
        jobs,
        done: results,
    }
}

fn done(mut job: Job) -> Job {
    let looked = catch_unwind(AssertUnwindSafe(|| job.guide.look_ahead(job.vocab_size)));
    let looked = looked.unwrap_or_else(|panic| {
        Err(EngineError::Panicked {
            doing: "constraining",
            message: panic_message(&*panic),
        })
    });
    if let Err(error) = looked {
        job.guide.give_up(error);
    }
    job
}
