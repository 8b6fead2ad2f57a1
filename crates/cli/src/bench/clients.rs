//! Many clients in a closed loop: each sends its next request when it has read the last answer.
//!
//! A request's prompt and lengths come from the seed and its place in the order alone, so that
//! every count of clients serves the same requests.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, GenerateRequest, Stats};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use super::figure::{Figure, Line, Panel, Style};
use super::random::Random;
use super::reading::{Answer, ask_beside_others, greedy, joined, millis};
use super::report::{Report, Table, number};
use super::stats::{Spread, median};
use super::{Scenario, held, warm_up};
use crate::args::{BenchArgs, Span};
use crate::error::CliError;
use crate::progress::ShareBar;
use crate::wait::{block_on, join_all};

const MAX_CLIENTS: usize = 1024;
/// Requests for each client where neither their number nor a time is given.
const REQUESTS_PER_CLIENT: usize = 4;
/// How often the engine is asked about its steps.
const SAMPLING: Duration = Duration::from_millis(20);

pub struct Clients {
    counts: Vec<usize>,
    lengths: Lengths,
    seed: u64,
    until: Until,
    max_slowdown: f32,
}

#[derive(Clone, Copy)]
struct Lengths {
    prompt: Span,
    output: Span,
}

/// When the pool runs dry.
#[derive(Clone, Copy)]
enum Until {
    Requests(usize),
    Elapsed(Duration),
}

impl Clients {
    pub fn new(args: &BenchArgs) -> Result<Self, CliError> {
        let counts: Vec<usize> = args.clients.iter().map(|count| count.get()).collect();
        let most = counts.iter().copied().max().unwrap_or(1);
        if most > MAX_CLIENTS {
            return Err(CliError::Usage {
                what: format!("`--clients {most}`"),
                expected: format!("at most {MAX_CLIENTS}"),
            });
        }
        let until = match (args.seconds, args.requests) {
            (Some(seconds), _) => Until::Elapsed(Duration::from_secs(seconds.get() as u64)),
            (None, None) => Until::Requests(REQUESTS_PER_CLIENT * most),
            (None, Some(requests)) if requests.get() < most => {
                return Err(CliError::Usage {
                    what: format!("`--requests {requests}`"),
                    expected: format!("at least {most}, one for each client"),
                });
            }
            (None, Some(requests)) => Until::Requests(requests.get()),
        };
        Ok(Self {
            counts,
            lengths: Lengths {
                prompt: args.prompt_range,
                output: args.output_range,
            },
            seed: args.seed,
            until,
            max_slowdown: args.max_slowdown,
        })
    }
}

impl Scenario for Clients {
    fn name(&self) -> &'static str {
        "clients"
    }

    fn sequences(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        let Lengths { prompt, output } = self.lengths;
        let longest = prompt.high.saturating_add(output.high);
        let (context, capacity) = (capabilities.max_context, memory.kv_capacity);
        if longest > context || held(longest, memory) > capacity {
            return Err(CliError::Usage {
                what: format!("`--prompt-range {prompt}` with `--output-range {output}`"),
                expected: format!("within the context of {context} and {capacity} tokens of KV"),
            });
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        let mut session = warm_up(session)?;
        let bar = ShareBar::start("measuring");
        let mut rows = Vec::new();
        for (place, &clients) in self.counts.iter().enumerate() {
            let (row, returned) = self.measure(session, clients)?;
            session = returned;
            rows.push(row);
            bar.set((place + 1) as f32 / self.counts.len() as f32);
        }
        drop(bar);
        let until = match self.until {
            Until::Requests(requests) => format!("{requests} requests at each count"),
            Until::Elapsed(time) => format!("{} s at each count", time.as_secs()),
        };
        let Lengths { prompt, output } = self.lengths;
        Ok(Report {
            heading: format!("{until}, prompts of {prompt}, answers of {output} tokens"),
            text: table(&rows),
            json: json!({
                "seed": self.seed,
                "prompt_range": [prompt.low, prompt.high],
                "output_range": [output.low, output.high],
                "results": rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            }),
            figure: Some(figure(&rows)),
            failures: Vec::new(),
        })
    }
}

/// The requests, taken one by one by whichever client is free.
struct Pool {
    until: Until,
    lengths: Lengths,
    seed: u64,
    vocab_size: usize,
    started: Instant,
    taken: AtomicUsize,
    /// When the first client found nothing left: up to then all were at work.
    dry: OnceLock<Instant>,
}

impl Pool {
    fn take(&self) -> Option<GenerateRequest> {
        let index = self.taken.fetch_add(1, Ordering::Relaxed);
        let left = self.dry.get().is_none()
            && match self.until {
                Until::Requests(requests) => index < requests,
                Until::Elapsed(time) => self.started.elapsed() < time,
            };
        if !left {
            self.close();
            return None;
        }
        let mut random = Random::new(self.seed, index as u64);
        let prompt = random.within(self.lengths.prompt);
        let output = random.within(self.lengths.output);
        Some(greedy(random.tokens(self.vocab_size, prompt), output))
    }

    fn close(&self) {
        self.dry.get_or_init(Instant::now);
    }
}

async fn client(engine: &Engine, pool: &Pool, name: usize) -> Result<Vec<Answer>, CliError> {
    let mut answers = Vec::new();
    while let Some(request) = pool.take() {
        let request = GenerateRequest {
            client: Some(format!("client {name}")),
            ..request
        };
        match ask_beside_others(engine, request).await {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                pool.close();
                return Err(error);
            }
        }
    }
    Ok(answers)
}

/// One count of clients.
struct Row {
    clients: usize,
    traffic: Traffic,
    step_ms: f64,
    overhead_us: f64,
    stats: Stats,
}

/// What the clients saw while all of them were at work.
struct Traffic {
    /// All of them, those that came to their end later among them.
    requests: usize,
    seconds: f64,
    generated_per_second: f64,
    prompt_per_second: f64,
    /// Milliseconds.
    first_token: Spread,
    between_tokens: Spread,
}

impl Clients {
    fn measure(
        &self,
        session: Box<dyn Session>,
        clients: usize,
    ) -> Result<(Row, Box<dyn Session>), CliError> {
        let vocab_size = session.capabilities().vocab_size;
        let options = EngineOptions {
            max_queue: EngineOptions::default().max_queue.max(clients),
            max_slowdown: self.max_slowdown,
            ..EngineOptions::default()
        };
        let engine = Engine::start(session, None, options)?;
        let pool = Pool {
            until: self.until,
            lengths: self.lengths,
            seed: self.seed,
            vocab_size,
            started: Instant::now(),
            taken: AtomicUsize::new(0),
            dry: OnceLock::new(),
        };
        let (answers, samples) = serve(&engine, &pool, clients)?;
        let end = *pool.dry.get_or_init(Instant::now);
        let stats = engine.stats();
        let row = Row {
            clients,
            traffic: Traffic::of(&answers, pool.started..end),
            step_ms: typical(&samples, |stats| stats.step_time) * 1e3,
            overhead_us: typical(&samples, |stats| stats.overhead) * 1e6,
            stats,
        };
        Ok((row, engine.into_session()?))
    }
}

/// All answers, and what the engine said of its steps meanwhile.
fn serve(
    engine: &Engine,
    pool: &Pool,
    clients: usize,
) -> Result<(Vec<Answer>, Vec<Stats>), CliError> {
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let clients = (0..clients).map(|name| client(engine, pool, name));
            let answers = block_on(join_all(clients)).into_iter();
            answers.collect::<Result<Vec<Vec<Answer>>, CliError>>()
        });
        let mut samples = Vec::new();
        while pool.dry.get().is_none() && !served.is_finished() {
            std::thread::sleep(SAMPLING);
            samples.push(engine.stats());
        }
        let answers = joined(served)?;
        Ok((answers.into_iter().flatten().collect(), samples))
    })
}

/// The median of those that were measured, in seconds; NaN where none was.
fn typical(samples: &[Stats], part: fn(&Stats) -> Duration) -> f64 {
    let parts = samples.iter().map(part).filter(|part| !part.is_zero());
    median(&parts.map(|part| part.as_secs_f64()).collect::<Vec<_>>())
}

impl Traffic {
    fn of(answers: &[Answer], busy: Range<Instant>) -> Self {
        let inside = |time: &Instant| *time <= busy.end;
        let begun = || {
            let first = |answer: &&Answer| answer.arrivals.first().is_some_and(inside);
            answers.iter().filter(first)
        };
        let generated = answers.iter().flat_map(|answer| &answer.arrivals);
        let generated = generated.filter(|time| inside(time)).count();
        let computed =
            begun().map(|answer| answer.usage.prompt_tokens - answer.usage.cached_tokens);
        let gaps = answers.iter().flat_map(|answer| answer.arrivals.windows(2));
        let gaps = gaps.filter(|pair| inside(&pair[1]));
        let seconds = (busy.end - busy.start).as_secs_f64();
        Self {
            requests: answers.len(),
            seconds,
            generated_per_second: generated as f64 / seconds,
            prompt_per_second: computed.sum::<usize>() as f64 / seconds,
            first_token: Spread::of(begun().map(Answer::first_token_ms).collect()),
            between_tokens: Spread::of(gaps.map(|pair| millis(pair[0], pair[1])).collect()),
        }
    }
}

impl Row {
    fn to_json(&self) -> Value {
        json!({
            "clients": self.clients,
            "requests": self.traffic.requests,
            "seconds": self.traffic.seconds,
            "generated_tokens_per_second": self.traffic.generated_per_second,
            "prompt_tokens_per_second": self.traffic.prompt_per_second,
            "first_token_ms": self.traffic.first_token.to_json(),
            "inter_token_ms": self.traffic.between_tokens.to_json(),
            "step_ms": self.step_ms,
            "engine_overhead_us": self.overhead_us,
            "steps": self.stats.steps,
            "preempted": self.stats.totals.preempted,
            "cache": {
                "hits": self.stats.cache.hits,
                "misses": self.stats.cache.misses,
                "hit_tokens": self.stats.cache.hit_tokens,
                "evictions": self.stats.cache.evictions,
            },
        })
    }
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        "clients",
        "generated/s",
        "prompt/s",
        "first token p50",
        "p95",
        "p99",
        "next token p50",
        "p95",
        "p99",
        "step ms",
        "own µs/step",
        "cache hits",
    ]);
    for row in rows {
        let spread = |spread: Spread| [spread.p50, spread.p95, spread.p99].map(|ms| number(ms, 1));
        let mut cells = vec![
            row.clients.to_string(),
            number(row.traffic.generated_per_second, 1),
            number(row.traffic.prompt_per_second, 1),
        ];
        cells.extend(spread(row.traffic.first_token));
        cells.extend(spread(row.traffic.between_tokens));
        cells.push(number(row.step_ms, 2));
        cells.push(number(row.overhead_us, 1));
        cells.push(row.stats.cache.hits.to_string());
        table.row(cells);
    }
    table.text() + "\nTokens per second over all clients; latencies in milliseconds.\n"
}

fn figure(rows: &[Row]) -> Figure {
    let line = |name: &str, value: &dyn Fn(&Row) -> f64| Line {
        name: name.to_owned(),
        points: rows
            .iter()
            .map(|row| (row.clients as f64, value(row)))
            .collect(),
        style: Style::Marked,
    };
    let panel = |title: &str, y: &str, lines: Vec<Line>| Panel {
        title: title.to_owned(),
        x: "clients".to_owned(),
        y: y.to_owned(),
        lines,
        shade: None,
    };
    let latency = |title: &str, part: fn(&Row) -> Spread| {
        let lines = vec![
            line("p50", &|row| part(row).p50),
            line("p95", &|row| part(row).p95),
            line("p99", &|row| part(row).p99),
        ];
        panel(title, "milliseconds", lines)
    };
    Figure {
        title: "Many clients".to_owned(),
        panels: vec![
            panel(
                "Throughput of all clients",
                "tokens per second",
                vec![
                    line("generated", &|row| row.traffic.generated_per_second),
                    line("prompt", &|row| row.traffic.prompt_per_second),
                ],
            ),
            latency("Time to first token", |row| row.traffic.first_token),
            latency("Time between tokens", |row| row.traffic.between_tokens),
        ],
    }
}

#[cfg(test)]
mod tests {
    use loquat_engine::Usage;

    use super::*;

    fn pool(until: Until) -> Pool {
        Pool {
            until,
            lengths: Lengths {
                prompt: Span { low: 2, high: 9 },
                output: Span { low: 1, high: 4 },
            },
            seed: 5,
            vocab_size: 100,
            started: Instant::now(),
            taken: AtomicUsize::new(0),
            dry: OnceLock::new(),
        }
    }

    #[test]
    fn every_run_takes_the_same_requests() {
        let drain = |pool: Pool| -> Vec<(Vec<u32>, usize)> {
            let requests = std::iter::from_fn(|| pool.take());
            requests
                .map(|request| (request.prompt, request.max_tokens))
                .collect()
        };
        let requests = drain(pool(Until::Requests(20)));
        assert_eq!(requests.len(), 20);
        assert_eq!(requests, drain(pool(Until::Requests(20))));
        assert_ne!(requests[0].0, requests[1].0);
        for (prompt, max_tokens) in &requests {
            assert!((2..=9).contains(&prompt.len()));
            assert!((1..=4).contains(max_tokens));
        }
    }

    #[test]
    fn a_closed_pool_and_a_late_one_give_nothing() {
        let closed = pool(Until::Requests(20));
        closed.close();
        assert!(closed.take().is_none());
        assert!(pool(Until::Elapsed(Duration::ZERO)).take().is_none());
    }

    #[test]
    fn what_comes_after_the_first_idle_client_is_left_out() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let answer = |submitted: u64, arrivals: &[u64]| Answer {
            submitted: at(submitted),
            arrivals: arrivals.iter().map(|ms| at(*ms)).collect(),
            choices: Vec::new(),
            ids: vec![0; arrivals.len()],
            usage: Usage {
                prompt_tokens: 30,
                completion_tokens: arrivals.len(),
                cached_tokens: 10,
            },
        };
        let answers = [answer(0, &[100, 200, 1200]), answer(900, &[1500, 1600])];
        let traffic = Traffic::of(&answers, start..at(1000));
        assert_eq!(traffic.generated_per_second, 2.0);
        assert_eq!(traffic.prompt_per_second, 20.0);
        assert_eq!(traffic.first_token.max, 100.0);
        assert_eq!(traffic.between_tokens.max, 100.0);
    }
}
