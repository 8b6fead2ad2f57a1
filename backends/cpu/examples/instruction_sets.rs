//! Times a synthetic model on every instruction set that this machine has.
//!
//! `cargo run --release -p loquat-cpu --example instruction_sets [SHAPE:FORMAT] [rounds] [names]`
//!
//! `names` limits the instruction sets, as in `avx2,avx-vnni`. Rounds of the instruction sets alternate, so that all run under the same conditions.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, ModelSource, Session, SessionOptions, StepBatch, StepOutput};
use loquat_synthetic::Recipe;

const PROMPT: usize = 256;
const DECODED: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let recipe = args
        .next()
        .unwrap_or_else(|| "smollm2-135m:q4_0".to_owned());
    let recipe: Recipe = recipe.parse()?;
    let rounds: usize = args.next().map_or(Ok(9), |rounds| rounds.parse())?;
    let names = args.next();
    let is_wanted = |name: &str| match &names {
        Some(names) => names.split(',').any(|wanted| wanted == name),
        None => true,
    };
    let checkpoint = recipe.make(recipe.container(), 1)?.checkpoint()?;
    let weights = Arc::new(checkpoint.bind()?);
    let spec = Arc::new(checkpoint.spec);
    let mut sessions = Vec::new();
    for backend in CpuBackend::every_instruction_set() {
        if !is_wanted(backend.instruction_set()) {
            continue;
        }
        let source = ModelSource {
            spec: spec.clone(),
            weights: weights.clone(),
            paths: Vec::new(),
        };
        let options = SessionOptions {
            context: Some(PROMPT + DECODED),
            ..SessionOptions::default()
        };
        let session = backend.open(source, &options, &mut |_| {})?;
        sessions.push((backend.instruction_set(), session));
    }
    let mut speeds = vec![Vec::new(); sessions.len()];
    for _ in 0..rounds {
        for ((_, session), speeds) in sessions.iter_mut().zip(&mut speeds) {
            speeds.push(speed(session.as_mut())?);
        }
    }
    println!("{}, median of {rounds} rounds, tokens/s", recipe.name());
    println!("| instruction set | prompt of {PROMPT} | decode |");
    println!("|---|---|---|");
    for ((name, _), speeds) in sessions.iter().zip(&speeds) {
        let median = |part: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = speeds.iter().map(part).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        println!(
            "| {name} | {:.1} | {:.1} |",
            median(|speed| speed.0),
            median(|speed| speed.1)
        );
    }
    Ok(())
}

/// Tokens per second of a prompt and of the decoding after it.
fn speed(session: &mut dyn Session) -> Result<(f64, f64), Box<dyn Error>> {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    let sequence = session.create()?;
    let prompt: Vec<u32> = (0..PROMPT as u32).map(|i| i * 37 % 1000).collect();
    let started = Instant::now();
    for tokens in prompt.chunks(session.capabilities().max_step_tokens) {
        batch.clear();
        batch.push(sequence, tokens, Emit::Nothing);
        session.step(&batch, &mut output)?;
    }
    let prompted = Instant::now();
    for token in 0..DECODED as u32 {
        batch.clear();
        batch.push(sequence, &[token], Emit::Greedy { positions: 1 });
        session.step(&batch, &mut output)?;
    }
    let ended = Instant::now();
    session.release(sequence)?;
    Ok((
        PROMPT as f64 / (prompted - started).as_secs_f64(),
        DECODED as f64 / (ended - prompted).as_secs_f64(),
    ))
}
