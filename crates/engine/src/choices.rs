//! Several completions of one prompt.

use crate::{Completion, EngineError, Generation};

/// The choices of one request, each with its own event stream.
#[derive(Debug)]
pub struct Choices {
    generations: Vec<Generation>,
}

impl Choices {
    pub(crate) fn new(generations: Vec<Generation>) -> Self {
        Self { generations }
    }

    /// The event streams.
    pub fn into_generations(self) -> Vec<Generation> {
        self.generations
    }

    /// Waits for all choices, in order. If one fails, the others are cancelled.
    pub fn collect_blocking(self) -> Result<Vec<Completion>, EngineError> {
        let generations = self.generations.into_iter();
        generations.map(Generation::collect_blocking).collect()
    }

    /// Waits for all choices, in order. If one fails, the others are cancelled.
    pub async fn collect(self) -> Result<Vec<Completion>, EngineError> {
        let mut completions = Vec::with_capacity(self.generations.len());
        for generation in self.generations {
            completions.push(generation.collect().await?);
        }
        Ok(completions)
    }
}

impl Completion {
    /// Mean log-probability of the tokens; `None` unless the request asked for log-probabilities.
    pub fn mean_logprob(&self) -> Option<f32> {
        let logprobs = self.tokens.iter().map(|token| token.logprob);
        let sum: f32 = logprobs.sum::<Option<f32>>()?;
        Some(sum / self.tokens.len().max(1) as f32)
    }

    /// The `n` completions with the highest mean log-probability, best first. Requires
    /// log-probabilities.
    pub fn best(n: usize, mut completions: Vec<Self>) -> Result<Vec<Self>, EngineError> {
        if completions.iter().any(|each| each.mean_logprob().is_none()) {
            return Err(EngineError::Unsupported {
                field: "best_of",
                why: "the request has to ask for `logprobs`, by which choices are ranked",
            });
        }
        let rank = |each: &Self| each.mean_logprob().unwrap_or(f32::NEG_INFINITY);
        completions.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        completions.truncate(n);
        Ok(completions)
    }
}
