//! Hours in minutes: random clients on little memory, and an account of all they left behind.

mod checks;
mod guest;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, Stats};
use loquat_server::resident_bytes;
use loquat_session::{Capabilities, Memory, Session, SessionOptions};
use serde_json::{Value, json};

use super::Scenario;
use super::figure::{Figure, Line, Panel, Style};
use super::reading::joined;
use super::report::{Report, Table};
use crate::args::{BenchArgs, Span};
use crate::error::CliError;
use crate::progress::ShareBar;
use checks::{Account, Check, Outcome};
use guest::{Guest, Memories, Tally, World};

const GUESTS: usize = 24;
/// Few enough that guests who want choices are turned away at times.
const MAX_QUEUE: usize = GUESTS;
/// Few enough that a guest who stops reading soon pauses its sequence.
const EVENT_BUFFER: usize = 8;
/// What prompts and answers are sized by; a shorter context counts instead.
const ROOM: usize = 512;
/// The least context in which the guests' requests differ.
const LEAST_CONTEXT: usize = 64;
/// KV for three times the room: the guests want more than that at once, so that requests wait,
/// prefixes are evicted and sequences make room for others.
const KV_ROOMS: usize = 3;
/// How long the engine may take to end what is open when the guests go home.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long it may take to give everything back then.
const SETTLING: Duration = Duration::from_secs(10);

pub struct Soak {
    time: Duration,
    seed: u64,
}

/// The engine and the process at a moment.
struct Sample {
    seconds: f64,
    resident: Option<u64>,
    stats: Stats,
}

impl Soak {
    pub fn new(args: &BenchArgs, seconds: std::num::NonZeroUsize) -> Self {
        Self {
            time: Duration::from_secs(seconds.get() as u64),
            seed: args.seed,
        }
    }

    /// Lets the guests in, and watches until the last has gone.
    fn hold(&self, engine: &Engine, world: &World<'_>) -> (Vec<Tally>, Vec<Sample>, bool) {
        let bar = ShareBar::start("soaking");
        let (started, deadline) = (Instant::now(), Instant::now() + self.time);
        // A second, or less where that would give too few to compare.
        let rhythm = Duration::from_secs(1).min(self.time / 32);
        let mut samples = Vec::new();
        let mut stuck = false;
        std::thread::scope(|scope| {
            let guests: Vec<_> = (0..GUESTS)
                .map(|name| {
                    let guest = Guest::new(engine, world, self.seed, name);
                    scope.spawn(move || guest.stay_until(deadline))
                })
                .collect();
            while !guests.iter().all(|guest| guest.is_finished()) {
                std::thread::sleep(rhythm);
                samples.push(Sample {
                    seconds: started.elapsed().as_secs_f64(),
                    resident: resident_bytes(),
                    stats: engine.stats(),
                });
                bar.set(started.elapsed().as_secs_f32() / self.time.as_secs_f32());
                if !stuck && Instant::now() > deadline + PATIENCE {
                    // Ends every open stream, so that the guests can tell of it.
                    engine.shutdown();
                    stuck = true;
                }
            }
            (guests.into_iter().map(joined).collect(), samples, stuck)
        })
    }
}

impl Scenario for Soak {
    fn name(&self) -> &'static str {
        "soak"
    }

    fn sequences(&self) -> usize {
        GUESTS
    }

    fn adapt(&self, options: &mut SessionOptions, context: usize) {
        let room = options.context.unwrap_or(context).min(ROOM);
        options.kv_tokens = Some(KV_ROOMS * room);
    }

    fn check(&self, capabilities: &Capabilities, memory: &Memory) -> Result<(), CliError> {
        let Memory { kv_capacity, .. } = *memory;
        let context = capabilities.max_context;
        if context < LEAST_CONTEXT || kv_capacity < LEAST_CONTEXT {
            return Err(CliError::Usage {
                what: format!("a context of {context} with {kv_capacity} tokens of KV"),
                expected: format!("at least {LEAST_CONTEXT} of both for `--soak`"),
            });
        }
        Ok(())
    }

    fn run(&self, session: Box<dyn Session>) -> Result<Report, CliError> {
        let (capabilities, memory) = (session.capabilities().clone(), session.memory());
        let room = capabilities.max_context.min(memory.kv_capacity).min(ROOM);
        let memories = Mutex::new(Memories::default());
        let world = World {
            capabilities: &capabilities,
            prompts: Span {
                low: 1,
                high: room / 2,
            },
            outputs: Span {
                low: 1,
                high: room / 4,
            },
            memories: &memories,
        };
        let options = EngineOptions {
            max_queue: MAX_QUEUE,
            event_buffer: EVENT_BUFFER,
            ..EngineOptions::default()
        };
        let engine = Engine::start(session, None, options)?;
        let (tallies, samples, stuck) = self.hold(&engine, &world);
        let tally = tallies.into_iter().fold(Tally::default(), Tally::and);
        let quiet = settle(&engine, |stats| stats.running + stats.waiting == 0);
        engine.clear_cache();
        let empty = settle(&engine, |stats| {
            stats.memory.kv_in_use + stats.memory.states_in_use + stats.kv_reserved == 0
        });
        let account = Account {
            tally,
            quiet,
            empty,
            stuck,
            resident: samples.iter().map(|sample| sample.resident).collect(),
        };
        Ok(self.report(&account, &samples))
    }
}

/// Waits until it is so, or for so long that it never will be.
fn settle(engine: &Engine, wanted: impl Fn(&Stats) -> bool) -> Stats {
    let deadline = Instant::now() + SETTLING;
    loop {
        let stats = engine.stats();
        if wanted(&stats) || Instant::now() > deadline {
            return stats;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Soak {
    fn report(&self, account: &Account, samples: &[Sample]) -> Report {
        let checks = account.checks();
        let broken = checks
            .iter()
            .filter(|check| check.outcome == Outcome::Broken);
        Report {
            heading: format!("{GUESTS} clients for {} s", self.time.as_secs()),
            text: text(account, &checks),
            json: self.json(account, &checks, samples),
            figure: Some(figure(samples)),
            failures: broken
                .map(|check| format!("{}: {}", check.name, check.detail))
                .collect(),
        }
    }

    fn json(&self, account: &Account, checks: &[Check], samples: &[Sample]) -> Value {
        let Account { tally, empty, .. } = account;
        let totals = &empty.totals;
        let checks = checks.iter().map(|check| {
            json!({
                "name": check.name,
                "outcome": check.outcome.word(),
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
            "clients": GUESTS,
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

fn text(account: &Account, checks: &[Check]) -> String {
    let totals = &account.empty.totals;
    let mut table = Table::new(&["", ""]);
    for (name, count) in [
        ("submitted", totals.submitted),
        ("finished", totals.finished),
        ("cancelled", totals.cancelled),
        ("timed out", totals.timed_out),
        ("failed", totals.failed),
        ("refused", totals.refused),
        ("preempted", totals.preempted),
        ("cache hits", account.empty.cache.hits),
        ("evictions", account.empty.cache.evictions),
        ("tokens generated", totals.completion_tokens),
    ] {
        table.row(vec![name.to_owned(), count.to_string()]);
    }
    let lines = checks.iter().map(|check| {
        let (outcome, name) = (check.outcome.word(), check.name);
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
