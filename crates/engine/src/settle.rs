//! What a step's tokens mean to the reader: events while a sequence runs, and its end.

use std::time::Instant;

use crate::sequence::{Ending, Sequence};
use crate::{EngineError, Event, FinishReason};

impl Sequence {
    /// Tells the reader what the step brought, and decides whether that was all.
    pub fn settle(&mut self, now: Instant) -> Result<(), EngineError> {
        let scored = |scores: &mut Vec<_>| scores.len() >= self.prompt_len;
        if let Some(scores) = self.scores.take_if(scored) {
            self.sink.send(Event::PromptLogprobs(scores));
            if self.max_tokens == 0 {
                self.finish(FinishReason::Length);
            }
        }
        let Some(token) = self.sampled.take() else {
            return Ok(());
        };
        let id = token.id;
        self.sampler.observe(id)?;
        self.watch.token(now);
        self.tokens.push(id);

        let stop = self.stop_ids.contains(&id);
        let (text, stopped) = if stop {
            (String::new(), false)
        } else {
            let matched = self.text.push(id);
            (matched.text, matched.stopped)
        };
        self.sink.send(Event::Tokens {
            tokens: vec![token],
            text,
        });
        if stop {
            self.finish(FinishReason::Stop);
        } else if stopped {
            self.finish(FinishReason::StopString);
        } else if self.completion_tokens() >= self.max_tokens {
            self.finish(FinishReason::Length);
        }
        Ok(())
    }

    fn finish(&mut self, reason: FinishReason) {
        let rest = self.text.finish();
        let reason = match rest.stopped {
            true => FinishReason::StopString,
            false => reason,
        };
        self.end(Ending::Finished {
            reason,
            text: rest.text,
        });
    }

    /// Sends the last event.
    pub fn conclude(mut self, now: Instant) {
        match self.take_ending() {
            Some(Ending::Finished { reason, text }) => self.sink.send(Event::Finished {
                reason,
                text,
                usage: self.usage(),
                timings: self.watch.timings(now),
                seed: self.seed,
            }),
            Some(Ending::Failed(error)) => self.sink.send(Event::Failed(error)),
            Some(Ending::Cancelled) | None => {}
        }
    }
}
