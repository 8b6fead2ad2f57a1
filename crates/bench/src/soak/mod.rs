//! Chaos clients on little memory, and checks that nothing leaks or is lost.

mod chaos_client;
mod checks;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, Stats};
use loquat_server::resident_bytes;
use loquat_session::{Capabilities, Memory, Session, SessionOptions};
use serde_json::{Value, json};

use super::error::BenchError;
use super::figure::{Figure, Line, Panel, Style};
use super::random::LengthRange;
use super::report::{Report, Table};
use super::timed_answer::join;
use super::{Harness, Scenario};
use chaos_client::{ChaosClient, RecentPrompts, SharedInputs, Tally};
use checks::{Check, Evidence, Outcome};

const CLIENTS: usize = 24;
/// Small enough that requests for several choices are sometimes refused.
const MAX_QUEUE: usize = CLIENTS;
/// Small enough that a client that stops reading soon pauses its sequence.
const EVENT_BUFFER: usize = 8;
/// The context for which prompts and answers are sized, unless the model's is shorter.
const CONTEXT: usize = 512;
/// The shortest context in which the clients' requests differ.
const MIN_CONTEXT: usize = 64;
/// KV for three contexts: the clients need more at once, so that requests wait, prefixes are
/// evicted and sequences are preempted.
const KV_CONTEXTS: usize = 3;
/// How long the engine may take to end open streams after the clients stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may then take to release everything.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Soak {
    pub time: Duration,
    pub seed: u64,
}

/// The engine and the process at one time.
struct Sample {
    seconds: f64,
    resident: Option<u64>,
    stats: Stats,
}

impl Soak {
    /// Runs the clients and samples until the last one has stopped.
    fn serve(
        &self,
        engine: &Engine,
        shared: &SharedInputs<'_>,
        harness: &Harness<'_>,
    ) -> (Vec<Tally>, Vec<Sample>, bool) {
        let (started, deadline) = (Instant::now(), Instant::now() + self.time);
        // At least 32 samples.
        let interval = Duration::from_secs(1).min(self.time / 32);
        let mut samples = Vec::new();
        let mut stuck = false;
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|name| {
                    let client = ChaosClient::new(engine, shared, self.seed, name);
                    scope.spawn(move || client.run_until(deadline))
                })
                .collect();
            while !clients.iter().all(|client| client.is_finished()) {
                std::thread::sleep(interval);
                samples.push(Sample {
                    seconds: started.elapsed().as_secs_f64(),
                    resident: resident_bytes(),
                    stats: engine.stats(),
                });
                (harness.progress)(started.elapsed().as_secs_f32() / self.time.as_secs_f32());
                if !stuck && Instant::now() > deadline + DRAIN_TIMEOUT {
                    // Ends every open stream, so that the clients can report it.
                    engine.shutdown();
                    stuck = true;
                }
            }
            (clients.into_iter().map(join).collect(), samples, stuck)
        })
    }
}

impl Scenario for Soak {
    fn name(&self) -> &'static str {
        "soak"
    }

    fn sequences(&self) -> usize {
        CLIENTS
    }

    fn adapt(&self, options: &mut SessionOptions, context: usize) {
        let context = options.context.unwrap_or(context).min(CONTEXT);
        options.kv_tokens = Some(KV_CONTEXTS * context);
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), BenchError> {
        let kv_capacity = memory.longest_sequence(capabilities.max_context);
        let context = capabilities.max_context;
        if context < MIN_CONTEXT || kv_capacity < MIN_CONTEXT {
            return Err(BenchError::Usage {
                what: format!("`--soak`: the context ({context}) and KV tokens ({kv_capacity})"),
                expected: format!("at least {MIN_CONTEXT}"),
            });
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>, harness: &Harness<'_>) -> Result<Report, BenchError> {
        let (capabilities, memory) = (session.capabilities().clone(), session.memory());
        let context = memory.longest_sequence(capabilities.max_context);
        let context = context.min(CONTEXT);
        let recent = Mutex::new(RecentPrompts::default());
        let shared = SharedInputs {
            capabilities: &capabilities,
            prompts: LengthRange {
                low: 1,
                high: context / 2,
            },
            outputs: LengthRange {
                low: 1,
                high: context / 4,
            },
            recent: &recent,
        };
        let options = EngineOptions {
            max_queue: MAX_QUEUE,
            event_buffer: EVENT_BUFFER,
            ..EngineOptions::default()
        };
        let engine = Engine::start(session, None, options)?;
        let (tallies, samples, stuck) = self.serve(&engine, &shared, harness);
        let tally = tallies.into_iter().fold(Tally::default(), Tally::merge);
        let quiet = settle(&engine, |stats| stats.running + stats.waiting == 0);
        engine.clear_cache();
        let empty = settle(&engine, |stats| {
            stats.memory.kv_in_use + stats.memory.states_in_use + stats.kv_reserved == 0
        });
        let evidence = Evidence {
            time: self.time,
            tally,
            quiet,
            empty,
            stuck,
            resident: samples.iter().map(|sample| sample.resident).collect(),
        };
        Ok(self.report(&evidence, &samples))
    }
}

/// Polls until the statistics satisfy `done`, at most for the timeout.
fn settle(engine: &Engine, done: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = Instant::now() + RELEASE_TIMEOUT;
    loop {
        let stats = engine.stats();
        if done(&stats) || Instant::now() > deadline {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Soak {
    fn report(&self, evidence: &Evidence, samples: &[Sample]) -> Report {
        let checks = evidence.checks();
        let failed = checks
            .iter()
            .filter(|check| check.outcome == Outcome::Failed);
        Report {
            heading: format!("{CLIENTS} clients for {} s", self.time.as_secs()),
            text: text(evidence, &checks),
            json: self.json(evidence, &checks, samples),
            figure: Some(figure(samples)),
            failures: failed
                .map(|check| format!("{}: {}", check.name, check.detail))
                .collect(),
        }
    }

    fn json(&self, evidence: &Evidence, checks: &[Check], samples: &[Sample]) -> Value {
        let Evidence { tally, empty, .. } = evidence;
        let totals = &empty.totals;
        let checks = checks.iter().map(|check| {
            json!({
                "name": check.name,
                "outcome": check.outcome.name(),
                "detail": check.detail,
            })
        });
        let samples = samples.iter().map(|sample| {
            json!({
                "seconds": sample.seconds,
                "resident_bytes": sample.resident,
                "running": sample.stats.running,
                "paused": sample.stats.paused,
                "waiting": sample.stats.waiting,
                "kv_in_use": sample.stats.memory.kv_in_use,
                "kv_reserved": sample.stats.kv_reserved,
            })
        });
        json!({
            "seed": self.seed,
            "seconds": self.time.as_secs(),
            "clients": CLIENTS,
            "checks": checks.collect::<Vec<_>>(),
            "seen_by_clients": tally.to_json(),
            "totals": {
                "submitted": totals.submitted,
                "finished": totals.finished,
                "failed": totals.failed,
                "cancelled": totals.cancelled,
                "timed_out": totals.timed_out,
                "refused": totals.refused,
                "preempted": totals.preempted,
                "prompt_tokens": totals.prompt_tokens,
                "cached_tokens": totals.cached_tokens,
                "completion_tokens": totals.completion_tokens,
            },
            "cache": {
                "hits": empty.cache.hits,
                "misses": empty.cache.misses,
                "hit_tokens": empty.cache.hit_tokens,
                "evictions": empty.cache.evictions,
            },
            "steps": empty.steps,
            "samples": samples.collect::<Vec<_>>(),
        })
    }
}

fn text(evidence: &Evidence, checks: &[Check]) -> String {
    let totals = &evidence.empty.totals;
    let mut table = Table::new(&["", ""]);
    for (name, count) in [
        ("submitted", totals.submitted),
        ("finished", totals.finished),
        ("cancelled", totals.cancelled),
        ("timed out", totals.timed_out),
        ("failed", totals.failed),
        ("refused", totals.refused),
        ("preempted", totals.preempted),
        ("cache hits", evidence.empty.cache.hits),
        ("evictions", evidence.empty.cache.evictions),
        ("tokens generated", totals.completion_tokens),
    ] {
        table.row([name.to_owned(), count.to_string()]);
    }
    let lines = checks.iter().map(|check| {
        let (outcome, name) = (check.outcome.name(), check.name);
        format!("{outcome:<14}{name}: {}\n", check.detail)
    });
    format!(
        "{}\n{}",
        table.text().trim_start(),
        lines.collect::<String>()
    )
}

fn figure(samples: &[Sample]) -> Figure {
    let line = |name: &str, value: &dyn Fn(&Sample) -> f64| Line {
        name: name.to_owned(),
        points: (samples.iter())
            .map(|sample| (sample.seconds, value(sample)))
            .collect(),
        style: Style::Plain,
    };
    let panel = |title: &str, y: &str, lines: Vec<Line>| Panel {
        title: title.to_owned(),
        x: "seconds".to_owned(),
        y: y.to_owned(),
        lines,
        shade: None,
    };
    let megabytes = |sample: &Sample| {
        let bytes = sample.resident;
        bytes.map_or(f64::NAN, |bytes| bytes as f64 / 1e6)
    };
    Figure {
        title: "Soak".to_owned(),
        panels: vec![
            panel(
                "Memory of the process",
                "MB",
                vec![line("resident", &megabytes)],
            ),
            panel(
                "KV",
                "tokens",
                vec![
                    line("in use", &|sample| sample.stats.memory.kv_in_use as f64),
                    line("reserved", &|sample| sample.stats.kv_reserved as f64),
                ],
            ),
            panel(
                "Requests",
                "requests",
                vec![
                    line("running", &|sample| sample.stats.running as f64),
                    line("waiting", &|sample| sample.stats.waiting as f64),
                ],
            ),
        ],
    }
}
