//! `loquat bench`: the engine's speed beside the bare session's, in interleaved rounds.
//!
//! Both run the same session object, handed back and forth, so that their ratio is the
//! engine's own cost and nothing else.

use std::time::{Duration, Instant};

use loquat_engine::{Engine, EngineOptions, GenerateRequest, SamplingParams};
use loquat_session::{Emit, SequenceId, Session, SessionError, StepBatch, StepOutput};
use serde_json::json;

use crate::args::BenchArgs;
use crate::backends;
use crate::error::CliError;
use crate::load::{Model, locate, open_store};
use crate::terminal::print;

/// What one row of the table measures.
#[derive(Debug, Clone, Copy)]
enum Work {
    Prompt {
        tokens: usize,
    },
    Decode {
        tokens: usize,
        depth: usize,
        batch: usize,
    },
}

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

    let mut speeds: Vec<Speeds> = works.iter().map(|_| Speeds::default()).collect();
    // The first round warms caches and clocks, and is not counted.
    for round in 0..=args.rounds.get() {
        for (work, speeds) in works.iter().zip(&mut speeds) {
            let bare = bare(session.as_mut(), *work)?;
            let (engine, returned) = through_engine(session, *work)?;
            session = returned;
            if round > 0 {
                speeds
                    .session
                    .push(work.tokens() as f64 / bare.as_secs_f64());
                speeds
                    .engine
                    .push(work.tokens() as f64 / engine.as_secs_f64());
            }
        }
    }
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

impl Work {
    fn batch(&self) -> usize {
        match self {
            Work::Prompt { .. } => 1,
            Work::Decode { batch, .. } => *batch,
        }
    }

    /// Tokens the measured time is divided by.
    fn tokens(&self) -> usize {
        match self {
            Work::Prompt { tokens } => *tokens,
            Work::Decode { tokens, batch, .. } => tokens * batch,
        }
    }

    /// Prompt and generated tokens of one sequence.
    fn shape(&self) -> (usize, usize) {
        match *self {
            Work::Prompt { tokens } => (tokens, 1),
            // One token comes with the prompt, outside the measured time.
            Work::Decode { tokens, depth, .. } => (depth, tokens + 1),
        }
    }

    fn name(&self) -> String {
        match self {
            Work::Prompt { tokens } => format!("prompt {tokens}"),
            Work::Decode {
                tokens,
                depth,
                batch,
            } => {
                let batch = if *batch > 1 {
                    format!(" × {batch}")
                } else {
                    String::new()
                };
                format!("decode {tokens}{batch} at {depth}")
            }
        }
    }
}

fn check(works: &[Work], session: &dyn Session) -> Result<(), CliError> {
    let context = session.capabilities().max_context;
    let capacity = session.memory().kv_capacity;
    for work in works {
        let (prompt, generated) = work.shape();
        let len = prompt + generated;
        if len > context || len * work.batch() > capacity {
            return Err(CliError::Usage {
                what: match work.batch() {
                    1 => format!("`{}`, {len} tokens in all,", work.name()),
                    batch => format!("`{}`, {batch} × {len} tokens in all,", work.name()),
                },
                expected: format!("within the context of {context} and {capacity} tokens of KV"),
            });
        }
    }
    Ok(())
}

/// Tokens that no prefix cache has seen, the same in every round.
fn prompt(session_vocab: usize, len: usize, sequence: usize) -> Vec<u32> {
    let vocab = session_vocab as u64;
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_add(sequence as u64 * 7919);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab) as u32
    };
    (0..len).map(|_| next()).collect()
}

/// The loop a program without an engine would write.
fn bare(session: &mut dyn Session, work: Work) -> Result<Duration, CliError> {
    let device = |error: SessionError| CliError::Engine(error.into());
    let (prompt_len, generated) = work.shape();
    let (vocab, chunk) = {
        let capabilities = session.capabilities();
        (capabilities.vocab_size, capabilities.max_step_tokens)
    };
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let started = Instant::now();
    let mut rows: Vec<(SequenceId, u32)> = Vec::new();
    for index in 0..work.batch() {
        let sequence = session.create().map_err(device)?;
        let tokens = prompt(vocab, prompt_len, index);
        let chunks = tokens.chunks(chunk);
        let last = chunks.len() - 1;
        for (place, tokens) in chunks.enumerate() {
            let emit = match place == last {
                true => Emit::Greedy { positions: 1 },
                false => Emit::Nothing,
            };
            batch.clear();
            batch.push(sequence, tokens, emit);
            step(session, &batch, &mut output)?;
        }
        rows.push((sequence, output.greedy(0)[0]));
    }
    let prompted = Instant::now();
    for _ in 1..generated {
        batch.clear();
        for (sequence, token) in &rows {
            batch.push(*sequence, &[*token], Emit::Greedy { positions: 1 });
        }
        step(session, &batch, &mut output)?;
        for (row, (_, token)) in rows.iter_mut().enumerate() {
            *token = output.greedy(row)[0];
        }
    }
    let ended = Instant::now();
    for (sequence, _) in rows {
        session.release(sequence).map_err(device)?;
    }
    Ok(match work {
        Work::Prompt { .. } => prompted - started,
        Work::Decode { .. } => ended - prompted,
    })
}

fn step(
    session: &mut dyn Session,
    batch: &StepBatch,
    output: &mut StepOutput,
) -> Result<(), CliError> {
    let failed = |error: SessionError| CliError::Engine(error.into());
    session.step(batch, output).map_err(failed)?;
    match output.rows().iter().find_map(|row| row.error.clone()) {
        Some(error) => Err(failed(error)),
        None => Ok(()),
    }
}

fn through_engine(
    session: Box<dyn Session>,
    work: Work,
) -> Result<(Duration, Box<dyn Session>), CliError> {
    let vocab = session.capabilities().vocab_size;
    let (prompt_len, generated) = work.shape();
    let engine = Engine::start(session, None, EngineOptions::default())?;
    let requests: Vec<GenerateRequest> = (0..work.batch())
        .map(|index| GenerateRequest {
            prompt: prompt(vocab, prompt_len, index),
            max_tokens: generated,
            sampling: SamplingParams::greedy(),
            ..GenerateRequest::default()
        })
        .collect();
    let mut generations = Vec::new();
    for request in requests {
        generations.push(engine.submit(request)?);
    }
    let mut longest = Duration::ZERO;
    for generation in generations {
        let timings = generation.collect_blocking()?.timings;
        longest = longest.max(match work {
            Work::Prompt { .. } => timings.first_token,
            Work::Decode { .. } => timings.decode,
        });
    }
    Ok((longest, engine.into_session()?))
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
            let (depth, batch) = match work {
                Work::Prompt { .. } => (0, 1),
                Work::Decode { depth, batch, .. } => (*depth, *batch),
            };
            json!({
                "work": if matches!(work, Work::Prompt { .. }) { "prompt" } else { "decode" },
                "tokens": work.tokens() / batch,
                "depth": depth,
                "batch": batch,
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
