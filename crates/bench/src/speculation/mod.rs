//! Speculative decoding against decoding without, in interleaved rounds on one engine.
//!
//! Both send the same requests; those without drafts say so. The answers must be the same.

use loquat::ModelFiles;
use loquat_engine::{Engine, EngineOptions, GenerateRequest, SamplingParams, SpeculationOptions};
use loquat_session::{Capabilities, Memory, Session};
use loquat_text::Special;
use serde_json::{Value, json};

use futures_util::future::join_all;
use pollster::block_on;

use super::error::BenchError;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{median, median_ratio};
use super::timed_answer::{TimedAnswer, ask_async, greedy};
use super::{Harness, Scenario, warm_up};

/// A file of about 400 tokens.
const FILE: &str = include_str!("orders.py");
/// Tokens of the answer about the file: a little less than the whole, for any tokenizer.
const FILE_TOKENS: usize = 384;
/// What prose begins with, one for each sequence of a batch.
const OPENINGS: [&str; 8] = [
    "The last ferry left the island at dusk, and nobody on the pier had noticed",
    "My grandmother kept three clocks in her kitchen, and each of them",
    "In the spring of that year the river rose higher than anyone could remember, so",
    "The engineer put down her pencil and asked the question that had bothered her since",
    "It is often said that cities are built by merchants, but",
    "When the letter finally arrived, it was not addressed to him but to",
    "Most people who visit the archive never see the basement, where",
    "There are two ways to cross the mountains in winter, and the first",
];

pub struct Speculation {
    pub options: SpeculationOptions,
    /// Sequences at once.
    pub batches: Vec<usize>,
    /// Tokens of each text.
    pub tokens: usize,
    pub rounds: usize,
    pub seed: u64,
    tasks: Vec<Task>,
}

/// Prompts that are answered at once.
struct Task {
    name: String,
    requests: Vec<GenerateRequest>,
}

/// One value per round.
#[derive(Default)]
struct Rounds {
    plain: Vec<f64>,
    drafted: Vec<f64>,
    /// Drafted tokens of all rounds, and those that were accepted.
    drafts: (u64, u64),
    differ: bool,
}

impl Speculation {
    pub fn new(
        options: SpeculationOptions,
        batches: Vec<usize>,
        (tokens, rounds): (usize, usize),
        seed: u64,
    ) -> Self {
        Self {
            options,
            batches,
            tokens,
            rounds,
            seed,
            tasks: Vec::new(),
        }
    }

    fn edit(
        &self,
        encode: &impl Fn(&str) -> Result<Vec<u32>, BenchError>,
    ) -> Result<Task, BenchError> {
        let prompt = format!(
            "The file orders.py:\n\n```python\n{FILE}```\n\nThe same file, with the class `Line` renamed \
             to `Item` and nothing else changed:\n\n```python\n"
        );
        Ok(Task {
            name: "code edit".to_owned(),
            requests: vec![greedy(encode(&prompt)?, FILE_TOKENS)],
        })
    }

    fn prose(
        &self,
        batch: usize,
        encode: &impl Fn(&str) -> Result<Vec<u32>, BenchError>,
    ) -> Result<Task, BenchError> {
        let request = |index: usize| {
            Ok(GenerateRequest {
                // Greedy prose of small models repeats itself.
                sampling: SamplingParams {
                    temperature: 0.8,
                    top_p: 0.95,
                    seed: Some(self.seed.wrapping_add(index as u64)),
                    ..SamplingParams::default()
                },
                ..greedy(encode(OPENINGS[index % OPENINGS.len()])?, self.tokens)
            })
        };
        Ok(Task {
            name: match batch {
                1 => "prose".to_owned(),
                batch => format!("prose × {batch}"),
            },
            requests: (0..batch).map(request).collect::<Result<_, BenchError>>()?,
        })
    }

    fn answer(
        engine: &Engine,
        task: &Task,
        drafts: Option<usize>,
    ) -> Result<(f64, Vec<Vec<u32>>), BenchError> {
        let requests = task.requests.iter().map(|request| GenerateRequest {
            draft_tokens: drafts,
            ..request.clone()
        });
        let answers = requests.map(|request| ask_async(engine, request));
        let answers = block_on(join_all(answers)).into_iter();
        let answers = answers.collect::<Result<Vec<TimedAnswer>, _>>()?;
        let firsts = answers.iter().filter_map(|answer| answer.arrivals.first());
        let lasts = answers.iter().filter_map(|answer| answer.arrivals.last());
        let seconds = match (firsts.min(), lasts.max()) {
            (Some(first), Some(last)) => last.duration_since(*first).as_secs_f64(),
            _ => f64::NAN,
        };
        let decoded: usize = answers.iter().map(|answer| answer.ids.len() - 1).sum();
        let ids = answers.into_iter().map(|answer| answer.ids).collect();
        Ok((decoded as f64 / seconds, ids))
    }
}

impl Scenario for Speculation {
    fn name(&self) -> &'static str {
        "speculative"
    }

    fn sequences(&self) -> usize {
        self.batches.iter().copied().max().unwrap_or(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let tokens = self.tokens.max(2 * FILE_TOKENS) + 256;
        let all = memory.sequence_tokens(tokens) * self.sequences();
        if tokens > capabilities.max_context || all > memory.kv_capacity {
            let what = format!("{} sequences of {tokens} tokens", self.sequences());
            return Err(BenchError::does_not_fit(
                what,
                capabilities.max_context,
                memory,
            ));
        }
        Ok(())
    }

    fn prepare(&mut self, model: &ModelFiles) -> Result<(), BenchError> {
        let tokenizer = model.tokenizer()?;
        let encode = |text: &str| {
            let tokens = tokenizer.encode(text, Special::PLAIN);
            Ok(tokens.map_err(loquat::Error::from)?)
        };
        let mut tasks = vec![self.edit(&encode)?];
        for batch in &self.batches {
            tasks.push(self.prose(*batch, &encode)?);
        }
        self.tasks = tasks;
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        let options = EngineOptions {
            speculation: self.options,
            ..EngineOptions::default()
        };
        let engine = Engine::start(warm_up(session)?, None, options)?;
        let mut measured: Vec<Rounds> = self.tasks.iter().map(|_| Rounds::default()).collect();
        // Round 0 is a warm-up and is not counted.
        for round in 0..=self.rounds {
            for (task, rounds) in self.tasks.iter().zip(&mut measured) {
                let before = engine.stats().speculation;
                let plain = || Self::answer(&engine, task, Some(0));
                let drafted = || Self::answer(&engine, task, None);
                // The order alternates, so that neither always runs on a warmer machine.
                let (plain, drafted) = match round % 2 {
                    0 => (plain()?, drafted()?),
                    _ => {
                        let drafted = drafted()?;
                        (plain()?, drafted)
                    }
                };
                rounds.differ |= plain.1 != drafted.1;
                if round > 0 {
                    let after = engine.stats().speculation;
                    rounds.plain.push(plain.0);
                    rounds.drafted.push(drafted.0);
                    rounds.drafts.0 += after.draft_tokens - before.draft_tokens;
                    rounds.drafts.1 += after.accepted_tokens - before.accepted_tokens;
                }
            }
            harness.progress(round + 1, self.rounds + 1);
        }
        engine.into_session()?;
        Ok(self.report(&measured))
    }
}

impl Speculation {
    fn report(&self, measured: &[Rounds]) -> Report {
        let mut table = Table::new(&["task", "plain", "drafted", "ratio", "accepted"]);
        let mut tasks = Vec::new();
        let mut failures = Vec::new();
        for (task, rounds) in self.tasks.iter().zip(measured) {
            let ratio = median_ratio(&rounds.drafted, &rounds.plain);
            let (drafted, accepted) = rounds.drafts;
            table.row([
                task.name.clone(),
                number(median(&rounds.plain), 1),
                number(median(&rounds.drafted), 1),
                format!("{} ×", number(ratio, 2)),
                format!("{accepted} of {drafted}"),
            ]);
            if rounds.differ {
                failures.push(format!("{}: drafts changed the answer", task.name));
            }
            tasks.push(as_json(task, rounds, ratio));
        }
        Report {
            heading: rounds_heading(self.rounds),
            text: format!("{}\nTokens per second while decoding.\n", table.text()),
            json: json!({ "seed": self.seed, "mode": self.options.mode.name(), "tasks": tasks }),
            figure: None,
            failures,
        }
    }
}

fn as_json(task: &Task, rounds: &Rounds, ratio: f64) -> Value {
    json!({
        "task": task.name,
        "sequences": task.requests.len(),
        "plain_tokens_per_second": median(&rounds.plain),
        "drafted_tokens_per_second": median(&rounds.drafted),
        "plain_rounds": rounds.plain,
        "drafted_rounds": rounds.drafted,
        "ratio": ratio,
        "draft_tokens": rounds.drafts.0,
        "accepted_tokens": rounds.drafts.1,
    })
}
