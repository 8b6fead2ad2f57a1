//! Answers read from the engine, with the time at which each token arrived.

use std::time::Instant;

use loquat_engine::{Engine, Event, GenerateRequest, Generation, SamplingParams, Usage};

use pollster::block_on;

use super::error::BenchError;

/// A finished stream with the arrival times of its tokens.
pub struct TimedAnswer {
    pub submitted: Instant,
    /// One per token.
    pub arrivals: Vec<Instant>,
    /// One per sampled token: tokens that a constraint forces arrive with the one before.
    pub choices: Vec<Instant>,
    pub ids: Vec<u32>,
    pub usage: Usage,
}

impl TimedAnswer {
    /// In milliseconds; NaN if no token arrived.
    pub fn first_token_ms(&self) -> f64 {
        let first = self.arrivals.first();
        first.map_or(f64::NAN, |first| millis(self.submitted, *first))
    }
}

pub fn millis(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e3
}

/// A request for exactly `max_tokens` greedy tokens.
pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt,
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    }
}

/// Submits and reads to the end.
pub fn ask(engine: &Engine, request: GenerateRequest) -> Result<TimedAnswer, BenchError> {
    block_on(ask_async(engine, request))
}

/// Submits and reads to the end. Many run on one thread, as in a server, whose runtime wakes once
/// for all tokens of a step.
pub async fn ask_async(
    engine: &Engine,
    request: GenerateRequest,
) -> Result<TimedAnswer, BenchError> {
    let submitted = Instant::now();
    read(engine.submit(request)?, submitted).await
}

pub async fn read(
    mut generation: Generation,
    submitted: Instant,
) -> Result<TimedAnswer, BenchError> {
    let mut answer = TimedAnswer {
        submitted,
        arrivals: Vec::new(),
        choices: Vec::new(),
        ids: Vec::new(),
        usage: Usage::default(),
    };
    while let Some(event) = generation.recv().await {
        match event {
            Event::Tokens { tokens, .. } => {
                let now = Instant::now();
                answer.choices.push(now);
                answer.arrivals.extend(tokens.iter().map(|_| now));
                answer.ids.extend(tokens.iter().map(|token| token.id));
            }
            Event::Finished { usage, .. } => answer.usage = usage,
            Event::Failed(error) => return Err(BenchError::Engine(error)),
            Event::PromptLogprobs(_) | Event::Embedding(_) => {}
        }
    }
    Ok(answer)
}

/// A thread's result; propagates its panic.
pub fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
