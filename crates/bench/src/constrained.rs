//! Decoding constrained by a JSON schema against free decoding, in interleaved rounds.
//!
//! Both run on one engine with the same prompts, lengths and sampling. Tokens that the schema
//! forces cost next to nothing, so sampled tokens are counted separately.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use loquat::ModelFiles;
use loquat_engine::{
    self as engine, AllowedTokens, Constraint, ConstraintError, Engine, EngineOptions,
    GenerateRequest, SamplingParams, TokenMask,
};
use loquat_grammar::{Grammar, GrammarSource};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use futures_util::future::join_all;
use pollster::block_on;

use super::error::BenchError;
use super::random::Random;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{median, median_ratio};
use super::timed_answer::{TimedAnswer, ask_async};
use super::workload::overlapping_speed;
use super::{Harness, Scenario, plain_options, warm_up};

/// Tokens in the context when decoding starts.
const PROMPT: usize = 16;

pub struct Constrained {
    pub batches: Vec<usize>,
    pub tokens: usize,
    pub rounds: usize,
    pub seed: u64,
}

/// One value per round.
#[derive(Default)]
struct Rounds {
    free: Vec<Speed>,
    constrained: Vec<Speed>,
    /// Time to compute one mask, in microseconds.
    mask: Vec<f64>,
}

/// Speed of all sequences together.
#[derive(Clone, Copy)]
struct Speed {
    tokens_per_second: f64,
    choices_per_second: f64,
    forced: f64,
}

impl Constrained {
    /// Tokens that one sequence generates: the first comes with the prompt.
    fn generated(&self) -> Option<usize> {
        self.tokens.checked_add(1)
    }

    fn measure(
        &self,
        engine: &Engine,
        grammar: &Grammar,
        harness: &Harness<'_>,
    ) -> Result<Vec<Rounds>, BenchError> {
        let mut measured: Vec<Rounds> = self.batches.iter().map(|_| Rounds::default()).collect();
        // Round 0 is a warm-up and is not counted.
        for round in 0..=self.rounds {
            for (batch, rounds) in self.batches.iter().zip(&mut measured) {
                let timer = Arc::new(MaskTimer::default());
                let free = || self.decode(engine, *batch, None);
                let constrained = || self.decode(engine, *batch, Some((grammar, &timer)));
                // The order alternates, so that neither always runs on a warmer machine.
                let (free, constrained) = match round % 2 {
                    0 => (free()?, constrained()?),
                    _ => {
                        let constrained = constrained()?;
                        (free()?, constrained)
                    }
                };
                if round > 0 {
                    rounds.free.push(free);
                    rounds.constrained.push(constrained);
                    rounds.mask.push(timer.mean_us());
                }
            }
            harness.progress(round + 1, self.rounds + 1);
        }
        Ok(measured)
    }

    fn decode(
        &self,
        engine: &Engine,
        batch: usize,
        grammar: Option<(&Grammar, &Arc<MaskTimer>)>,
    ) -> Result<Speed, BenchError> {
        let requests = (0..batch).map(|sequence| {
            let constraint = grammar.map(|(grammar, timer)| TimedConstraint {
                inner: grammar.constraint(),
                timer: timer.clone(),
            });
            GenerateRequest {
                constraint: constraint.map(engine::RequestConstraint::new),
                ..self.request(engine, sequence)
            }
        });
        let answers = requests.map(|request| ask_async(engine, request));
        let answers = block_on(join_all(answers)).into_iter();
        let answers = answers.collect::<Result<Vec<TimedAnswer>, _>>()?;
        Ok(Speed::from_answers(answers))
    }

    fn request(&self, engine: &Engine, sequence: usize) -> GenerateRequest {
        let mut random = Random::new(self.seed, sequence as u64);
        let vocab_size = engine.capabilities().vocab_size;
        GenerateRequest {
            prompt: random.tokens(vocab_size, PROMPT),
            // `check` refused an overflow.
            max_tokens: self.generated().unwrap_or(1),
            // Typical for chat; fixed, so that runs stay comparable.
            sampling: SamplingParams {
                temperature: 0.6,
                top_p: 0.95,
                seed: Some(random.next()),
                ..SamplingParams::default()
            },
            ..GenerateRequest::default()
        }
    }

    /// An array with too many items to complete, most of whose tokens the schema leaves free.
    fn grammar(&self, model: &ModelFiles) -> Result<Grammar, BenchError> {
        let tokenizer = model.tokenizer()?;
        let schema = json!({
            "type": "array",
            "items": { "anyOf": [{ "type": "string" }, { "type": "number" }] },
            "minItems": self.tokens,
        });
        let grammars = model.grammars(tokenizer);
        Ok(grammars.compile(&GrammarSource::JsonSchema(schema))?)
    }
}

impl Scenario for Constrained {
    fn name(&self) -> &'static str {
        "constrained"
    }

    fn sequences(&self) -> usize {
        self.batches.iter().copied().max().unwrap_or(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let context = capabilities.max_context;
        let len = self
            .generated()
            .and_then(|tokens| tokens.checked_add(PROMPT));
        let len = len.filter(|len| *len <= context);
        let all = len.and_then(|len| memory.sequence_tokens(len).checked_mul(self.sequences()));
        if all.is_some_and(|all| all <= memory.kv_capacity) {
            Ok(())
        } else {
            let (sequences, extra) = (self.sequences(), PROMPT + 1);
            let what = format!("{sequences} × (`--decode-tokens` + {extra})");
            Err(BenchError::does_not_fit(what, context, memory))
        }
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        // All sequences decode together, so prefill is not throttled.
        let options = EngineOptions {
            max_slowdown: f32::INFINITY,
            ..plain_options()
        };
        let engine = Engine::start(warm_up(session)?, None, options)?;
        let grammar = self.grammar(harness.model)?;
        Ok(self.report(&self.measure(&engine, &grammar, harness)?))
    }
}

impl Constrained {
    fn report(&self, measured: &[Rounds]) -> Report {
        let columns = [
            "",
            "free",
            "constrained",
            "ratio",
            "sampled",
            "ratio",
            "forced %",
            "mask µs",
        ];
        let mut table = Table::new(&columns);
        let rows = || self.batches.iter().zip(measured);
        for (batch, rounds) in rows() {
            table.row([
                format!("decode {} × {batch}", self.tokens),
                number(rounds.free(|speed| speed.tokens_per_second), 1),
                number(rounds.constrained(|speed| speed.tokens_per_second), 1),
                number(rounds.ratio(|speed| speed.tokens_per_second), 3),
                number(rounds.constrained(|speed| speed.choices_per_second), 1),
                number(rounds.ratio(|speed| speed.choices_per_second), 3),
                number(rounds.constrained(|speed| speed.forced) * 100.0, 1),
                number(median(&rounds.mask), 1),
            ]);
        }
        let results: Vec<Value> = rows()
            .map(|(batch, rounds)| rounds.to_json(*batch))
            .collect();
        Report::new(
            format!("{}, tokens/s", rounds_heading(self.rounds)),
            table.text(),
            json!({ "tokens": self.tokens, "results": results }),
        )
    }
}

impl Speed {
    fn from_answers(answers: Vec<TimedAnswer>) -> Self {
        let (mut arrivals, mut choices) = (Vec::new(), Vec::new());
        for answer in answers {
            arrivals.push(answer.arrivals);
            choices.push(answer.choices);
        }
        let count = |times: &[Vec<Instant>]| times.iter().map(Vec::len).sum::<usize>() as f64;
        Self {
            tokens_per_second: overlapping_speed(&arrivals),
            choices_per_second: overlapping_speed(&choices),
            forced: 1.0 - count(&choices) / count(&arrivals),
        }
    }
}

impl Rounds {
    fn free(&self, value: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.free.iter().map(value).collect::<Vec<_>>())
    }

    fn constrained(&self, value: impl Fn(&Speed) -> f64) -> f64 {
        median(&self.constrained.iter().map(value).collect::<Vec<_>>())
    }

    fn ratio(&self, value: impl Fn(&Speed) -> f64) -> f64 {
        let values = |speeds: &[Speed]| speeds.iter().map(&value).collect::<Vec<_>>();
        median_ratio(&values(&self.constrained), &values(&self.free))
    }

    fn to_json(&self, batch: usize) -> Value {
        let tokens = |speeds: &[Speed]| -> Vec<f64> {
            speeds.iter().map(|speed| speed.tokens_per_second).collect()
        };
        json!({
            "batch": batch,
            "free_tokens_per_second": self.free(|speed| speed.tokens_per_second),
            "constrained_tokens_per_second": self.constrained(|speed| speed.tokens_per_second),
            "ratio": self.ratio(|speed| speed.tokens_per_second),
            "constrained_choices_per_second": self.constrained(|speed| speed.choices_per_second),
            "choices_ratio": self.ratio(|speed| speed.choices_per_second),
            "forced_share": self.constrained(|speed| speed.forced),
            "mask_us": median(&self.mask),
            "free_rounds": tokens(&self.free),
            "constrained_rounds": tokens(&self.constrained),
            "mask_us_rounds": self.mask,
        })
    }
}

/// Measures how long masks take on any thread.
#[derive(Default)]
struct MaskTimer {
    nanos: AtomicU64,
    masks: AtomicU64,
}

impl MaskTimer {
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

/// A constraint whose masks are timed.
struct TimedConstraint {
    inner: engine::RequestConstraint,
    timer: Arc<MaskTimer>,
}

impl Constraint for TimedConstraint {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        let started = Instant::now();
        let allowed = self.inner.allowed(mask);
        self.timer.add(started.elapsed());
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
            timer: self.timer.clone(),
        })
    }
}
