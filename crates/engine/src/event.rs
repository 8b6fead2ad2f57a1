//! What a request tells its reader.

use crate::{EngineError, Timings, Usage};

/// One piece of news about a request. `Finished` or `Failed` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One entry per prompt token, before anything is generated. The first token follows
    /// nothing and has no log-probability.
    PromptLogprobs(Vec<TokenInfo>),
    /// The prompt's embedding, as the model gives it: of any length, not normalised.
    Embedding(Vec<f32>),
    /// New tokens, and the text they settled. Text lags behind while a character is incomplete
    /// or may belong to a stop string; without a tokenizer it is empty.
    Tokens {
        tokens: Vec<TokenInfo>,
        text: String,
    },
    Finished {
        reason: FinishReason,
        /// Text held back until now.
        text: String,
        usage: Usage,
        timings: Timings,
        /// Repeats the generation when given as the request's seed.
        seed: u64,
    },
    Failed(EngineError),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// One of the request's stop ids came, which is among the tokens but not in the text; or
    /// the request's constraint lets nothing follow.
    Stop,
    /// This one of the request's stop strings came. The text ends before it.
    StopString(usize),
    /// `max_tokens` were generated.
    Length,
}

/// A token and, where the request asks for them, its log-probability and those of the likeliest
/// alternatives, best first.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    pub id: u32,
    pub logprob: Option<f32>,
    pub top: Vec<(u32, f32)>,
}

/// Which log-probabilities a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logprobs {
    /// Of this many likeliest alternatives, besides the token itself.
    pub alternatives: usize,
    pub distribution: Distribution,
}

impl Logprobs {
    /// Of the model's own distribution.
    pub fn for_model(alternatives: usize) -> Self {
        Self {
            alternatives,
            distribution: Distribution::Model,
        }
    }
}

/// Whose probabilities are told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Distribution {
    /// What the model said, before anything was adjusted: OpenAI's `logprobs`.
    #[default]
    Model,
    /// What the token was drawn from, after penalties, bias, constraint, temperature and
    /// truncations: llama.cpp's `post_sampling_probs`. What was truncated has none.
    Sampled,
}

impl TokenInfo {
    pub(crate) fn bare(id: u32) -> Self {
        Self {
            id,
            logprob: None,
            top: Vec::new(),
        }
    }
}
