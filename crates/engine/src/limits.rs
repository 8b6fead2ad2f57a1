//! Limits derived from the session and the options.

use loquat_session::{Capabilities, Memory};

use crate::{EngineError, EngineOptions};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub step_tokens: usize,
    /// At most `step_tokens`, so that every sequence gets at least one token per step.
    pub max_running: usize,
    pub kv_capacity: usize,
    /// Positions of encoded media.
    pub media_capacity: usize,
    pub kv_granularity: usize,
    pub max_context: usize,
}

impl Limits {
    pub fn new(options: &EngineOptions, capabilities: &Capabilities, memory: &Memory) -> Self {
        let most = capabilities.max_step_tokens;
        let step_tokens = options.step_tokens.unwrap_or(most).min(most);
        let sequences = capabilities.max_sequences;
        let running = options.max_running.unwrap_or(sequences).min(sequences);
        Self {
            step_tokens,
            max_running: running.min(step_tokens),
            kv_capacity: memory.kv_capacity,
            media_capacity: memory.media_capacity,
            kv_granularity: memory.kv_granularity.max(1),
            max_context: capabilities.max_context,
        }
    }

    /// KV to reserve for `tokens` tokens.
    pub fn reservation(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.kv_granularity)
    }

    /// The part of `tokens` that fills whole KV pages.
    pub fn whole_runs(&self, tokens: usize) -> usize {
        tokens / self.kv_granularity * self.kv_granularity
    }

    /// Rejects requests that can never be served.
    pub fn check_size(&self, prompt: usize, max_tokens: usize) -> Result<(), EngineError> {
        let room = self.max_context.checked_sub(prompt);
        if room.is_none_or(|room| max_tokens > room) {
            return Err(EngineError::ContextExceeded {
                prompt,
                max_tokens,
                max_context: self.max_context,
            });
        }
        let needed = self.reservation(prompt + max_tokens);
        if needed > self.kv_capacity {
            return Err(EngineError::NeverFits {
                needed,
                capacity: self.kv_capacity,
                max_context: self.max_context,
            });
        }
        Ok(())
    }
}
