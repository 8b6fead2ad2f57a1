//! A request that runs: what it wants, how far it is, and how it ends.

use std::time::Instant;

use loquat_session::{Emit, SequenceId, SessionError, StepOutput};

use crate::generation::Sink;
use crate::sampling::{self, Sampler, Scratch};
use crate::shared::Ticket;
use crate::text_stream::TextStream;
use crate::usage::Clock;
use crate::{EngineError, FinishReason, GenerateRequest, TokenInfo};

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub request: GenerateRequest,
    pub seed: u64,
    pub text: TextStream,
    pub sink: Sink,
    pub submitted: Instant,
    pub ticket: Ticket,
}

/// There is no prefill and no decoding, only tokens computed that catch up with tokens wanted.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub id: SequenceId,
    /// KV tokens set aside. The reservation is the sequence's being in the running list, so it
    /// cannot outlive it.
    pub reservation: usize,
    pub sink: Sink,
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    pub(super) computed: usize,
    pub(super) max_tokens: usize,
    pub(super) stop_ids: Vec<u32>,
    logprobs: Option<usize>,
    emit_logits: bool,
    /// The prompt's log-probabilities so far; `None` when they were not asked for or are sent.
    pub(super) scores: Option<Vec<TokenInfo>>,
    pub(super) sampler: Sampler,
    pub(super) seed: u64,
    pub(super) text: TextStream,
    pub(super) clock: Clock,
    /// Sampled in this step and not settled yet.
    pub(super) sampled: Option<TokenInfo>,
    ending: Option<Ending>,
}

/// How a sequence ends.
#[derive(Debug)]
pub(crate) enum Ending {
    Finished {
        reason: FinishReason,
        /// Held back until now.
        text: String,
    },
    Failed(EngineError),
    Cancelled,
}

impl Sequence {
    /// Gives up the request's place in the queue.
    pub fn new(id: SequenceId, arrival: Arrival, reservation: usize) -> Self {
        let Arrival {
            request,
            seed,
            text,
            sink,
            submitted,
            ticket,
        } = arrival;
        drop(ticket);
        let GenerateRequest {
            prompt,
            max_tokens,
            sampling,
            stop_ids,
            stop: _,
            logprobs,
            prompt_logprobs,
            skip_special: _,
            fresh_text: _,
        } = request;
        let first = prompt.first().copied().map(TokenInfo::bare);
        Self {
            id,
            reservation,
            sink,
            prompt_len: prompt.len(),
            computed: 0,
            max_tokens,
            stop_ids,
            logprobs,
            emit_logits: logprobs.is_some() || !sampling.is_plain_greedy(),
            scores: prompt_logprobs.then(|| first.into_iter().collect()),
            sampler: Sampler::new(sampling, seed, &prompt),
            seed,
            text,
            clock: Clock::admitted(submitted),
            tokens: prompt,
            sampled: None,
            ending: None,
        }
    }

    /// Tokens wanted and not computed yet.
    pub fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether every computed position's logits are read, not the last one's alone.
    pub fn scores_prompt(&self) -> bool {
        self.scores.is_some()
    }

    /// The next `count` pending tokens and what they are to emit.
    pub fn next(&self, count: usize) -> (&[u32], Emit) {
        let end = self.computed + count;
        let emit = if self.scores_prompt() {
            Emit::Logits { positions: count }
        } else if end < self.tokens.len() {
            Emit::Nothing
        } else if self.emit_logits {
            Emit::Logits { positions: 1 }
        } else {
            Emit::Greedy { positions: 1 }
        };
        (&self.tokens[self.computed..end], emit)
    }

    /// Reads what a step gave for this sequence's `count` tokens, the batch's `row`.
    pub fn sample(
        &mut self,
        row: usize,
        count: usize,
        output: &mut StepOutput,
        scratch: &mut Scratch,
    ) -> Result<(), EngineError> {
        if let Some(error) = output.rows().get(row).and_then(|row| row.error.as_ref()) {
            return Err(error.clone().into());
        }
        self.score(row, count, output, scratch)?;
        self.computed += count;
        if self.pending() > 0 || self.max_tokens == 0 {
            return Ok(());
        }
        self.sampled = Some(if self.emit_logits || self.scores_prompt() {
            let last = output.logit_positions(row).checked_sub(1);
            let logits = output.logits_mut(row, last.ok_or_else(withheld)?);
            self.sampler.sample(logits, self.logprobs, scratch)?
        } else {
            let token = output.greedy(row).last();
            TokenInfo::bare(*token.ok_or_else(withheld)?)
        });
        Ok(())
    }

    /// Each position's logits are about the token after it.
    fn score(
        &mut self,
        row: usize,
        count: usize,
        output: &StepOutput,
        scratch: &mut Scratch,
    ) -> Result<(), EngineError> {
        let Some(scores) = &mut self.scores else {
            return Ok(());
        };
        if output.logit_positions(row) < count {
            return Err(withheld());
        }
        let following = self.tokens[..self.prompt_len]
            .iter()
            .skip(self.computed + 1);
        for (position, &token) in following.take(count).enumerate() {
            let logits = output.logits(row, position);
            let alternatives = self.logprobs.unwrap_or(0);
            scores.push(sampling::score(token, logits, alternatives, scratch)?);
        }
        Ok(())
    }

    /// The first ending stays.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    pub fn has_ended(&self) -> bool {
        self.ending.is_some()
    }

    pub fn take_ending(&mut self) -> Option<Ending> {
        self.ending.take()
    }
}

fn withheld() -> EngineError {
    SessionError::Device("a row came back without what it was to emit".into()).into()
}
