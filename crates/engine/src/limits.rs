//! Limits derived from the session and the options.

use loquat_session::{Capabilities, KvGroups, Memory, Reach};

use crate::{EngineError, EngineOptions};

/// What a sequence's KV depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvProgress {
    /// With its whole answer.
    pub max_len: usize,
    pub computed: usize,
    /// Length shared with another sequence.
    pub shared: usize,
    /// Length at which it was forked.
    pub forked: usize,
    /// Where its last row began.
    pub row_start: usize,
}

impl KvProgress {
    /// Of a sequence that starts with the first `len` tokens of another.
    pub fn forked(max_len: usize, len: usize) -> Self {
        Self {
            max_len,
            computed: len,
            shared: len,
            forked: len,
            row_start: len,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub step_tokens: usize,
    /// At most `step_tokens`, so that every sequence gets at least one token per step.
    pub max_running: usize,
    pub kv_capacity: usize,
    /// Positions of encoded media.
    pub media_capacity: usize,
    pub kv_granularity: usize,
    kv_groups: KvGroups,
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
            kv_groups: memory.kv_groups,
            max_context: capabilities.max_context,
        }
    }

    /// KV to reserve for a sequence of `len` tokens, in tokens' worth like all KV.
    pub fn reservation(&self, len: usize) -> usize {
        let groups = &self.kv_groups;
        groups.sequence_tokens(len, self.step_tokens, self.kv_granularity)
    }

    /// Reserved KV that a sequence does not hold yet.
    pub fn promised(&self, progress: &KvProgress) -> usize {
        let granularity = self.kv_granularity;
        let KvProgress {
            max_len,
            computed,
            shared,
            forked,
            row_start,
        } = *progress;
        // The next write copies a shared last page.
        let end = if computed == shared {
            computed / granularity
        } else {
            computed.div_ceil(granularity)
        };
        self.kv_groups.tokens_in_pages(granularity, |group| {
            let first = match group.reach {
                Reach::All => 0,
                // As the sequence goes on, its own pages replace those it shares with the sequence
                // it was forked from, which may keep them. If that went on instead, they count
                // twice until then.
                Reach::Window(_) | Reach::Chunk(_) => {
                    let own = forked / granularity;
                    group.first_page(row_start, granularity).max(own)
                }
            };
            let most = group.max_pages(max_len, self.step_tokens, granularity);
            most.saturating_sub(end.saturating_sub(first))
        })
    }

    /// Whether a sequence of up to `len` tokens frees KV, after which it cannot be forked at
    /// earlier lengths.
    pub fn frees_within(&self, len: usize) -> bool {
        self.kv_groups.free_within(len)
    }

    /// KV of windows that a sequence of `len` tokens leaves to its forks when it goes on.
    pub fn windows(&self, len: usize) -> usize {
        let granularity = self.kv_granularity;
        self.kv_groups
            .tokens_in_pages(granularity, |group| match group.reach {
                Reach::All => 0,
                Reach::Window(_) | Reach::Chunk(_) => {
                    group.max_pages(len, self.step_tokens, granularity)
                }
            })
    }

    /// KV that a row of `tokens` acquires at most after `computed` tokens.
    pub fn row(&self, computed: usize, tokens: usize) -> usize {
        let granularity = self.kv_granularity;
        (computed + tokens).next_multiple_of(granularity) - computed / granularity * granularity
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
