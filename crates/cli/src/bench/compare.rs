//! The engine's speed beside the bare session's, in interleaved rounds.
//!
//! Both run the same session object, handed back and forth, so that their ratio is the
//! engine's own cost and nothing else.

use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::Scenario;
use super::report::{Report, Table, number};
use super::stats::median;
use super::work::{self, Work, bare, through_engine};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::progress::ShareBar;

pub struct Compare {
    works: Vec<Work>,
    rounds: usize,
}

/// Round by round.
#[derive(Default)]
struct Rounds {
    /// Tokens per second.
    engine: Vec<f64>,
    session: Vec<f64>,
    /// The engine's own part of a step, in microseconds.
    overhead: Vec<f64>,
}

impl Compare {
    pub fn new(args: &BenchArgs) -> Self {
        let prompts = args.prompt_tokens.iter().map(|tokens| Work::Prompt {
            tokens: tokens.get(),
        });
        let decodes = args.depth.iter().flat_map(|depth| {
            args.batches(1).into_iter().map(|batch| Work::Decode {
                tokens: args.decode_tokens.get(),
                depth: depth.get(),
                batch,
            })
        });
        Self {
            works: prompts.chain(decodes).collect(),
            rounds: args.rounds(5),
        }
    }

    fn measure(&self, mut session: Box<dyn Session>) -> Result<Vec<Rounds>, CliError> {
        let bar = ShareBar::start("measuring");
        let mut measured: Vec<Rounds> = self.works.iter().map(|_| Rounds::default()).collect();
        // The first round warms caches and clocks, and is not counted.
        for round in 0..=self.rounds {
            for (work, rounds) in self.works.iter().zip(&mut measured) {
                let bare = bare(session.as_mut(), *work)?;
                let (engine, returned) = through_engine(session, *work)?;
                session = returned;
                if round > 0 {
                    rounds.session.push(bare);
                    rounds.engine.push(engine.tokens_per_second);
                    rounds
                        .overhead
                        .extend(engine.overhead.map(|own| own.as_secs_f64() * 1e6));
                }
            }
            bar.set((round + 1) as f32 / (self.rounds + 1) as f32);
        }
        Ok(measured)
    }
}

impl Scenario for Compare {
    fn name(&self) -> &'static str {
        "compare"
    }

    fn sequences(&self) -> usize {
        self.works.iter().map(Work::batch).max().unwrap_or(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        work::check(&self.works, capabilities, memory)
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        let measured = self.measure(session)?;
        let mut table = Table::new(&["", "engine", "session", "ratio", "own µs/step"]);
        for (work, rounds) in self.works.iter().zip(&measured) {
            table.row(vec![
                format!("{:<22}", work.name()),
                number(median(&rounds.engine), 1),
                number(median(&rounds.session), 1),
                number(rounds.ratio(), 3),
                number(median(&rounds.overhead), 1),
            ]);
        }
        let results: Vec<Value> = (self.works.iter().zip(&measured))
            .map(|(work, rounds)| rounds.to_json(work))
            .collect();
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("median of {rounds} rounds"),
        };
        Ok(Report {
            heading: format!("{rounds}, tokens/s"),
            text: table.text(),
            json: json!({ "results": results }),
            figure: None,
            failures: Vec::new(),
        })
    }
}

impl Rounds {
    /// The median of the rounds' own ratios: each compares two runs made back to back.
    fn ratio(&self) -> f64 {
        let pairs = self.engine.iter().zip(&self.session);
        let ratios: Vec<f64> = pairs.map(|(engine, session)| engine / session).collect();
        median(&ratios)
    }

    fn to_json(&self, work: &Work) -> Value {
        let (kind, tokens, depth) = match *work {
            Work::Prompt { tokens } => ("prompt", tokens, 0),
            Work::Decode { tokens, depth, .. } => ("decode", tokens, depth),
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
