//! Engine overhead: the engine's speed against the bare session's, in interleaved rounds.
//!
//! Both run the same session object in turns, so that their ratio is the engine's own cost.

use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::error::BenchError;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{median, median_ratio};
use super::workload::{self, Workload, on_session, through_engine};
use super::{Harness, Scenario};

pub struct EngineOverhead {
    pub workloads: Vec<Workload>,
    pub rounds: usize,
}

/// One value per round.
#[derive(Default)]
struct Rounds {
    /// Tokens per second.
    engine: Vec<f64>,
    session: Vec<f64>,
    /// The engine's own time per step, in microseconds.
    overhead: Vec<f64>,
}

impl EngineOverhead {
    fn measure(
        &self,
        mut session: Box<dyn Session>,
        harness: &Harness<'_>,
    ) -> Result<Vec<Rounds>, BenchError> {
        let mut measured: Vec<Rounds> = self.workloads.iter().map(|_| Rounds::default()).collect();
        // Round 0 is a warm-up and is not counted.
        for round in 0..=self.rounds {
            for (work, rounds) in self.workloads.iter().zip(&mut measured) {
                let alone = on_session(session.as_mut(), *work)?;
                let (engine, returned) = through_engine(session, *work)?;
                session = returned;
                if round > 0 {
                    rounds.session.push(alone);
                    rounds.engine.push(engine.tokens_per_second);
                    rounds
                        .overhead
                        .extend(engine.overhead.map(|own| own.as_secs_f64() * 1e6));
                }
            }
            harness.progress(round + 1, self.rounds + 1);
        }
        Ok(measured)
    }
}

impl Scenario for EngineOverhead {
    fn name(&self) -> &'static str {
        "compare"
    }

    fn sequences(&self) -> usize {
        workload::max_batch(&self.workloads)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        workload::check(&self.workloads, capabilities, memory)
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        let measured = self.measure(session, harness)?;
        let mut table = Table::new(&["", "engine", "session", "ratio", "own µs/step"]);
        for (work, rounds) in self.workloads.iter().zip(&measured) {
            table.row([
                format!("{:<22}", work.name()),
                number(median(&rounds.engine), 1),
                number(median(&rounds.session), 1),
                number(rounds.ratio(), 3),
                number(median(&rounds.overhead), 1),
            ]);
        }
        let results: Vec<Value> = (self.workloads.iter().zip(&measured))
            .map(|(work, rounds)| rounds.to_json(work))
            .collect();
        Ok(Report::new(
            format!("{}, tokens/s", rounds_heading(self.rounds)),
            table.text(),
            json!({ "results": results }),
        ))
    }
}

impl Rounds {
    fn ratio(&self) -> f64 {
        median_ratio(&self.engine, &self.session)
    }

    fn to_json(&self, work: &Workload) -> Value {
        let (kind, tokens, depth) = match *work {
            Workload::Prompt { tokens } => ("prompt", tokens, 0),
            Workload::Decode { tokens, depth, .. } => ("decode", tokens, depth),
        };
        json!({
            "work": kind,
            "tokens": tokens,
            "depth": depth,
            "batch": work.batch(),
            "engine_tokens_per_second": median(&self.engine),
            "session_tokens_per_second": median(&self.session),
            "ratio": self.ratio(),
            "engine_overhead_us": median(&self.overhead),
            "engine_rounds": self.engine,
            "session_rounds": self.session,
            "engine_overhead_us_rounds": self.overhead,
        })
    }
}
