//! Many clients in a closed loop: each sends its next request after it has read the last answer.
//!
//! A request's prompt and lengths depend only on the seed and its index, so that every count of
//! clients serves the same requests.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use loquat_engine::{DiskOptions, Engine, EngineOptions, GenerateRequest, Stats};
use loquat_session::{Capabilities, Memory, Session};
use serde_json::{Value, json};

use futures_util::future::join_all;
use pollster::block_on;

use super::error::BenchError;
use super::figure::{Figure, Line, Panel, Style};
use super::random::{LengthRange, Random};
use super::report::{Report, Table, number};
use super::stats::{Spread, disk_json, median};
use super::timed_answer::{TimedAnswer, ask_async, greedy, join, millis};
use super::{Harness, Scenario, plain_options, warm_up};

/// How often the engine's statistics are sampled.
const SAMPLING_INTERVAL: Duration = Duration::from_millis(20);

pub struct Clients {
    /// Measured one after the other.
    pub counts: Vec<usize>,
    pub prompt: LengthRange,
    pub output: LengthRange,
    pub until: Until,
    pub max_slowdown: f32,
    pub seed: u64,
    /// Stores the cached prefixes on disk.
    pub kv_disk: Option<DiskOptions>,
}

/// When clients stop sending.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    Requests(usize),
    Elapsed(Duration),
}

impl Scenario for Clients {
    fn name(&self) -> &'static str {
        "clients"
    }

    fn sequences(&self) -> usize {
        self.counts.iter().copied().max().unwrap_or(1)
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let Self { prompt, output, .. } = self;
        let longest = prompt.high.saturating_add(output.high);
        let context = capabilities.max_context;
        if longest > context || memory.sequence_tokens(longest) > memory.kv_capacity {
            let what = format!("`--prompt-range {prompt}` with `--output-range {output}`");
            return Err(BenchError::does_not_fit(what, context, memory));
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        let mut session = warm_up(session)?;
        let mut rows = Vec::new();
        for (index, &clients) in self.counts.iter().enumerate() {
            let (row, returned) = self.measure(session, clients)?;
            session = returned;
            rows.push(row);
            harness.progress(index + 1, self.counts.len());
        }
        let until = match self.until {
            Until::Requests(requests) => format!("{requests} requests at each count"),
            Until::Elapsed(time) => format!("{} s at each count", time.as_secs()),
        };
        let Self { prompt, output, .. } = self;
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

/// The shared queue of requests.
struct RequestPool<'a> {
    scenario: &'a Clients,
    vocab_size: usize,
    started: Instant,
    taken: AtomicUsize,
    /// When the first client found the pool empty; all were busy until then.
    exhausted: OnceLock<Instant>,
}

impl RequestPool<'_> {
    fn next(&self) -> Option<GenerateRequest> {
        let index = self.taken.fetch_add(1, Ordering::Relaxed);
        let left = self.exhausted.get().is_none()
            && match self.scenario.until {
                Until::Requests(requests) => index < requests,
                Until::Elapsed(time) => self.started.elapsed() < time,
            };
        if !left {
            self.close();
            return None;
        }
        let mut random = Random::new(self.scenario.seed, index as u64);
        let prompt = random.length(self.scenario.prompt);
        let output = random.length(self.scenario.output);
        Some(greedy(random.tokens(self.vocab_size, prompt), output))
    }

    fn close(&self) {
        self.exhausted.get_or_init(Instant::now);
    }
}

async fn client(
    engine: &Engine,
    pool: &RequestPool<'_>,
    name: usize,
) -> Result<Vec<TimedAnswer>, BenchError> {
    let mut answers = Vec::new();
    while let Some(request) = pool.next() {
        let request = GenerateRequest {
            client: Some(format!("client {name}")),
            ..request
        };
        match ask_async(engine, request).await {
            Ok(answer) => answers.push(answer),
            Err(error) => {
                pool.close();
                return Err(error);
            }
        }
    }
    Ok(answers)
}

/// Results for one count of clients.
struct Row {
    clients: usize,
    traffic: Traffic,
    step_ms: f64,
    overhead_us: f64,
    stats: Stats,
}

/// What the clients saw while all of them were busy.
struct Traffic {
    /// All requests, including those that ended later.
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
    ) -> Result<(Row, Box<dyn Session>), BenchError> {
        let vocab_size = session.capabilities().vocab_size;
        let options = EngineOptions {
            max_queue: EngineOptions::default().max_queue.max(clients),
            max_slowdown: self.max_slowdown,
            kv_disk: self.kv_disk.clone(),
            ..plain_options()
        };
        let engine = Engine::start(session, None, options)?;
        let pool = self.pool(vocab_size);
        let (answers, samples) = serve(&engine, &pool, clients)?;
        let end = *pool.exhausted.get_or_init(Instant::now);
        let stats = engine.stats();
        let row = Row {
            clients,
            traffic: Traffic::from_answers(&answers, pool.started..end),
            step_ms: median_seconds(&samples, |stats| stats.step_time) * 1e3,
            overhead_us: median_seconds(&samples, |stats| stats.overhead) * 1e6,
            stats,
        };
        Ok((row, engine.into_session()?))
    }

    fn pool(&self, vocab_size: usize) -> RequestPool<'_> {
        RequestPool {
            scenario: self,
            vocab_size,
            started: Instant::now(),
            taken: AtomicUsize::new(0),
            exhausted: OnceLock::new(),
        }
    }
}

/// All answers, and samples of the engine's statistics.
fn serve(
    engine: &Engine,
    pool: &RequestPool<'_>,
    clients: usize,
) -> Result<(Vec<TimedAnswer>, Vec<Stats>), BenchError> {
    std::thread::scope(|scope| {
        let served = scope.spawn(move || {
            let clients = (0..clients).map(|name| client(engine, pool, name));
            let answers = block_on(join_all(clients)).into_iter();
            answers.collect::<Result<Vec<Vec<TimedAnswer>>, BenchError>>()
        });
        let mut samples = Vec::new();
        while pool.exhausted.get().is_none() && !served.is_finished() {
            std::thread::sleep(SAMPLING_INTERVAL);
            samples.push(engine.stats());
        }
        let answers = join(served)?;
        // At least one sample, however fast the answers were.
        samples.push(engine.stats());
        Ok((answers.into_iter().flatten().collect(), samples))
    })
}

/// The median of the nonzero samples, in seconds; NaN if there are none.
fn median_seconds(samples: &[Stats], duration: fn(&Stats) -> Duration) -> f64 {
    let measured = samples.iter().map(duration).filter(|time| !time.is_zero());
    median(&measured.map(|time| time.as_secs_f64()).collect::<Vec<_>>())
}

impl Traffic {
    fn from_answers(answers: &[TimedAnswer], busy: Range<Instant>) -> Self {
        let inside = |time: &Instant| *time <= busy.end;
        let begun = || {
            let first = |answer: &&TimedAnswer| answer.arrivals.first().is_some_and(inside);
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
            first_token: Spread::from_values(begun().map(TimedAnswer::first_token_ms).collect()),
            between_tokens: Spread::from_values(
                gaps.map(|pair| millis(pair[0], pair[1])).collect(),
            ),
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
            "kv_disk": disk_json(&self.stats),
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

    fn clients(until: Until) -> Clients {
        Clients {
            counts: vec![1],
            prompt: LengthRange { low: 2, high: 9 },
            output: LengthRange { low: 1, high: 4 },
            until,
            max_slowdown: 2.0,
            seed: 5,
            kv_disk: None,
        }
    }

    #[test]
    fn every_run_sends_same_requests() {
        let drain = |clients: Clients| -> Vec<(Vec<u32>, usize)> {
            let pool = clients.pool(100);
            let requests = std::iter::from_fn(|| pool.next());
            requests
                .map(|request| (request.prompt, request.max_tokens))
                .collect()
        };
        let requests = drain(clients(Until::Requests(20)));
        assert_eq!(requests.len(), 20);
        assert_eq!(requests, drain(clients(Until::Requests(20))));
        assert_ne!(requests[0].0, requests[1].0);
        for (prompt, max_tokens) in &requests {
            assert!((2..=9).contains(&prompt.len()));
            assert!((1..=4).contains(max_tokens));
        }
    }

    #[test]
    fn closed_and_expired_pools_are_empty() {
        let open = clients(Until::Requests(20));
        let closed = open.pool(100);
        closed.close();
        assert!(closed.next().is_none());
        let expired = clients(Until::Elapsed(Duration::ZERO));
        assert!(expired.pool(100).next().is_none());
    }

    #[test]
    fn tokens_after_first_idle_client_are_ignored() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let answer = |submitted: u64, arrivals: &[u64]| TimedAnswer {
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
        let traffic = Traffic::from_answers(&answers, start..at(1000));
        assert_eq!(traffic.generated_per_second, 2.0);
        assert_eq!(traffic.prompt_per_second, 20.0);
        assert_eq!(traffic.first_token.max, 100.0);
        assert_eq!(traffic.between_tokens.max, 100.0);
    }
}
