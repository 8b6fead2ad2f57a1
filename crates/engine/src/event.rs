//! What a request tells its reader.

use crate::{EngineError, Timings, Usage};

/// One piece of news about a request. `Finished` or `Failed` is the last.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// One entry per prompt token, before anything is generated. The first token follows
    /// nothing and has no log-probability.
    PromptLogprobs(Vec<TokenInfo>),
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
    /// One of the request's stop ids came. It is among the tokens, but not in the text.
    Stop,
    /// One of the request's stop strings came. The text ends before it.
    StopString,
    /// `max_tokens` were generated.
    Length,
}

/// A token and, where the request asks for them, its log-probability under the model's own
/// distribution and the likeliest alternatives, best first.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    pub id: u32,
    pub logprob: Option<f32>,
    pub top: Vec<(u32, f32)>,
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
