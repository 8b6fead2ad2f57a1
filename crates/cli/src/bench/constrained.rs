//! Decoding held to a JSON schema beside free decoding, in interleaved rounds.
//!
//! Both run on one engine with the same prompts, lengths and sampling. Tokens that the schema
//! forces cost next to nothing, so they are told apart: what counts is how fast tokens are chosen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loquat_engine::{
    self as engine, Allowed, Constraint, ConstraintError, Engine, EngineOptions, GenerateRequest,
    SamplingParams, TokenMask,
};
use loquat_grammar::{Grammar, GrammarSource};
use loquat_session::{Capabilities, Memory, Session};
use loquat_text::GenerationConfig;
use serde_json::{Value, json};

use super::random::Random;
use super::reading::{Answer, ask_beside_others};
use super::report::{Report, Table, number};
use super::stats::median;
use super::work::speed_together;
use super::{Scenario, held, warm_up};
use crate::args::{BenchArgs, Wanted};
use crate::error::CliError;
use crate::load::Model;
use crate::progress::ShareBar;
use crate::sampling::Sampling;
use crate::voice;
use crate::wait::{block_on, join_all};

/// Tokens in the context when decoding starts.
const PROMPT: usize = 16;

pub struct Constrained {
    batches: Vec<usize>,
    tokens: usize,
    rounds: usize,
    seed: u64,
    /// Once there is a model.
    grammar: Option<Grammar>,
}

/// Round by round.
#[derive(Default)]
struct Rounds {
    free: Vec<Speed>,
    held: Vec<Speed>,
    /// For one mask, in microseconds.
    mask: Vec<f64>,
}

/// What some sequences did together.
#[derive(Clone, Copy)]
struct Speed {
    tokens_per_second: f64,
    choices_per_second: f64,
    forced: f64,
}

impl Constrained {
    pub fn new(args: &BenchArgs) -> Self {
        Self {
            batches: args.batches(1),
            tokens: args.decode_tokens.get(),
            rounds: args.rounds(5),
            seed: args.seed,
            grammar: None,
        }
    }

    /// Tokens that one sequence generates: the first comes with the prompt.
    fn generated(&self) -> Option<usize> {
        self.tokens.checked_add(1)
    }

    fn measure(&self, engine: &Engine, grammar: &Grammar) -> Result<Vec<Rounds>, CliError> {
        let bar = ShareBar::start("measuring");
        let mut measured: Vec<Rounds> = self.batches.iter().map(|_| Rounds::default()).collect();
        // The first round warms caches and clocks, and is not counted.
        for round in 0..=self.rounds {
            for (batch, rounds) in self.batches.iter().zip(&mut measured) {
                let watch = Arc::new(Watch::default());
                let free = || self.decode(engine, *batch, None);
                let held = || self.decode(engine, *batch, Some((grammar, &watch)));
                // In turns, so that neither always comes when the machine is warmer.
                let (free, held) = match round % 2 {
                    0 => (free()?, held()?),
                    _ => {
                        let held = held()?;
                        (free()?, held)
                    }
                };
                if round > 0 {
                    rounds.free.push(free);
                    rounds.held.push(held);
                    rounds.mask.push(watch.mean_us());
                }
            }
            bar.set((round + 1) as f32 / (self.rounds + 1) as f32);
        }
        Ok(measured)
    }

    fn decode(
        &self,
        engine: &Engine,
        batch: usize,
        grammar: Option<(&Grammar, &Arc<Watch>)>,
    ) -> Result<Speed, CliError> {
        let requests = (0..batch).map(|sequence| {
            let constraint = grammar.map(|(grammar, watch)| Timed {
                inner: grammar.constraint(),
                watch: watch.clone(),
            });
            let request = self.request(engine, sequence)?;
            Ok(GenerateRequest {
                constraint: constraint.map(engine::Constrained::new),
                ..request
            })
        });
        let requests = requests.collect::<Result<Vec<_>, CliError>>()?;
        let asked = requests
            .into_iter()
            .map(|request| ask_beside_others(engine, request));
        let answers = block_on(join_all(asked)).into_iter();
        let answers = answers.collect::<Result<Vec<Answer>, _>>()?;
        Ok(Speed::of(answers))
    }

    fn request(&self, engine: &Engine, sequence: usize) -> Result<GenerateRequest, CliError> {
        let mut random = Random::new(self.seed, sequence as u64);
        let vocab_size = engine.capabilities().vocab_size;
        // As `run` samples for a model that says nothing about it.
        let usual = Sampling::of(&GenerationConfig::default())?;
        Ok(GenerateRequest {
            prompt: random.tokens(vocab_size, PROMPT),
            // What is no number was refused before anything ran.
            max_tokens: self.generated().unwrap_or(1),
            sampling: SamplingParams {
                seed: Some(random.next()),
                ..usual.params
            },
            ..GenerateRequest::default()
        })
    }

    /// An array with too many items to be finished in so many tokens, of which the schema leaves
    /// most to the model.
    fn schema(&self) -> Value {
        json!({
            "type": "array",
            "items": { "anyOf": [{ "type": "string" }, { "type": "number" }] },
            "minItems": self.tokens,
        })
    }
}

impl Scenario for Constrained {
    fn name(&self) -> &'static str {
        "constrained"
    }

    fn sequences(&self) -> usize {
        self.batches.iter().copied().max().unwrap_or(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        let context = capabilities.max_context;
        let len = self
            .generated()
            .and_then(|tokens| tokens.checked_add(PROMPT));
        let len = len.filter(|len| *len <= context);
        let all = len.and_then(|len| held(len, memory).checked_mul(self.sequences()));
        if all.is_some_and(|all| all <= memory.kv_capacity) {
            Ok(())
        } else {
            Err(CliError::Usage {
                what: format!(
                    "{} × (`--decode-tokens` + {})",
                    self.sequences(),
                    PROMPT + 1
                ),
                expected: format!(
                    "within the context of {context} each and {} tokens of KV together",
                    memory.kv_capacity
                ),
            })
        }
    }

    fn prepare(&mut self, model: &Model) -> Result<(), CliError> {
        let grammars = model.grammars(model.tokenizer()?);
        let wanted = Wanted {
            flag: "--constrained",
            source: GrammarSource::JsonSchema(self.schema()),
        };
        self.grammar = Some(voice::grammar(&grammars, &wanted)?);
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        // All are to decode together, so prompts are not held back for those that do already.
        let options = EngineOptions {
            max_slowdown: f32::INFINITY,
            ..EngineOptions::default()
        };
        let engine = Engine::start(warm_up(session)?, None, options)?;
        let measured = match &self.grammar {
            Some(grammar) => self.measure(&engine, grammar)?,
            None => Vec::new(),
        };
        Ok(self.report(&measured))
    }
}

impl Constrained {
    fn report(&self, measured: &[Rounds]) -> Report {
        let columns = [
            "", "free", "held", "ratio", "chosen", "ratio", "forced %", "mask µs",
        ];
        let mut table = Table::new(&columns);
        let rows = || self.batches.iter().zip(measured);
        for (batch, rounds) in rows() {
            table.row(vec![
                format!("decode {} × {batch}", self.tokens),
                number(rounds.free(|speed| speed.tokens_per_second), 1),
                number(rounds.held(|speed| speed.tokens_per_second), 1),
                number(rounds.ratio(|speed| speed.tokens_per_second), 3),
                number(rounds.held(|speed| speed.choices_per_second), 1),
                number(rounds.ratio(|speed| speed.choices_per_second), 3),
                number(rounds.held(|speed| speed.forced) * 100.0, 1),
                number(median(&rounds.mask), 1),
            ]);
        }
        let results: Vec<Value> = rows()
            .map(|(batch, rounds)| rounds.to_json(*batch))
            .collect();
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("median of {rounds} rounds"),
        };
        Report {
            heading: format!("{rounds}, tokens/s"),
            text: table.text(),
            json: json!({ "tokens": self.tokens, "results": results }),
            figure: None,
            failures: Vec::new(),
        }
    }
}

impl Speed {
    fn of(answers: Vec<Answer>) -> Self {
        let (mut arrivals, mut choices) = (Vec::new(), Vec::new());
        for answer in answers {
            arrivals.push(answer.arrivals);
            choices.push(answer.choices);
        }
        let count = |times: &[Vec<Instant>]| times.iter().map(Vec::len).sum::<usize>() as f64;
        Self {
            tokens_per_second: speed_together(&arrivals),
            choices_per_second: speed_together(&choices),
            forced: 1.0 - count(&choices) / count(&arrivals),
        }
    }
}

impl Rounds {
    fn free(&self, of: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.free.iter().map(of).collect::<Vec<_>>())
    }

    fn held(&self, of: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.held.iter().map(of).collect::<Vec<_>>())
    }

    /// The median of the rounds' own ratios: each compares two runs made back to back.
    fn ratio(&self, of: impl Fn(&Speed) -> f64) -> f64 {
        let pairs = self.held.iter().zip(&self.free);
        let ratios: Vec<f64> = pairs.map(|(held, free)| of(held) / of(free)).collect();
        median(&ratios)
    }

    fn to_json(&self, batch: usize) -> Value {
        let tokens = |speeds: &[Speed]| -> Vec<f64> {
            speeds.iter().map(|speed| speed.tokens_per_second).collect()
        };
        json!({
            "batch": batch,
            "free_tokens_per_second": self.free(|speed| speed.tokens_per_second),
            "constrained_tokens_per_second": self.held(|speed| speed.tokens_per_second),
            "ratio": self.ratio(|speed| speed.tokens_per_second),
            "constrained_choices_per_second": self.held(|speed| speed.choices_per_second),
            "choices_ratio": self.ratio(|speed| speed.choices_per_second),
            "forced_share": self.held(|speed| speed.forced),
            "mask_us": median(&self.mask),
            "free_rounds": tokens(&self.free),
            "constrained_rounds": tokens(&self.held),
            "mask_us_rounds": self.mask,
        })
    }
}

/// How long masks take, wherever they are computed.
#[derive(Default)]
struct Watch {
    nanos: AtomicU64,
    masks: AtomicU64,
}

impl Watch {
    fn add(&self, took: Duration) {
        self.nanos
            .fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        self.masks.fetch_add(1, Ordering::Relaxed);
    }

    fn mean_us(&self) -> f64 {
        let nanos = self.nanos.load(Ordering::Relaxed) as f64;
        nanos / self.masks.load(Ordering::Relaxed) as f64 / 1e3
    }
}

/// A constraint with a watch held over it.
struct Timed {
    inner: engine::Constrained,
    watch: Arc<Watch>,
}

impl Constraint for Timed {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<Allowed, ConstraintError> {
        let started = Instant::now();
        let allowed = self.inner.allowed(mask);
        self.watch.add(started.elapsed());
        allowed
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.inner.accept(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        self.inner.forced()
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Self {
            inner: self.inner.clone(),
            watch: self.watch.clone(),
        })
    }
}
