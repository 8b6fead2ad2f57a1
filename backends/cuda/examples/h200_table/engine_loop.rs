//! Workloads through the engine, over the session that the bare loop used.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use loquat_engine::{
    Engine, EngineError, EngineOptions, Event, GenerateRequest, Generation, SamplingParams,
    SpeculationMode, SpeculationOptions,
};
use loquat_session::Session;
use pollster::block_on;

use crate::Failure;
use crate::model::prompt;
use crate::session_loop::{WARM_UP, Workload};

/// Between the warm-up and what is measured.
const IDLE: Duration = Duration::from_millis(50);

/// Tokens per second, and the session back.
pub fn run(session: Box<dyn Session>, work: Workload) -> Result<(f64, Box<dyn Session>), Failure> {
    let (vocab_size, step_tokens) = {
        let capabilities = session.capabilities();
        (capabilities.vocab_size, capabilities.max_step_tokens)
    };
    // If prompts were held back, the first sequences would end before the last begin.
    let options = EngineOptions {
        max_slowdown: f32::INFINITY,
        // Each step is to compute one token of each sequence.
        speculation: SpeculationOptions {
            mode: SpeculationMode::Off,
            ..SpeculationOptions::default()
        },
        ..EngineOptions::default()
    };
    let engine = Engine::start(session, None, options)?;
    let request = |index, max_tokens| GenerateRequest {
        prompt: prompt(vocab_size, work.prompt_tokens(), index),
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    };
    // The engine's thread is new to the device.
    block_on(arrivals(engine.submit(request(work.batch(), WARM_UP))?))?;
    // A session may have started a step more than was wanted.
    thread::sleep(IDLE);
    let requests = (0..work.batch()).map(|index| request(index, work.generated(step_tokens)));
    let requests: Vec<GenerateRequest> = requests.collect();
    let started = Instant::now();
    let generations = requests.into_iter().map(|request| engine.submit(request));
    let generations: Vec<Generation> = generations.collect::<Result<_, _>>()?;
    let arrivals = block_on(try_join_all(generations.into_iter().map(arrivals)))?;
    let speed = match work {
        Workload::Prompt { tokens } => {
            let first = arrivals[0].first().ok_or("the engine sent no token")?;
            tokens as f64 / (*first - started).as_secs_f64()
        }
        Workload::Decode { .. } => {
            overlapping_speed(&arrivals).ok_or("the sequences never decoded together")?
        }
    };
    Ok((speed, engine.into_session()?))
}

/// When each token arrived.
async fn arrivals(mut generation: Generation) -> Result<Vec<Instant>, EngineError> {
    let mut arrivals = Vec::new();
    while let Some(event) = generation.recv().await {
        match event {
            Event::Tokens { tokens, .. } => {
                let now = Instant::now();
                arrivals.extend(tokens.iter().map(|_| now));
            }
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Ok(arrivals)
}

/// Tokens per second from the latest first token to the earliest last token.
fn overlapping_speed(arrivals: &[Vec<Instant>]) -> Option<f64> {
    let start = arrivals.iter().map(|times| times.first()).max()??;
    let end = arrivals.iter().filter_map(|times| times.last()).min()?;
    let inside = |time: &&Instant| *time > start && *time <= end;
    let tokens = arrivals.iter().flatten().filter(inside).count();
    let seconds = end.checked_duration_since(*start)?.as_secs_f64();
    (tokens > 0).then_some(tokens as f64 / seconds)
}
