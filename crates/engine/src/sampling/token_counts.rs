//! Penalties on what was said before.

use super::pool::CandidatePool;
use super::{SamplingParams, params};

/// The tokens that penalties see, and how often.
#[derive(Debug)]
pub(super) struct TokenCounts {
    repetition: f32,
    presence: f32,
    frequency: f32,
    /// How many of the last tokens are seen.
    window: usize,
    /// Sorted by id; each is seen at least once.
    counts: Vec<Count>,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    id: u32,
    in_prompt: u32,
    in_output: u32,
}

impl TokenCounts {
    /// `None` where no penalty is asked for.
    pub fn new(params: &SamplingParams, prompt: &[u32]) -> Option<Self> {
        if !params.penalises() {
            return None;
        }
        let mut tracked = Self {
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            window: params::window(params.penalty_last_n),
            counts: Vec::new(),
        };
        let start = prompt.len().saturating_sub(tracked.window);
        let mut visible = prompt[start..].to_vec();
        visible.sort_unstable();
        let runs = visible.chunk_by(|a, b| a == b);
        tracked.counts.extend(runs.map(|run| Count {
            id: run[0],
            in_prompt: run.len() as u32,
            in_output: 0,
        }));
        Some(tracked)
    }

    /// Whether tokens leave its sight, so that it has to be told which.
    pub fn forgets(&self) -> bool {
        self.window < usize::MAX
    }

    /// Notes the last of `tokens`, the first `prompt_len` of which are the prompt.
    pub fn observe(&mut self, tokens: &[u32], prompt_len: usize) {
        if let Some(leaving) = tokens.len().checked_sub(self.window.saturating_add(1)) {
            self.forget(tokens[leaving], leaving < prompt_len);
        }
        if let Some(&id) = tokens.last() {
            self.count(id);
        }
    }

    /// Records a token of the output.
    pub fn count(&mut self, id: u32) {
        match self.counts.binary_search_by_key(&id, |count| count.id) {
            Ok(at) => self.counts[at].in_output += 1,
            Err(at) => self.counts.insert(
                at,
                Count {
                    id,
                    in_prompt: 0,
                    in_output: 1,
                },
            ),
        }
    }

    fn forget(&mut self, id: u32, of_prompt: bool) {
        let Ok(at) = self.counts.binary_search_by_key(&id, |count| count.id) else {
            return;
        };
        let count = &mut self.counts[at];
        let side = if of_prompt {
            &mut count.in_prompt
        } else {
            &mut count.in_output
        };
        *side = side.saturating_sub(1);
        if count.in_prompt + count.in_output == 0 {
            self.counts.remove(at);
        }
    }

    pub fn penalise(&self, pool: &mut CandidatePool<'_>) {
        let change = |count: &Count, logit: f32, temperature: f32| {
            let repeated = if logit > 0.0 {
                logit / self.repetition
            } else {
                logit * self.repetition
            };
            let often = self.frequency * count.in_output as f32;
            let penalty = match count.in_output {
                0 => 0.0,
                _ => self.presence + often,
            };
            repeated - penalty * temperature
        };
        pool.adjust(&self.counts, |count| count.id, change);
    }
}
