//! Events of a request.

use crate::{EngineError, Timings, Usage};

/// An event of a request. `Finished` or `Failed` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One entry per prompt token, before anything is generated. The first token has no
    /// log-probability.
    PromptLogprobs(Vec<TokenInfo>),
    /// The prompt's embedding, not normalised.
    Embedding(Vec<f32>),
    /// New tokens and the text they complete. Text lags while a character is incomplete or may
    /// belong to a stop string; without a tokenizer it is empty.
    Tokens {
        /// The tokens, oldest first.
        tokens: Vec<TokenInfo>,
        /// The text they complete.
        text: String,
    },
    /// The generation is complete.
    Finished {
        /// Why generation stopped.
        reason: FinishReason,
        /// Remaining text.
        text: String,
        /// How many tokens the request used.
        usage: Usage,
        /// How long its phases took.
        timings: Timings,
        /// Reproduces the generation when used as the request's seed.
        seed: u64,
    },
    /// The request failed after it was accepted.
    Failed(EngineError),
}

/// Why generation stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop id, which is in the tokens but not in the text; or the request's constraint is
    /// complete.
    Stop,
    /// This stop string matched. The text ends before it.
    StopString(usize),
    /// `max_tokens` were generated.
    Length,
}

/// A token with its log-probability and the most likely alternatives, best first, if the request
/// asks for them.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// The token's id.
    pub id: u32,
    /// Its log-probability.
    pub logprob: Option<f32>,
    /// Ids and log-probabilities of the most likely tokens.
    pub top: Vec<(u32, f32)>,
}

/// Which log-probabilities a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Logprobs {
    /// The number of most likely alternatives, besides the token itself.
    pub alternatives: usize,
    /// The distribution to report.
    pub distribution: Distribution,
}

impl Logprobs {
    /// Log-probabilities of the model's own distribution.
    pub fn for_model(alternatives: usize) -> Self {
        Self {
            alternatives,
            distribution: Distribution::Model,
        }
    }
}

/// The distribution that log-probabilities describe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Distribution {
    /// The model's distribution before any adjustment: OpenAI's `logprobs`.
    #[default]
    Model,
    /// The distribution the token was drawn from, after penalties, bias, constraint, temperature
    /// and truncations: llama.cpp's `post_sampling_probs`. Truncated tokens have none.
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
