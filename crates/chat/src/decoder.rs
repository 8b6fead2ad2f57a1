//! The engine's events of one generation, decoded into a reply.

use loquat_engine::{EngineError, Event, FinishReason, Timings, TokenInfo, Usage};

use crate::{ReplyEvent, ReplyParser};

/// Decodes one generation's events. Every front end reads a generation through this type.
#[derive(Debug)]
pub struct ReplyDecoder {
    /// `None` for a plain continuation, in which everything is text.
    parser: Option<ReplyParser>,
}

/// What one engine event adds to a reply.
#[derive(Debug, Default)]
pub struct ReplyDelta {
    /// May be empty: a token need not complete any text.
    pub events: Vec<ReplyEvent>,
    /// The new tokens, with log-probabilities if the request asked for them.
    pub tokens: Vec<TokenInfo>,
    /// Set in the last delta.
    pub finish: Option<Finish>,
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Why generation stopped.
    pub reason: FinishReason,
    /// How many tokens the request used.
    pub usage: Usage,
    /// How long its phases took.
    pub timings: Timings,
    /// Repeats the generation when given as the request's seed.
    pub seed: u64,
}

impl ReplyDecoder {
    /// For a chat reply, in which reasoning, text and tool calls are told apart.
    pub fn chat(parser: ReplyParser) -> Self {
        Self {
            parser: Some(parser),
        }
    }

    /// For a continuation of a text, without a chat format.
    pub fn plain_text() -> Self {
        Self { parser: None }
    }

    /// Consumes one event. `None` for events that add nothing to a reply (prompt log-probabilities
    /// and embeddings); an error if the generation failed.
    pub fn consume(&mut self, event: Event) -> Result<Option<ReplyDelta>, EngineError> {
        match event {
            Event::Tokens { tokens, text } => Ok(Some(ReplyDelta {
                events: self.push(text),
                tokens,
                finish: None,
            })),
            Event::Finished {
                reason,
                text,
                usage,
                timings,
                seed,
            } => {
                let mut events = self.push(text);
                events.extend(self.flush());
                Ok(Some(ReplyDelta {
                    events,
                    tokens: Vec::new(),
                    finish: Some(Finish {
                        reason,
                        usage,
                        timings,
                        seed,
                    }),
                }))
            }
            Event::PromptLogprobs(_) | Event::Embedding(_) => Ok(None),
            Event::Failed(error) => Err(error),
        }
    }

    /// Returns the text held back so far. [`consume`](Self::consume) does this at the end of a
    /// generation; call it for one that is interrupted.
    pub fn flush(&mut self) -> Vec<ReplyEvent> {
        match &mut self.parser {
            Some(parser) => parser.finish(),
            None => Vec::new(),
        }
    }

    fn push(&mut self, text: String) -> Vec<ReplyEvent> {
        match &mut self.parser {
            Some(parser) => parser.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![ReplyEvent::Text(text)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(text: &str) -> Event {
        Event::Finished {
            reason: FinishReason::Stop,
            text: text.to_owned(),
            usage: Usage::default(),
            timings: Timings::default(),
            seed: 7,
        }
    }

    #[test]
    fn last_delta_has_held_back_text_and_finish() {
        let mut decoder = ReplyDecoder::plain_text();
        let delta = decoder.consume(finished("tail")).unwrap().unwrap();
        assert_eq!(delta.events, [ReplyEvent::Text("tail".to_owned())]);
        assert_eq!(delta.finish.unwrap().seed, 7);
    }

    #[test]
    fn empty_text_makes_no_event() {
        let mut decoder = ReplyDecoder::plain_text();
        let delta = decoder.consume(finished("")).unwrap().unwrap();
        assert!(delta.events.is_empty());
    }

    #[test]
    fn failures_are_errors_and_embeddings_are_skipped() {
        let mut decoder = ReplyDecoder::plain_text();
        assert!(
            decoder
                .consume(Event::Embedding(vec![1.0]))
                .unwrap()
                .is_none()
        );
        let failed = decoder.consume(Event::Failed(EngineError::ShutDown));
        assert!(matches!(failed, Err(EngineError::ShutDown)));
    }
}
