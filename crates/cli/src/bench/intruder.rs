//! What running streams suffer while a long prompt enters.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, Event, Generation};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::figure::{Figure, Line, Panel, Style};
use super::random::Random;
use super::reading::{ask, greedy, joined, millis, read};
use super::report::{Report, Table, number};
use super::stats::{Spread, median};
use super::{Scenario, held, warm_up};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::progress::ShareBar;
use crate::wait::{block_on, join_all};

/// What the running streams begin with.
const STREAM_PROMPT: usize = 32;
/// Tokens before a stream counts as steady.
const SETTLING: usize = 8;
/// How often the streams' progress is looked at.
const WATCHING: Duration = Duration::from_millis(2);

pub struct Intruder {
    tokens: usize,
    batches: Vec<usize>,
    steady_tokens: usize,
    rounds: usize,
    seed: u64,
    max_slowdown: f32,
}

impl Intruder {
    pub fn new(args: &BenchArgs, tokens: usize) -> Self {
        Self {
            tokens,
            batches: args.batches(4),
            steady_tokens: args.decode_tokens.get(),
            rounds: args.rounds(3),
            seed: args.seed,
            max_slowdown: args.max_slowdown,
        }
    }

    fn engine(&self, session: Box<dyn Session>) -> Result<Engine, CliError> {
        let options = EngineOptions {
            max_slowdown: self.max_slowdown,
            ..EngineOptions::default()
        };
        Ok(Engine::start(session, None, options)?)
    }

    /// Tokens that each of the streams may generate: all that the intruder leaves room for.
    /// `None` where that is too few to measure.
    fn room(&self, batch: usize, context: usize, memory: &Memory) -> Option<usize> {
        let intruder = self.tokens.checked_add(1).filter(|len| *len <= context)?;
        let left = memory.kv_capacity.checked_sub(held(intruder, memory))? / batch;
        let whole = left - left % memory.kv_granularity.max(1);
        let room = whole.min(context).checked_sub(STREAM_PROMPT)?;
        let steady = self.steady_tokens.checked_add(SETTLING)?;
        (room > steady).then_some(room)
    }
}

impl Scenario for Intruder {
    fn name(&self) -> &'static str {
        "intruder"
    }

    fn sequences(&self) -> usize {
        self.batches.iter().max().unwrap_or(&1).saturating_add(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        let (context, capacity) = (capabilities.max_context, memory.kv_capacity);
        for &batch in &self.batches {
            if batch >= capabilities.max_step_tokens {
                return Err(CliError::Usage {
                    what: format!("`--batch {batch}`"),
                    expected: format!("below {}, a step's tokens", capabilities.max_step_tokens),
                });
            }
            if self.room(batch, context, memory).is_none() {
                return Err(CliError::Usage {
                    what: format!(
                        "`--intruder {}` beside {batch} streams of {} tokens",
                        self.tokens,
                        STREAM_PROMPT.saturating_add(self.steady_tokens.saturating_add(SETTLING)),
                    ),
                    expected: format!(
                        "within the context of {context} and {capacity} tokens of KV"
                    ),
                });
            }
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        let mut session = warm_up(session)?;
        let bar = ShareBar::start("measuring");
        let mut rows = Vec::new();
        for (place, &batch) in self.batches.iter().enumerate() {
            let mut rounds = Vec::new();
            for round in 0..self.rounds {
                let (measured, returned) = self.round(session, batch, round)?;
                session = returned;
                rounds.push(measured);
                let done = place * self.rounds + round + 1;
                bar.set(done as f32 / (self.batches.len() * self.rounds) as f32);
            }
            rows.push(Row { batch, rounds });
        }
        drop(bar);
        let rounds = match self.rounds {
            1 => "one round".to_owned(),
            rounds => format!("median of {rounds} rounds"),
        };
        Ok(Report {
            heading: format!("{rounds}, a prompt of {} tokens enters", self.tokens),
            text: table(&rows),
            json: json!({
                "seed": self.seed,
                "intruder_tokens": self.tokens,
                "results": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            }),
            figure: rows.last().map(|row| row.figure(self.tokens)),
            failures: Vec::new(),
        })
    }
}

/// One entry, measured.
struct Round {
    alone_ms: f64,
    beside_ms: f64,
    /// When each stream's tokens came, in milliseconds since the first of all.
    arrivals: Vec<Vec<f64>>,
    steady: Range<f64>,
    entry: Range<f64>,
    /// When the same tokens came with nothing entering, since the first of all likewise.
    undisturbed: Vec<Vec<f64>>,
}

/// The streams are steady, the prompt is sent, its first token comes.
struct Moments {
    steady: Instant,
    entered: Instant,
    answered: Instant,
}

impl Intruder {
    fn round(
        &self,
        session: Box<dyn Session>,
        batch: usize,
        round: usize,
    ) -> Result<(Round, Box<dyn Session>), CliError> {
        let vocab_size = session.capabilities().vocab_size;
        let context = session.capabilities().max_context;
        let room = self.room(batch, context, &session.memory());
        // What has no room was refused before anything ran.
        let room = room.unwrap_or(1);
        let mut random = Random::new(self.seed, round as u64);
        let mut prompt = |len: usize| random.tokens(vocab_size, len);

        // Another engine for each, so that neither finds the other's prefix in its way.
        let engine = self.engine(session)?;
        let alone_ms = ask(&engine, greedy(prompt(self.tokens), 1))?.first_token_ms();
        let session = engine.into_session()?;

        let openings: Vec<Vec<u32>> = (0..batch).map(|_| prompt(STREAM_PROMPT)).collect();
        let engine = self.engine(session)?;
        let streams = submit(&engine, &openings, room)?;
        let (moments, arrivals) = self.observe(&engine, streams, prompt(self.tokens))?;
        let session = engine.into_session()?;

        let engine = self.engine(session)?;
        let longest = arrivals.iter().map(Vec::len).max().unwrap_or(1);
        let streams = submit(&engine, &openings, longest)?;
        let now = Instant::now();
        let undisturbed = block_on(join_all(
            streams.into_iter().map(|stream| read(stream, now)),
        ));
        let undisturbed = undisturbed.into_iter();
        let undisturbed = undisturbed
            .map(|answer| answer.map(|answer| answer.arrivals))
            .collect::<Result<Vec<_>, _>>()?;
        let measured = Round::new(alone_ms, &moments, &arrivals, &undisturbed);
        Ok((measured, engine.into_session()?))
    }

    /// Follows the streams while the intruder enters.
    fn observe(
        &self,
        engine: &Engine,
        streams: Vec<Generation>,
        intruder: Vec<u32>,
    ) -> Result<(Moments, Vec<Vec<Instant>>), CliError> {
        let stop = AtomicBool::new(false);
        let progress: Vec<Progress> = streams.iter().map(|_| Progress::default()).collect();
        std::thread::scope(|scope| {
            let stop = &stop;
            let readers: Vec<_> = (streams.into_iter().zip(&progress))
                .map(|(stream, progress)| scope.spawn(move || follow(stream, progress, stop)))
                .collect();
            let moments = self.enter(engine, &progress, intruder);
            // Also where that failed: readers would go on to their streams' ends.
            stop.store(true, Ordering::Relaxed);
            // A stream that failed says more than that it ended too early.
            let arrivals = readers.into_iter().map(joined);
            let arrivals = arrivals.collect::<Result<Vec<_>, _>>()?;
            Ok((moments?, arrivals))
        })
    }

    /// Lets the streams settle, and sends the intruder in.
    fn enter(
        &self,
        engine: &Engine,
        streams: &[Progress],
        prompt: Vec<u32>,
    ) -> Result<Moments, CliError> {
        let after = |tokens| after_each(streams, tokens);
        let steady = after(SETTLING).ok_or_else(|| self.too_late())?;
        let entered = after(self.steady_tokens).ok_or_else(|| self.too_late())?;
        let answer = ask(engine, greedy(prompt, 1))?;
        if streams.iter().any(Progress::has_ended) {
            return Err(self.too_late());
        }
        Ok(Moments {
            steady,
            entered,
            answered: answer.arrivals.first().copied().unwrap_or(entered),
        })
    }

    fn too_late(&self) -> CliError {
        CliError::Usage {
            what: format!("`--intruder {}`", self.tokens),
            expected: "shorter, or `--decode-tokens` fewer: a running stream used up its context \
                       before the prompt was in"
                .to_owned(),
        }
    }
}

fn submit(
    engine: &Engine,
    openings: &[Vec<u32>],
    max_tokens: usize,
) -> Result<Vec<Generation>, CliError> {
    let streams = openings
        .iter()
        .map(|opening| engine.submit(greedy(opening.clone(), max_tokens)));
    Ok(streams.collect::<Result<_, _>>()?)
}

/// How far a stream is, for those who wait for it.
#[derive(Default)]
struct Progress {
    tokens: AtomicUsize,
    ended: AtomicBool,
}

impl Progress {
    fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// Waits until each stream has so many tokens more; `None` where one ends first.
fn after_each(streams: &[Progress], tokens: usize) -> Option<Instant> {
    let wanted: Vec<usize> = streams
        .iter()
        .map(|stream| stream.tokens() + tokens)
        .collect();
    let behind = || {
        let mut pairs = streams.iter().zip(&wanted);
        pairs.any(|(stream, wanted)| stream.tokens() < *wanted)
    };
    while behind() {
        if streams.iter().any(Progress::has_ended) {
            return None;
        }
        std::thread::sleep(WATCHING);
    }
    Some(Instant::now())
}

/// Reads until told to stop, and one token beyond: a stall that lasts as long as the entry ends
/// only then.
fn follow(
    mut stream: Generation,
    progress: &Progress,
    stop: &AtomicBool,
) -> Result<Vec<Instant>, CliError> {
    let mut arrivals = Vec::new();
    while let Some(event) = stream.recv_blocking() {
        match event {
            Event::Tokens { tokens, .. } => {
                let now = Instant::now();
                arrivals.extend(tokens.iter().map(|_| now));
                progress.tokens.store(arrivals.len(), Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    return Ok(arrivals);
                }
            }
            Event::Failed(error) => {
                progress.ended.store(true, Ordering::Relaxed);
                return Err(CliError::Engine(error));
            }
            Event::Finished { .. } => progress.ended.store(true, Ordering::Relaxed),
            Event::PromptLogprobs(_) | Event::Embedding(_) => {}
        }
    }
    Ok(arrivals)
}

impl Round {
    fn new(
        alone_ms: f64,
        moments: &Moments,
        arrivals: &[Vec<Instant>],
        undisturbed: &[Vec<Instant>],
    ) -> Self {
        let Moments {
            steady,
            entered,
            answered,
        } = *moments;
        let zero = first_of(arrivals).unwrap_or(steady);
        let at = |time: Instant| millis(zero, time);
        Self {
            alone_ms,
            beside_ms: millis(entered, answered),
            arrivals: since(zero, arrivals),
            steady: at(steady)..at(entered),
            entry: at(entered)..at(answered),
            undisturbed: since(first_of(undisturbed).unwrap_or(steady), undisturbed),
        }
    }

    fn speed_before(&self) -> f64 {
        self.speed(&self.steady)
    }

    fn speed_during(&self) -> f64 {
        self.speed(&self.entry)
    }

    /// Tokens per second of all streams together.
    fn speed(&self, window: &Range<f64>) -> f64 {
        let inside = |time: &&f64| **time > window.start && **time <= window.end;
        let tokens = self.arrivals.iter().flatten().filter(inside).count();
        tokens as f64 / (window.end - window.start) * 1e3
    }

    /// How many times as long the tokens of the entry took as without it. The very same tokens
    /// are compared: streams get slower by themselves as their contexts grow. A wait that reaches
    /// into the entry counts, however long it lasts.
    fn slowdown(&self) -> f64 {
        let spans = self.arrivals.iter().zip(&self.undisturbed);
        let spans = spans.filter_map(|(disturbed, undisturbed)| {
            let first = disturbed.partition_point(|time| *time <= self.entry.start);
            let last = disturbed.partition_point(|time| *time < self.entry.end);
            let span = |times: &[f64]| Some(times.get(last)? - times.get(first.checked_sub(1)?)?);
            Some((span(disturbed)?, span(undisturbed)?))
        });
        let (disturbed, undisturbed) =
            spans.fold((0.0, 0.0), |sum, span| (sum.0 + span.0, sum.1 + span.1));
        disturbed / undisturbed
    }

    /// Milliseconds between tokens while all was steady.
    fn before(&self) -> Spread {
        self.gaps(|start, end| start >= self.steady.start && end <= self.steady.end)
    }

    /// And while the prompt entered, for all waits that reach into that time.
    fn during(&self) -> Spread {
        self.gaps(|start, end| start < self.entry.end && end > self.entry.start)
    }

    fn gaps(&self, counts: impl Fn(f64, f64) -> bool) -> Spread {
        let pairs = self.arrivals.iter().flat_map(|times| times.windows(2));
        let counted = pairs.filter(|pair| counts(pair[0], pair[1]));
        Spread::of(counted.map(|pair| pair[1] - pair[0]).collect())
    }

    fn to_json(&self) -> Value {
        json!({
            "before_tokens_per_second": self.speed_before(),
            "during_tokens_per_second": self.speed_during(),
            "slowdown": self.slowdown(),
            "before_inter_token_ms": self.before().to_json(),
            "during_inter_token_ms": self.during().to_json(),
            "intruder_first_token_ms": self.beside_ms,
            "intruder_alone_first_token_ms": self.alone_ms,
        })
    }
}

fn first_of(arrivals: &[Vec<Instant>]) -> Option<Instant> {
    arrivals
        .iter()
        .filter_map(|times| times.first())
        .min()
        .copied()
}

/// In milliseconds.
fn since(zero: Instant, arrivals: &[Vec<Instant>]) -> Vec<Vec<f64>> {
    let in_millis = |times: &Vec<Instant>| times.iter().map(|time| millis(zero, *time)).collect();
    arrivals.iter().map(in_millis).collect()
}

/// One number of running streams.
struct Row {
    batch: usize,
    rounds: Vec<Round>,
}

impl Row {
    fn median(&self, part: impl Fn(&Round) -> f64) -> f64 {
        median(&self.rounds.iter().map(part).collect::<Vec<_>>())
    }

    fn worst(&self, part: impl Fn(&Round) -> f64) -> f64 {
        self.rounds.iter().map(part).fold(f64::NAN, f64::max)
    }

    fn to_json(&self) -> Value {
        json!({
            "batch": self.batch,
            "slowdown": self.median(Round::slowdown),
            "before_tokens_per_second": self.median(Round::speed_before),
            "during_tokens_per_second": self.median(Round::speed_during),
            "before_inter_token_p95_ms": self.median(|round| round.before().p95),
            "during_inter_token_p95_ms": self.median(|round| round.during().p95),
            "before_inter_token_worst_ms": self.worst(|round| round.before().max),
            "during_inter_token_worst_ms": self.worst(|round| round.during().max),
            "intruder_first_token_ms": self.median(|round| round.beside_ms),
            "intruder_alone_first_token_ms": self.median(|round| round.alone_ms),
            "rounds": self.rounds.iter().map(Round::to_json).collect::<Vec<_>>(),
        })
    }

    /// The last round's waits, stream by stream.
    fn figure(&self, tokens: usize) -> Figure {
        let last = self.rounds.last();
        let seconds = |ms: f64| ms / 1e3;
        let line = |(stream, times): (usize, &Vec<f64>)| Line {
            name: format!("stream {}", stream + 1),
            points: (times.windows(2))
                .map(|pair| (seconds(pair[1]), pair[1] - pair[0]))
                .collect(),
            style: Style::Dots,
        };
        let arrivals = last.iter().flat_map(|round| &round.arrivals);
        let panel = Panel {
            title: format!(
                "Running streams slow down {} ×",
                number(self.median(Round::slowdown), 2)
            ),
            x: "seconds".to_owned(),
            y: "milliseconds between tokens".to_owned(),
            lines: arrivals.enumerate().map(line).collect(),
            shade: last.map(|round| {
                let entry = seconds(round.entry.start)..seconds(round.entry.end);
                (entry, "it enters".to_owned())
            }),
        };
        Figure {
            title: format!("A prompt of {tokens} tokens enters"),
            panels: vec![panel],
        }
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "streams",
        "before/s",
        "during/s",
        "slowdown",
        "next token p95",
        "worst",
        "during p95",
        "worst",
        "intruder's first",
        "alone",
    ]);
    for row in rows {
        table.row(vec![
            row.batch.to_string(),
            number(row.median(Round::speed_before), 1),
            number(row.median(Round::speed_during), 1),
            number(row.median(Round::slowdown), 2),
            number(row.median(|round| round.before().p95), 1),
            number(row.worst(|round| round.before().max), 1),
            number(row.median(|round| round.during().p95), 1),
            number(row.worst(|round| round.during().max), 1),
            number(row.median(|round| round.beside_ms), 1),
            number(row.median(|round| round.alone_ms), 1),
        ]);
    }
    table.text()
        + "\nTokens per second of all streams together; latencies in milliseconds. The slowdown is \
           by the same tokens with nothing entering.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round() -> Round {
        Round {
            alone_ms: 10.0,
            beside_ms: 20.0,
            // A token each 10 ms, then one stream stalls from before the entry to after it.
            arrivals: vec![
                vec![0.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 90.0],
                vec![0.0, 10.0, 20.0, 30.0, 38.0, 95.0],
            ],
            steady: 10.0..40.0,
            entry: 40.0..90.0,
            undisturbed: vec![
                vec![0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0],
                vec![0.0, 10.0, 20.0, 30.0, 40.0, 50.0],
            ],
        }
    }

    #[test]
    fn speeds_are_those_of_their_windows() {
        let round = round();
        assert_eq!(round.speed_before(), 200.0);
        assert_eq!(round.speed_during(), 60.0);
    }

    #[test]
    fn the_same_tokens_are_compared() {
        // From 40 to 90 instead of 70, and from 38 to 95 instead of 40 to 50.
        assert_eq!(round().slowdown(), (50.0 + 57.0) / (30.0 + 10.0));
    }

    #[test]
    fn a_stall_across_the_whole_entry_is_counted_there() {
        let round = round();
        assert_eq!(round.during().max, 57.0);
        assert_eq!(round.before().max, 10.0);
    }

    #[test]
    fn streams_get_what_the_intruder_leaves() {
        let intruder = Intruder {
            tokens: 100,
            batches: vec![2],
            steady_tokens: 8,
            rounds: 1,
            seed: 0,
            max_slowdown: 2.0,
        };
        let memory = |kv_capacity| Memory {
            weight_bytes: 0,
            kv_bytes_per_token: 1,
            kv_capacity,
            kv_in_use: 0,
            kv_granularity: 16,
            state_bytes: 0,
            states_in_use: 0,
        };
        for (context, capacity, expected) in [
            // 112 for the intruder, 192 for each stream.
            (512, 500, Some(160)),
            (128, 500, Some(96)),
            (100, 500, None),
            (512, 100, None),
            (512, 112 + 2 * 48, None),
        ] {
            let room = intruder.room(2, context, &memory(capacity));
            assert_eq!(room, expected, "{context} {capacity}");
        }
    }
}
