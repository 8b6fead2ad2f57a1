//! What the engine is asked for, and what it refuses before anything runs.

use loquat_session::{Capabilities, Memory};

use crate::sampling::check_token;
use crate::{EngineError, SamplingParams};

/// One generation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerateRequest {
    /// At least one token.
    pub prompt: Vec<u32>,
    /// At least 1; or 0 with `prompt_logprobs`, to score the prompt alone. Together with the
    /// prompt at most the context.
    pub max_tokens: usize,
    pub sampling: SamplingParams,
    /// Tokens that end the text. The model's own end-of-text tokens stop nothing unless they
    /// stand here.
    pub stop_ids: Vec<u32>,
    /// Strings that end the text, wherever tokens cut them. They need a tokenizer.
    pub stop: Vec<String>,
    /// Log-probabilities of the chosen tokens, and of this many likeliest alternatives.
    pub logprobs: Option<usize>,
    /// Log-probabilities of the prompt's tokens, with as many alternatives.
    pub prompt_logprobs: bool,
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// The output is a text of its own (a chat reply) and does not continue the prompt's: the
    /// space that SentencePiece puts before every text is dropped.
    pub fresh_text: bool,
}

/// What a request is checked against.
pub(crate) struct Limits<'a> {
    pub capabilities: &'a Capabilities,
    pub memory: Memory,
    pub has_tokenizer: bool,
}

impl GenerateRequest {
    /// Refuses what could not be served however long it waited.
    pub(crate) fn validate(&self, limits: &Limits<'_>) -> Result<(), EngineError> {
        let Self {
            prompt,
            max_tokens,
            sampling,
            stop_ids,
            stop,
            logprobs,
            prompt_logprobs,
            skip_special: _,
            fresh_text: _,
        } = self;
        let vocab_size = limits.capabilities.vocab_size;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        for (field, tokens) in [("prompt", prompt), ("stop_ids", stop_ids)] {
            for &token in tokens {
                check_token(field, token, vocab_size)?;
            }
        }
        sampling.validate(vocab_size)?;
        check_stop(stop, limits.has_tokenizer)?;
        if *max_tokens == 0 && !prompt_logprobs {
            return Err(EngineError::OutOfRange {
                field: "max_tokens",
                found: "0".into(),
                expected: "at least 1, unless `prompt_logprobs` is all that is asked for".into(),
            });
        }
        if let Some(count) = logprobs.filter(|count| *count > vocab_size) {
            return Err(EngineError::OutOfRange {
                field: "logprobs",
                found: count.to_string(),
                expected: format!("from 0 to {vocab_size}, the vocabulary"),
            });
        }
        self.check_logits(limits.capabilities)?;
        self.check_size(limits)
    }

    fn check_logits(&self, capabilities: &Capabilities) -> Result<(), EngineError> {
        if capabilities.structured_output {
            return Ok(());
        }
        let field = if self.prompt_logprobs {
            "prompt_logprobs"
        } else if self.logprobs.is_some() {
            "logprobs"
        } else if !self.sampling.is_plain_greedy() {
            "sampling"
        } else {
            return Ok(());
        };
        Err(EngineError::Unsupported {
            field,
            why: "this session gives no logits, only greedy tokens",
        })
    }

    fn check_size(&self, limits: &Limits<'_>) -> Result<(), EngineError> {
        let max_context = limits.capabilities.max_context;
        let room = max_context.checked_sub(self.prompt.len());
        if room.is_none_or(|room| self.max_tokens > room) {
            return Err(EngineError::ContextExceeded {
                prompt: self.prompt.len(),
                max_tokens: self.max_tokens,
                max_context,
            });
        }
        let wanted = self.kv_tokens(limits.memory.kv_granularity);
        let capacity = limits.memory.kv_capacity;
        if wanted > capacity {
            return Err(EngineError::NeverFits { wanted, capacity });
        }
        Ok(())
    }

    /// The KV to reserve: all that the request may come to hold.
    pub(crate) fn kv_tokens(&self, granularity: usize) -> usize {
        (self.prompt.len() + self.max_tokens).next_multiple_of(granularity.max(1))
    }
}

fn check_stop(stop: &[String], has_tokenizer: bool) -> Result<(), EngineError> {
    if !stop.is_empty() && !has_tokenizer {
        return Err(EngineError::Unsupported {
            field: "stop",
            why: "the engine was started without a tokenizer, so it produces no text",
        });
    }
    Ok(())
}
