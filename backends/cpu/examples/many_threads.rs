//! Shows what would keep a model from scaling to many cores, on a machine that has few.
//!
//! `cargo run --release -p loquat-cpu --example many_threads [MODEL | SHAPE:FORMAT] …`
//!
//! The first table estimates steps on up to 128 threads from the times of their tasks on one. It
//! ignores the limits of memory, so the speedups are upper limits; work that is done by one thread
//! alone shows as one that does not grow. The second table runs more threads than there are cores: a
//! pool whose threads wait without yielding would collapse.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loquat_cpu::{CpuBackend, MachineCores, ScalingEstimate, estimate_scaling};
use loquat_session::{
    Backend, Emit, ModelSource, SequenceId, Session, SessionOptions, StepBatch, StepOutput,
};
use loquat_synthetic::Recipe;
use loquat_testkit::goldens;

const PROMPT: usize = 256;
const BATCH: usize = 8;
/// Steps of each kind; the median counts.
const STEPS: usize = 5;
const THREADS: [usize; 4] = [2, 8, 32, 128];
const DECODED: usize = 32;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut models: Vec<String> = std::env::args().skip(1).collect();
    if models.is_empty() {
        models.push("smollm2-135m:q4_0".to_owned());
    }
    for model in &models {
        let source = source(model)?;
        println!("{model}, median of {STEPS} steps\n");
        println!("| step | threads | loops | one thread, ms | serial, ms | limit of the speedup |");
        println!("|---|---|---|---|---|---|");
        for threads in THREADS {
            let mut session = open(&source, threads)?;
            for (name, prompt, batch) in [
                (format!("prompt of {PROMPT}"), PROMPT, 1),
                ("decode".to_owned(), 1, 1),
                (format!("decode of {BATCH} sequences"), 1, BATCH),
            ] {
                let estimate = estimate(session.as_mut(), threads, prompt, batch)?;
                println!(
                    "| {name} | {threads} | {} | {:.2} | {:.3} | {:.1} |",
                    estimate.loops,
                    millis(estimate.total),
                    millis(estimate.serial),
                    estimate.total.as_secs_f64() / estimate.on_threads.as_secs_f64(),
                );
            }
        }
        println!();
        oversubscribe(&source)?;
    }
    Ok(())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A model file or folder, or a synthetic model.
fn source(model: &str) -> Result<ModelSource, Box<dyn Error>> {
    if Path::new(model).exists() {
        return Ok(goldens::source(Path::new(model))?);
    }
    let recipe: Recipe = model.parse()?;
    let checkpoint = recipe.make(recipe.container(), 1)?.checkpoint()?;
    Ok(ModelSource {
        weights: Arc::new(checkpoint.bind()?),
        spec: Arc::new(checkpoint.spec),
        paths: Vec::new(),
    })
}

fn open(source: &ModelSource, threads: usize) -> Result<Box<dyn Session>, Box<dyn Error>> {
    let options = SessionOptions {
        context: Some(source.spec.max_context.min(2 * PROMPT)),
        max_sequences: BATCH,
        max_step_tokens: PROMPT,
        threads: Some(threads),
        ..SessionOptions::default()
    };
    Ok(CpuBackend::AUTO.open(source.clone(), &options, &mut |_| {})?)
}

/// The median step of this many tokens for each sequence.
fn estimate(
    session: &mut dyn Session,
    threads: usize,
    tokens: usize,
    batch: usize,
) -> Result<ScalingEstimate, Box<dyn Error>> {
    let mut estimates = Vec::new();
    // The first step touches its buffers for the first time.
    for _ in 0..=STEPS {
        let sequences: Vec<SequenceId> = (0..batch)
            .map(|_| session.create())
            .collect::<Result<_, _>>()?;
        let (result, estimate) = estimate_scaling(threads, || step(session, &sequences, tokens));
        result?;
        estimates.push(estimate);
        for sequence in sequences {
            session.release(sequence)?;
        }
    }
    let mut estimates = estimates.split_off(1);
    estimates.sort_by_key(|estimate| estimate.total);
    Ok(estimates[STEPS / 2])
}

fn step(
    session: &mut dyn Session,
    sequences: &[SequenceId],
    tokens: usize,
) -> Result<(), Box<dyn Error>> {
    let vocabulary = 100;
    let tokens: Vec<u32> = (0..tokens as u32).map(|i| i * 37 % vocabulary).collect();
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    for sequence in sequences {
        batch.push(*sequence, &tokens, Emit::Greedy { positions: 1 });
    }
    session.step(&batch, &mut output)?;
    match output.rows().iter().find_map(|row| row.error.clone()) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Decodes with as many threads as cores, and with more.
fn oversubscribe(source: &ModelSource) -> Result<(), Box<dyn Error>> {
    let cores = MachineCores::now().threads;
    println!("decode on {cores} cores, tokens/s, median of {ROUNDS} rounds\n");
    println!("| threads | speed |");
    println!("|---|---|");
    let mut runs = Vec::new();
    for factor in [1, 2, 4, 8] {
        let threads = cores * factor;
        runs.push((threads, open(source, threads)?, Vec::new()));
    }
    for _ in 0..ROUNDS {
        for (_, session, speeds) in &mut runs {
            let sequence = session.create()?;
            step(session.as_mut(), &[sequence], 1)?;
            let started = Instant::now();
            for _ in 0..DECODED {
                step(session.as_mut(), &[sequence], 1)?;
            }
            speeds.push(DECODED as f64 / started.elapsed().as_secs_f64());
            session.release(sequence)?;
        }
    }
    for (threads, _, mut speeds) in runs {
        speeds.sort_by(f64::total_cmp);
        println!("| {threads} | {:.1} |", speeds[ROUNDS / 2]);
    }
    println!();
    Ok(())
}
