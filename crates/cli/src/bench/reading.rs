//! Reading streams with an eye on the clock.

use std::time::Instant;

use loquat_engine::{Engine, Event, GenerateRequest, Generation, SamplingParams, Usage};

use crate::error::CliError;
use crate::wait::block_on;

/// A finished stream and when its tokens came.
pub struct Answer {
    pub submitted: Instant,
    /// One per token.
    pub arrivals: Vec<Instant>,
    /// One per token that was chosen: those that a constraint forces come with the one before.
    pub choices: Vec<Instant>,
    pub ids: Vec<u32>,
    pub usage: Usage,
}

impl Answer {
    /// In milliseconds; NaN where no token came.
    pub fn first_token_ms(&self) -> f64 {
        let first = self.arrivals.first();
        first.map_or(f64::NAN, |first| millis(self.submitted, *first))
    }
}

pub fn millis(from: Instant, to: Instant) -> f64 {
    to.duration_since(from).as_secs_f64() * 1e3
}

/// The most likely tokens, none of which ends the text early.
pub fn greedy(prompt: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        prompt,
        max_tokens,
        sampling: SamplingParams::greedy(),
        ..GenerateRequest::default()
    }
}

/// Submits and reads to the end.
pub fn ask(engine: &Engine, request: GenerateRequest) -> Result<Answer, CliError> {
    block_on(ask_beside_others(engine, request))
}

/// Submits and reads to the end, while others do so on the same thread: as in a server, whose
/// runtime is woken once for whatever a step brought to all of them.
pub async fn ask_beside_others(
    engine: &Engine,
    request: GenerateRequest,
) -> Result<Answer, CliError> {
    let submitted = Instant::now();
    read(engine.submit(request)?, submitted).await
}

pub async fn read(mut generation: Generation, submitted: Instant) -> Result<Answer, CliError> {
    let mut answer = Answer {
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
            Event::Failed(error) => return Err(CliError::Engine(error)),
            Event::PromptLogprobs(_) | Event::Embedding(_) => {}
        }
    }
    Ok(answer)
}

/// A thread's result, or its panic passed on.
pub fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    let result = thread.join();
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
