//! Prefill interference: how much running streams slow down while a long prompt is prefilled.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, Event, Generation};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use futures_util::future::join_all;
use pollster::block_on;

use super::error::BenchError;
use super::figure::{Figure, Line, Panel, Style};
use super::random::Random;
use super::report::{Report, Table, number, rounds_heading};
use super::stats::{Spread, median};
use super::timed_answer::{ask, greedy, join, millis, read};
use super::{Harness, Scenario, plain_options, warm_up};

/// Prompt length of the running streams.
const STREAM_PROMPT: usize = 32;
/// Tokens before a stream counts as steady.
const SETTLING: usize = 8;
/// How often the streams' progress is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

pub struct PrefillInterference {
    /// Length of the prompt that interferes.
    pub tokens: usize,
    /// Counts of running streams, measured one after the other.
    pub batches: Vec<usize>,
    /// Tokens that each stream decodes before the prompt is submitted.
    pub steady_tokens: usize,
    pub rounds: usize,
    pub seed: u64,
    pub max_slowdown: f32,
}

impl PrefillInterference {
    fn engine(&self, session: Box<dyn Session>) -> Result<Engine, BenchError> {
        let options = EngineOptions {
            max_slowdown: self.max_slowdown,
            ..plain_options()
        };
        Ok(Engine::start(session, None, options)?)
    }

    /// Tokens that each stream may generate beside the prompt; `None` if that is too few to
    /// measure.
    fn room(&self, batch: usize, context: usize, memory: &Memory) -> Option<usize> {
        let prompt = self.tokens.checked_add(1).filter(|len| *len <= context)?;
        let left = memory
            .kv_capacity
            .checked_sub(memory.sequence_tokens(prompt))?
            / batch;
        let stream = Memory {
            kv_capacity: left,
            ..*memory
        };
        let room = stream.longest_sequence(context);
        let room = room.checked_sub(STREAM_PROMPT)?;
        let steady = self.steady_tokens.checked_add(SETTLING)?;
        (room > steady).then_some(room)
    }
}

impl Scenario for PrefillInterference {
    fn name(&self) -> &'static str {
        "prefill-interference"
    }

    fn sequences(&self) -> usize {
        self.batches.iter().max().unwrap_or(&1).saturating_add(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let context = capabilities.max_context;
        for &batch in &self.batches {
            if batch >= capabilities.max_step_tokens {
                return Err(BenchError::Usage {
                    what: format!("`--batch {batch}`"),
                    expected: format!(
                        "below {}, the tokens of a step",
                        capabilities.max_step_tokens
                    ),
                });
            }
            if self.room(batch, context, memory).is_none() {
                let what = format!(
                    "`--prefill-interference {}` with {batch} streams of {} tokens",
                    self.tokens,
                    STREAM_PROMPT.saturating_add(self.steady_tokens.saturating_add(SETTLING)),
                );
                return Err(BenchError::does_not_fit(what, context, memory));
            }
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        let mut session = warm_up(session)?;
        let mut rows = Vec::new();
        for (index, &batch) in self.batches.iter().enumerate() {
            let mut rounds = Vec::new();
            for round in 0..self.rounds {
                let (measured, returned) = self.round(session, batch, round)?;
                session = returned;
                rounds.push(measured);
                let done = index * self.rounds + round + 1;
                harness.progress(done, self.batches.len() * self.rounds);
            }
            rows.push(Row { batch, rounds });
        }
        Ok(Report {
            heading: format!(
                "{}, prefill of {} tokens",
                rounds_heading(self.rounds),
                self.tokens
            ),
            text: table(&rows),
            json: json!({
                "seed": self.seed,
                "prefill_tokens": self.tokens,
                "results": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            }),
            figure: rows.last().map(|row| row.figure(self.tokens)),
            failures: Vec::new(),
        })
    }
}

/// One measured prefill.
struct Round {
    alone_ms: f64,
    contended_ms: f64,
    /// Arrival times of each stream's tokens, in milliseconds since the first of all.
    arrivals: Vec<Vec<f64>>,
    steady: Range<f64>,
    prefill: Range<f64>,
    /// Arrival times of the same tokens without the prefill.
    undisturbed: Vec<Vec<f64>>,
}

/// The phases of a round.
struct Timeline {
    steady: Instant,
    submitted: Instant,
    answered: Instant,
}

impl PrefillInterference {
    fn round(
        &self,
        session: Box<dyn Session>,
        batch: usize,
        round: usize,
    ) -> Result<(Round, Box<dyn Session>), BenchError> {
        let vocab_size = session.capabilities().vocab_size;
        let context = session.capabilities().max_context;
        let room = self.room(batch, context, &session.memory());
        // `check` refused what does not fit.
        let room = room.unwrap_or(1);
        let mut random = Random::new(self.seed, round as u64);
        let mut prompt = |len: usize| random.tokens(vocab_size, len);

        // A new engine for each, so that no prefix is cached.
        let engine = self.engine(session)?;
        let alone_ms = ask(&engine, greedy(prompt(self.tokens), 1))?.first_token_ms();
        let session = engine.into_session()?;

        let openings: Vec<Vec<u32>> = (0..batch).map(|_| prompt(STREAM_PROMPT)).collect();
        let engine = self.engine(session)?;
        let streams = submit(&engine, &openings, room)?;
        let (timeline, arrivals) = self.observe(&engine, streams, prompt(self.tokens))?;
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
        let measured = Round::new(alone_ms, &timeline, &arrivals, &undisturbed);
        Ok((measured, engine.into_session()?))
    }

    /// Reads the streams while the prompt is prefilled.
    fn observe(
        &self,
        engine: &Engine,
        streams: Vec<Generation>,
        long_prompt: Vec<u32>,
    ) -> Result<(Timeline, Vec<Vec<Instant>>), BenchError> {
        let stop = AtomicBool::new(false);
        let progress: Vec<StreamProgress> =
            streams.iter().map(|_| StreamProgress::default()).collect();
        std::thread::scope(|scope| {
            let stop = &stop;
            let readers: Vec<_> = (streams.into_iter().zip(&progress))
                .map(|(stream, progress)| scope.spawn(move || follow(stream, progress, stop)))
                .collect();
            let timeline = self.interfere(engine, &progress, long_prompt);
            // Also after an error; otherwise the readers would read to the end.
            stop.store(true, Ordering::Relaxed);
            // The error of a failed stream is more specific.
            let arrivals = readers.into_iter().map(join);
            let arrivals = arrivals.collect::<Result<Vec<_>, _>>()?;
            Ok((timeline?, arrivals))
        })
    }

    /// Waits until the streams are steady and submits the prompt.
    fn interfere(
        &self,
        engine: &Engine,
        streams: &[StreamProgress],
        prompt: Vec<u32>,
    ) -> Result<Timeline, BenchError> {
        let after = |tokens| after_each(streams, tokens);
        let steady = after(SETTLING).ok_or_else(|| self.too_late())?;
        let submitted = after(self.steady_tokens).ok_or_else(|| self.too_late())?;
        let answer = ask(engine, greedy(prompt, 1))?;
        if streams.iter().any(StreamProgress::has_ended) {
            return Err(self.too_late());
        }
        Ok(Timeline {
            steady,
            submitted,
            answered: answer.arrivals.first().copied().unwrap_or(submitted),
        })
    }

    fn too_late(&self) -> BenchError {
        BenchError::Usage {
            what: format!("`--prefill-interference {}`", self.tokens),
            expected: "shorter, or `--decode-tokens` lower: a stream filled its context before \
                       the prefill ended"
                .to_owned(),
        }
    }
}

fn submit(
    engine: &Engine,
    openings: &[Vec<u32>],
    max_tokens: usize,
) -> Result<Vec<Generation>, BenchError> {
    let streams = openings
        .iter()
        .map(|opening| engine.submit(greedy(opening.clone(), max_tokens)));
    Ok(streams.collect::<Result<_, _>>()?)
}

/// Progress of one stream, shared between threads.
#[derive(Default)]
struct StreamProgress {
    tokens: AtomicUsize,
    ended: AtomicBool,
}

impl StreamProgress {
    fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// Waits until each stream has generated `tokens` more; `None` if one ends first.
fn after_each(streams: &[StreamProgress], tokens: usize) -> Option<Instant> {
    let targets: Vec<usize> = streams
        .iter()
        .map(|stream| stream.tokens() + tokens)
        .collect();
    let behind = || {
        let mut pairs = streams.iter().zip(&targets);
        pairs.any(|(stream, target)| stream.tokens() < *target)
    };
    while behind() {
        if streams.iter().any(StreamProgress::has_ended) {
            return None;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Some(Instant::now())
}

/// Reads until `stop` is set and one token more, which ends a stall that lasts as long as the
/// prefill.
fn follow(
    mut stream: Generation,
    progress: &StreamProgress,
    stop: &AtomicBool,
) -> Result<Vec<Instant>, BenchError> {
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
                return Err(BenchError::Engine(error));
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
        timeline: &Timeline,
        arrivals: &[Vec<Instant>],
        undisturbed: &[Vec<Instant>],
    ) -> Self {
        let Timeline {
            steady,
            submitted,
            answered,
        } = *timeline;
        let zero = first_of(arrivals).unwrap_or(steady);
        let at = |time: Instant| millis(zero, time);
        Self {
            alone_ms,
            contended_ms: millis(submitted, answered),
            arrivals: since(zero, arrivals),
            steady: at(steady)..at(submitted),
            prefill: at(submitted)..at(answered),
            undisturbed: since(first_of(undisturbed).unwrap_or(steady), undisturbed),
        }
    }

    fn speed_before(&self) -> f64 {
        self.speed(&self.steady)
    }

    fn speed_during(&self) -> f64 {
        self.speed(&self.prefill)
    }

    /// Tokens per second of all streams together.
    fn speed(&self, window: &Range<f64>) -> f64 {
        let inside = |time: &&f64| **time > window.start && **time <= window.end;
        let tokens = self.arrivals.iter().flatten().filter(inside).count();
        tokens as f64 / (window.end - window.start) * 1e3
    }

    /// How much longer the tokens during the prefill took than the same tokens without it. Streams
    /// slow down by themselves as their contexts grow, so equal tokens are compared. A gap that
    /// overlaps the prefill counts in full.
    fn slowdown(&self) -> f64 {
        let spans = self.arrivals.iter().zip(&self.undisturbed);
        let spans = spans.filter_map(|(disturbed, undisturbed)| {
            let first = disturbed.partition_point(|time| *time <= self.prefill.start);
            let last = disturbed.partition_point(|time| *time < self.prefill.end);
            let span = |times: &[f64]| Some(times.get(last)? - times.get(first.checked_sub(1)?)?);
            Some((span(disturbed)?, span(undisturbed)?))
        });
        let (disturbed, undisturbed) =
            spans.fold((0.0, 0.0), |sum, span| (sum.0 + span.0, sum.1 + span.1));
        disturbed / undisturbed
    }

    /// Milliseconds between tokens in the steady phase.
    fn before(&self) -> Spread {
        self.gaps(|start, end| start >= self.steady.start && end <= self.steady.end)
    }

    /// Milliseconds between tokens for all gaps that overlap the prefill.
    fn during(&self) -> Spread {
        self.gaps(|start, end| start < self.prefill.end && end > self.prefill.start)
    }

    fn gaps(&self, counts: impl Fn(f64, f64) -> bool) -> Spread {
        let pairs = self.arrivals.iter().flat_map(|times| times.windows(2));
        let counted = pairs.filter(|pair| counts(pair[0], pair[1]));
        Spread::from_values(counted.map(|pair| pair[1] - pair[0]).collect())
    }

    fn to_json(&self) -> Value {
        json!({
            "before_tokens_per_second": self.speed_before(),
            "during_tokens_per_second": self.speed_during(),
            "slowdown": self.slowdown(),
            "before_inter_token_ms": self.before().to_json(),
            "during_inter_token_ms": self.during().to_json(),
            "prefill_first_token_ms": self.contended_ms,
            "prefill_alone_first_token_ms": self.alone_ms,
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

/// Results for one count of running streams.
struct Row {
    batch: usize,
    rounds: Vec<Round>,
}

impl Row {
    fn median(&self, value: impl Fn(&Round) -> f64) -> f64 {
        median(&self.rounds.iter().map(value).collect::<Vec<_>>())
    }

    fn worst(&self, value: impl Fn(&Round) -> f64) -> f64 {
        self.rounds.iter().map(value).fold(f64::NAN, f64::max)
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
            "prefill_first_token_ms": self.median(|round| round.contended_ms),
            "prefill_alone_first_token_ms": self.median(|round| round.alone_ms),
            "rounds": self.rounds.iter().map(Round::to_json).collect::<Vec<_>>(),
        })
    }

    /// The gaps of the last round, by stream.
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
                let prefill = seconds(round.prefill.start)..seconds(round.prefill.end);
                (prefill, "prefill".to_owned())
            }),
        };
        Figure {
            title: format!("Prefill of {tokens} tokens"),
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
        "prefill",
        "alone",
    ]);
    for row in rows {
        table.row([
            row.batch.to_string(),
            number(row.median(Round::speed_before), 1),
            number(row.median(Round::speed_during), 1),
            number(row.median(Round::slowdown), 2),
            number(row.median(|round| round.before().p95), 1),
            number(row.worst(|round| round.before().max), 1),
            number(row.median(|round| round.during().p95), 1),
            number(row.worst(|round| round.during().max), 1),
            number(row.median(|round| round.contended_ms), 1),
            number(row.median(|round| round.alone_ms), 1),
        ]);
    }
    table.text()
        + "\nTokens per second of all streams together; latencies in milliseconds. The slowdown \
           compares the same tokens without the prefill.\n"
}

#[cfg(test)]
mod tests {
    use loquat_session::KvGroups;

    use super::*;

    fn round() -> Round {
        Round {
            alone_ms: 10.0,
            contended_ms: 20.0,
            // A token each 10 ms, then one stream stalls from before the prefill to after it.
            arrivals: vec![
                vec![0.0, 10.0, 20.0, 30.0, 40.0, 60.0, 80.0, 90.0],
                vec![0.0, 10.0, 20.0, 30.0, 38.0, 95.0],
            ],
            steady: 10.0..40.0,
            prefill: 40.0..90.0,
            undisturbed: vec![
                vec![0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0],
                vec![0.0, 10.0, 20.0, 30.0, 40.0, 50.0],
            ],
        }
    }

    #[test]
    fn speeds_cover_their_windows() {
        let round = round();
        assert_eq!(round.speed_before(), 200.0);
        assert_eq!(round.speed_during(), 60.0);
    }

    #[test]
    fn slowdown_compares_same_tokens() {
        // From 40 to 90 instead of 70, and from 38 to 95 instead of 40 to 50.
        assert_eq!(round().slowdown(), (50.0 + 57.0) / (30.0 + 10.0));
    }

    #[test]
    fn stall_across_prefill_is_counted() {
        let round = round();
        assert_eq!(round.during().max, 57.0);
        assert_eq!(round.before().max, 10.0);
    }

    #[test]
    fn streams_get_remaining_kv() {
        let scenario = PrefillInterference {
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
            kv_groups: KvGroups::uniform(1),
            kv_capacity,
            kv_in_use: 0,
            kv_granularity: 16,
            kv_row_tokens: 16,
            state_bytes: 0,
            states_in_use: 0,
            media_bytes_per_position: 0,
            media_capacity: 0,
            media_in_use: 0,
            adapter_capacity: 0,
            adapter_bytes: 0,
            adapters_loaded: 0,
        };
        for (context, capacity, expected) in [
            // 112 for the prompt, 192 for each stream.
            (512, 500, Some(160)),
            (128, 500, Some(96)),
            (100, 500, None),
            (512, 100, None),
            (512, 112 + 2 * 48, None),
        ] {
            let room = scenario.room(2, context, &memory(capacity));
            assert_eq!(room, expected, "{context} {capacity}");
        }
    }
}
