//! Decoding while others are busy on this machine, beside decoding undisturbed.
//!
//! The others are threads that do nothing but compute, which the system schedules as it does
//! other programs' and puts where it likes. Rounds alternate, so that both see the same machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use loquat_session::{Capabilities, Memory, Session};
use serde_json::json;

use super::Scenario;
use super::report::{Report, Table, number};
use super::stats::median;
use super::work::{self, Work, bare};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::progress::ShareBar;

pub struct Contended {
    work: Work,
    neighbours: usize,
    rounds: usize,
}

/// Tokens per second, round by round.
#[derive(Default)]
struct Rounds {
    alone: Vec<f64>,
    contended: Vec<f64>,
}

impl Contended {
    pub fn new(args: &BenchArgs, neighbours: usize) -> Self {
        Self {
            work: Work::Decode {
                tokens: args.decode_tokens.get(),
                depth: 1,
                batch: 1,
            },
            neighbours,
            rounds: args.rounds(5),
        }
    }

    fn measure(&self, session: &mut dyn Session) -> Result<Rounds, CliError> {
        let bar = ShareBar::start("measuring");
        let mut rounds = Rounds::default();
        // The first round warms caches and clocks, and is not counted.
        for round in 0..=self.rounds {
            let alone = bare(session, self.work)?;
            let neighbours = Neighbours::start(self.neighbours)?;
            let contended = bare(session, self.work)?;
            drop(neighbours);
            if round > 0 {
                rounds.alone.push(alone);
                rounds.contended.push(contended);
            }
            bar.set((round + 1) as f32 / (self.rounds + 1) as f32);
        }
        Ok(rounds)
    }
}

impl Scenario for Contended {
    fn name(&self) -> &'static str {
        "contended"
    }

    fn sequences(&self) -> usize {
        self.work.batch()
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        work::check(&[self.work], capabilities, memory)
    }

    fn run(&self, mut session: Box<dyn Session>) -> Result<Report, CliError> {
        let rounds = self.measure(session.as_mut())?;
        let (alone, contended) = (median(&rounds.alone), median(&rounds.contended));
        let mut table = Table::new(&["", "alone", "contended", "ratio"]);
        table.row(vec![
            self.work.name(),
            number(alone, 1),
            number(contended, 1),
            number(rounds.ratio(), 3),
        ]);
        Ok(Report {
            heading: format!(
                "busy neighbours: {}, median of {} rounds, tokens/s",
                self.neighbours, self.rounds
            ),
            text: table.text(),
            json: json!({
                "neighbours": self.neighbours,
                "alone_tokens_per_second": alone,
                "contended_tokens_per_second": contended,
                "ratio": rounds.ratio(),
                "alone_rounds": rounds.alone,
                "contended_rounds": rounds.contended,
            }),
            figure: None,
            failures: Vec::new(),
        })
    }
}

impl Rounds {
    /// The median of the rounds' own ratios: each compares two runs made back to back.
    fn ratio(&self) -> f64 {
        let pairs = self.contended.iter().zip(&self.alone);
        let ratios: Vec<f64> = pairs.map(|(contended, alone)| contended / alone).collect();
        median(&ratios)
    }
}

/// Threads that compute for nobody, ended when this is dropped.
struct Neighbours {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbours {
    fn start(count: usize) -> Result<Self, CliError> {
        let mut neighbours = Self {
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..count {
            let stop = neighbours.stop.clone();
            let busy = move || while !stop.load(Ordering::Relaxed) {};
            let thread = std::thread::Builder::new().spawn(busy);
            neighbours.threads.push(thread.map_err(CliError::Runtime)?);
        }
        Ok(neighbours)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Its loop has nothing in it that could fail.
            let _ = thread.join();
        }
    }
}
