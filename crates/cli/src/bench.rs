//! `loquat bench`: the engine's speed beside the bare session's, in interleaved rounds.
//!
//! Both run the same session object, handed back and forth, so that their ratio is the
//! engine's own cost and nothing else.

use std::time::{Duration, Instant};

use loquat_session::Session;
use serde_json::json;

use crate::args::BenchArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, locate, open_store};
use crate::measure::{Work, bare, through_engine};
use crate::progress::ShareBar;
use crate::terminal::print;

/// Tokens per second, round by round.
#[derive(Default)]
struct Speeds {
    engine: Vec<f64>,
    session: Vec<f64>,
}

pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let store = open_store()?;
    let backend = backends::select(&args.session.backend)?;
    let model = Model::open(&locate(&store, args.model.as_deref())?)?;
    let works = works(args);
    let sequences = works.iter().map(Work::batch).max().unwrap_or(1);
    let options = args.session.options(sequences);
    let started = Instant::now();
    let mut session = model.session(backend, &options)?;
    let load = started.elapsed();
    check(&works, session.as_ref())?;
    let device = session.capabilities().device.clone();

    let bar = ShareBar::start(&format!("measuring {}", model.name));
    let mut speeds: Vec<Speeds> = works.iter().map(|_| Speeds::default()).collect();
    // The first round warms caches and clocks, and is not counted.
    for round in 0..=args.rounds.get() {
        for (work, speeds) in works.iter().zip(&mut speeds) {
            let bare = bare(session.as_mut(), *work)?;
            let (engine, returned) = through_engine(session, *work)?;
            session = returned;
            if round > 0 {
                speeds.session.push(bare);
                speeds.engine.push(engine);
            }
        }
        bar.set((round + 1) as f32 / (args.rounds.get() + 1) as f32);
    }
    drop(bar);
    let report = match args.json {
        true => as_json(&model, &device, load, &works, &speeds)?,
        false => as_table(&model, &device, load, &works, &speeds),
    };
    print(&report)
}

fn works(args: &BenchArgs) -> Vec<Work> {
    let prompts = args.prompt_tokens.iter().map(|tokens| Work::Prompt {
        tokens: tokens.get(),
    });
    let decodes = args.depth.iter().flat_map(|depth| {
        args.batch.iter().map(|batch| Work::Decode {
            tokens: args.decode_tokens.get(),
            depth: depth.get(),
            batch: batch.get(),
        })
    });
    prompts.chain(decodes).collect()
}

/// Refuses, before anything runs, what would not fit.
fn check(works: &[Work], session: &dyn Session) -> Result<(), CliError> {
    let (capabilities, memory) = (session.capabilities(), session.memory());
    let context = capabilities.max_context;
    for work in works {
        let batch = work.batch();
        if batch > capabilities.max_step_tokens {
            return Err(CliError::Usage {
                what: format!("`--batch {batch}`"),
                expected: format!("at most {}, a step's tokens", capabilities.max_step_tokens),
            });
        }
        let len = work.len(capabilities).filter(|len| *len <= context);
        let held = len.map(|len| len.next_multiple_of(memory.kv_granularity.max(1)));
        let fits = held
            .and_then(|held| held.checked_mul(batch))
            .is_some_and(|all| all <= memory.kv_capacity);
        if !fits {
            let capacity = memory.kv_capacity;
            return Err(CliError::Usage {
                what: format!("`{}`", work.name()),
                expected: format!("within the context of {context} and {capacity} tokens of KV"),
            });
        }
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => (sorted[len / 2 - 1] + sorted[len / 2]) / 2.0,
    }
}

impl Speeds {
    /// The median of the rounds' own ratios: each compares two runs made back to back.
    fn ratio(&self) -> f64 {
        let ratios: Vec<f64> = self
            .engine
            .iter()
            .zip(&self.session)
            .map(|(e, s)| e / s)
            .collect();
        median(&ratios)
    }
}

fn as_table(
    model: &Model,
    device: &str,
    load: Duration,
    works: &[Work],
    speeds: &[Speeds],
) -> String {
    let rounds = match speeds.first().map_or(0, |speeds| speeds.engine.len()) {
        1 => "one round".to_owned(),
        rounds => format!("median of {rounds} rounds"),
    };
    let mut text = format!(
        "{} on {device}, loaded in {:.2} s, {rounds}, tokens/s\n\n{:<24}{:>10}{:>10}{:>8}\n",
        model.name,
        load.as_secs_f64(),
        "",
        "engine",
        "session",
        "ratio",
    );
    for (work, speeds) in works.iter().zip(speeds) {
        text.push_str(&format!(
            "{:<24}{:>10.1}{:>10.1}{:>8.3}\n",
            work.name(),
            median(&speeds.engine),
            median(&speeds.session),
            speeds.ratio(),
        ));
    }
    text
}

fn as_json(
    model: &Model,
    device: &str,
    load: Duration,
    works: &[Work],
    speeds: &[Speeds],
) -> Result<String, CliError> {
    let results: Vec<_> = works
        .iter()
        .zip(speeds)
        .map(|(work, speeds)| {
            let (kind, tokens, depth) = match *work {
                Work::Prompt { tokens } => ("prompt", tokens, 0),
                Work::Decode { tokens, depth, .. } => ("decode", tokens, depth),
            };
            json!({
                "work": kind,
                "tokens": tokens,
                "depth": depth,
                "batch": work.batch(),
                "engine_tokens_per_second": median(&speeds.engine),
                "session_tokens_per_second": median(&speeds.session),
                "ratio": speeds.ratio(),
                "engine_rounds": speeds.engine,
                "session_rounds": speeds.session,
            })
        })
        .collect();
    let report = json!({
        "model": model.name,
        "device": device,
        "load_seconds": load.as_secs_f64(),
        "results": results,
    });
    let text = serde_json::to_string_pretty(&report);
    Ok(text.map_err(|error| CliError::Output(error.into()))? + "\n")
}
