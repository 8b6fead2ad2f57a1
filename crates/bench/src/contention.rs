//! Decoding while other threads keep cores busy, against decoding on an otherwise idle machine.
//!
//! The busy threads are not pinned; the system schedules them like another program's. Rounds
//! alternate, so that both cases see the same machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use loquat_session::{Capabilities, Memory, Session};
use serde_json::json;

use super::error::BenchError;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{median, median_ratio};
use super::workload::{self, Workload, on_session};
use super::{Harness, Scenario};

pub struct Contention {
    pub workload: Workload,
    pub busy_threads: usize,
    pub rounds: usize,
}

/// Tokens per second, one value per round.
#[derive(Default)]
struct Rounds {
    alone: Vec<f64>,
    contended: Vec<f64>,
}

impl Contention {
    fn measure(
        &self,
        session: &mut dyn Session,
        harness: &Harness<'_>,
    ) -> Result<Rounds, BenchError> {
        let mut rounds = Rounds::default();
        // Round 0 is a warm-up and is not counted.
        for round in 0..=self.rounds {
            let alone = on_session(session, self.workload)?;
            let busy = BusyThreads::start(self.busy_threads)?;
            let contended = on_session(session, self.workload)?;
            drop(busy);
            if round > 0 {
                rounds.alone.push(alone);
                rounds.contended.push(contended);
            }
            harness.progress(round + 1, self.rounds + 1);
        }
        Ok(rounds)
    }
}

impl Scenario for Contention {
    fn name(&self) -> &'static str {
        "contended"
    }

    fn sequences(&self) -> usize {
        self.workload.batch()
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        workload::check(&[self.workload], capabilities, memory)
    }

    fn run(
        &self,
        mut session: Box<dyn Session>,
        harness: &Harness<'_>,
    ) -> Result<Report, BenchError> {
        let rounds = self.measure(session.as_mut(), harness)?;
        let (alone, contended) = (median(&rounds.alone), median(&rounds.contended));
        let mut table = Table::new(&["", "alone", "contended", "ratio"]);
        table.row([
            self.workload.name(),
            number(alone, 1),
            number(contended, 1),
            number(rounds.ratio(), 3),
        ]);
        Ok(Report::new(
            format!(
                "busy threads: {}, {}, tokens/s",
                self.busy_threads,
                rounds_heading(self.rounds)
            ),
            table.text(),
            json!({
                "busy_threads": self.busy_threads,
                "alone_tokens_per_second": alone,
                "contended_tokens_per_second": contended,
                "ratio": rounds.ratio(),
                "alone_rounds": rounds.alone,
                "contended_rounds": rounds.contended,
            }),
        ))
    }
}

impl Rounds {
    fn ratio(&self) -> f64 {
        median_ratio(&self.contended, &self.alone)
    }
}

/// Threads that spin until this is dropped.
struct BusyThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BusyThreads {
    fn start(count: usize) -> Result<Self, BenchError> {
        let mut busy = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..count {
            let stop = busy.stop.clone();
            let spin = move || while !stop.load(Ordering::Relaxed) {};
            let thread = std::thread::Builder::new().spawn(spin);
            busy.threads.push(thread.map_err(BenchError::Thread)?);
        }
        Ok(busy)
    }
}

impl Drop for BusyThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The loop cannot panic.
            let _ = thread.join();
        }
    }
}
