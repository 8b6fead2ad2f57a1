//! Turns a step's results into tokens, events and the end of a sequence.

use std::time::Instant;

use crate::pooling::EmbeddingPool;
use crate::sampling::SamplerScratch;
use crate::sequence::{Sequence, SequenceEnd};
use crate::{ConstraintError, EngineError, Event, FinishReason, Timings, TokenInfo};

impl Sequence {
    /// Sends the step's tokens and ends the sequence if it is finished.
    pub fn settle(&mut self, now: Instant) -> Result<(), EngineError> {
        let scored = |scores: &mut Vec<_>| scores.len() >= self.prompt_len;
        if let Some(scores) = self.scores.take_if(scored) {
            self.sink.send(Event::PromptLogprobs(scores));
            if self.max_tokens == 0 {
                self.finish(FinishReason::Length);
            }
        }
        let pooled = |pool: &mut EmbeddingPool| pool.next().is_none();
        if let Some(pool) = self.pool.take_if(pooled) {
            self.sink.send(Event::Embedding(pool.mean()));
            self.finish(FinishReason::Length);
        }
        let Some(sampled) = self.sampled.take() else {
            return Ok(());
        };
        self.watch.token(now);
        let (mut tokens, mut text) = (Vec::with_capacity(1), String::new());
        let mut next = Some(sampled);
        let mut outcome = Ok(None);
        while let Some(token) = next.take() {
            outcome = self.append_token(token.id, &mut text);
            if outcome.is_ok() {
                tokens.push(token);
            }
            if outcome == Ok(None) {
                match self.next_forced_unscored() {
                    Ok(forced) => next = forced,
                    Err(error) => outcome = Err(error),
                }
            }
        }
        if !tokens.is_empty() {
            self.sink.send(Event::Tokens { tokens, text });
        }
        if let Some(reason) = outcome? {
            self.finish(reason);
        }
        Ok(())
    }

    /// Appends a token to the output; returns the reason if this ends it.
    fn append_token(
        &mut self,
        id: u32,
        text: &mut String,
    ) -> Result<Option<FinishReason>, EngineError> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
        }
        self.sampler.observe(id);
        self.tokens.push(id);
        if self.stop_ids.contains(&id) {
            return Ok(Some(FinishReason::Stop));
        }
        let matched = self.text.push(id);
        text.push_str(&matched.text);
        Ok(if let Some(index) = matched.stopped {
            Some(FinishReason::StopString(index))
        } else if self
            .constraint
            .as_ref()
            .is_some_and(|constraint| constraint.is_complete())
        {
            Some(FinishReason::Stop)
        } else if self.completion_tokens() >= self.max_tokens {
            Some(FinishReason::Length)
        } else {
            None
        })
    }

    /// The next forced token, if no log-probability is needed.
    fn next_forced_unscored(&mut self) -> Result<Option<TokenInfo>, EngineError> {
        let Some(constraint) = self.constraint.as_mut().filter(|_| self.logprobs.is_none()) else {
            return Ok(None);
        };
        constraint.compute_forced()?;
        let Some(id) = constraint.next_forced() else {
            return Ok(None);
        };
        self.sampler.check_forced(id)?;
        Ok(Some(TokenInfo::bare(id)))
    }

    /// Chooses the next token from the logits.
    pub fn choose(
        &mut self,
        logits: &mut [f32],
        scratch: &mut SamplerScratch,
    ) -> Result<TokenInfo, EngineError> {
        let Some(constraint) = &mut self.constraint else {
            if self.is_constrained {
                return Err(ConstraintError::Lost.into());
            }
            return self.sampler.sample(logits, None, self.logprobs, scratch);
        };
        match constraint.next_forced() {
            Some(id) => {
                self.sampler.check_forced(id)?;
                self.sampler
                    .score_forced(id, logits, self.logprobs, scratch)
            }
            None => {
                let allowed = constraint.allowed()?;
                self.sampler.sample(logits, allowed, self.logprobs, scratch)
            }
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        let rest = self.text.finish();
        let reason = rest.stopped.map_or(reason, FinishReason::StopString);
        self.end(SequenceEnd::Finished {
            reason,
            text: rest.text,
        });
    }

    /// Sends the last event.
    pub fn conclude(mut self, now: Instant) {
        // Before the event: its reader may submit the next request at once.
        self.release_slot();
        match self.take_ending() {
            Some(SequenceEnd::Finished { reason, text }) => self.sink.send(Event::Finished {
                reason,
                text,
                usage: self.usage(),
                timings: Timings {
                    drafts: self.drafts,
                    ..self.watch.timings(now)
                },
                seed: self.seed,
            }),
            Some(SequenceEnd::Failed(error)) => self.sink.send(Event::Failed(error)),
            Some(SequenceEnd::Cancelled) | None => {}
        }
    }
}
