//! What a step's tokens mean to the reader: events while a sequence runs, and its end.

use loquat_session::Session;

use crate::sequence::{Ending, Sequence};
use crate::{Event, FinishReason, Usage};

impl Sequence {
    /// Tells the reader what the step brought, and decides whether that was all.
    pub fn settle(&mut self) {
        if self.computed >= self.prompt_len
            && let Some(scores) = self.scores.take()
        {
            self.sink.send(Event::PromptLogprobs(scores));
            if self.max_tokens == 0 {
                self.finish(FinishReason::Length);
            }
        }
        let Some(token) = self.sampled.take() else {
            return;
        };
        let id = token.id;
        self.clock.token();
        self.tokens.push(id);
        self.sampler.observe(id);

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

    fn completion_tokens(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Sends the last event.
    fn conclude(mut self) {
        match self.take_ending() {
            Some(Ending::Finished { reason, text }) => self.sink.send(Event::Finished {
                reason,
                text,
                usage: Usage {
                    prompt_tokens: self.prompt_len,
                    completion_tokens: self.completion_tokens(),
                    cached_tokens: 0,
                },
                timings: self.clock.timings(),
                seed: self.seed,
            }),
            Some(Ending::Failed(error)) => self.sink.send(Event::Failed(error)),
            Some(Ending::Cancelled) | None => {}
        }
    }
}

/// Takes the ended sequences out of `running` and gives their KV back: the only way out, whatever
/// the ending. The caller concludes them once others can see that their room is free.
pub(crate) fn retire(running: &mut Vec<Sequence>, session: &mut dyn Session) -> Vec<Sequence> {
    let ended: Vec<Sequence> = running
        .extract_if(.., |sequence| sequence.has_ended())
        .collect();
    for sequence in &ended {
        if let Err(error) = session.release(sequence.id) {
            tracing::error!(%error, "a sequence could not be released");
        }
    }
    ended
}

/// Sends the last events of retired sequences.
pub(crate) fn conclude(ended: Vec<Sequence>) {
    ended.into_iter().for_each(Sequence::conclude);
}
