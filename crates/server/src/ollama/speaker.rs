//! What a model says to a request of this dialect, piece by piece.

use loquat_engine::{Event, TokenInfo};
use serde_json::{Map, Value};

use super::message::{OllamaCalledFunction, OllamaToolCall};
use crate::chat_turn::{ChatTurn, End, Said};
use crate::error::ApiError;
use crate::segments::{Segment, Segments, Step};
use crate::turn::Turn;

/// Dropping it cancels what has not ended.
pub enum Speaker {
    /// A reply of a conversation, whose parts are told apart.
    Reply { turn: Box<ChatTurn>, parts: Parts },
    /// Text that goes on where the prompt ends.
    Text(Box<Turn>),
}

/// News, or all of them together.
#[derive(Debug, Default)]
pub struct Piece {
    pub thinking: String,
    pub content: String,
    /// Whole ones: a call that was cut short has no arguments to tell.
    pub calls: Vec<OllamaToolCall>,
    pub tokens: Vec<TokenInfo>,
    /// Set in the last.
    pub end: Option<End>,
}

/// Follows the parts of a reply.
#[derive(Default)]
pub struct Parts {
    segments: Segments,
    open: Option<Segment>,
    arguments: String,
    calls: usize,
}

impl Speaker {
    pub fn reply(turn: ChatTurn) -> Self {
        Self::Reply {
            turn: Box::new(turn),
            parts: Parts::default(),
        }
    }

    /// `None` after the end; after an error there is no more.
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        match self {
            Self::Reply { turn, parts } => Some(turn.next().await?.map(|said| parts.take(said))),
            Self::Text(turn) => Some(turn.next().await?.map(|(_, event)| continued(event))),
        }
    }

    /// Waits for the end and gathers everything.
    pub async fn whole(mut self) -> Result<Piece, ApiError> {
        let mut whole = Piece::default();
        while let Some(piece) = self.next().await {
            whole.add(piece?);
        }
        Ok(whole)
    }
}

impl Piece {
    fn add(&mut self, more: Self) {
        self.thinking.push_str(&more.thinking);
        self.content.push_str(&more.content);
        self.calls.extend(more.calls);
        self.tokens.extend(more.tokens);
        self.end = more.end.or(self.end.take());
    }

    /// Whether there is anything to tell but the end.
    pub fn says_something(&self, with_tokens: bool) -> bool {
        let words = !self.thinking.is_empty() || !self.content.is_empty();
        words || !self.calls.is_empty() || (with_tokens && !self.tokens.is_empty())
    }
}

fn continued(event: Event) -> Piece {
    match event {
        Event::Tokens { tokens, text } => Piece {
            content: text,
            tokens,
            ..Piece::default()
        },
        Event::Finished {
            reason,
            text,
            usage,
            timings,
            seed: _,
        } => Piece {
            content: text,
            end: Some(End {
                reason,
                usage,
                timings,
            }),
            ..Piece::default()
        },
        // Nobody asked for the first two, and failures are errors by now.
        Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_) => Piece::default(),
    }
}

impl Parts {
    fn take(&mut self, said: Said) -> Piece {
        let Said {
            choice: _,
            events,
            tokens,
            end,
        } = said;
        let mut steps: Vec<Step> = events
            .into_iter()
            .flat_map(|event| self.segments.take(event))
            .collect();
        if end.is_some() {
            steps.extend(self.segments.finish(true));
        }
        let mut piece = Piece {
            tokens,
            end,
            ..Piece::default()
        };
        steps
            .into_iter()
            .for_each(|step| self.follow(step, &mut piece));
        piece
    }

    fn follow(&mut self, step: Step, piece: &mut Piece) {
        match step {
            Step::Begin(segment) => {
                self.arguments.clear();
                self.open = Some(segment);
            }
            Step::More(text) => match &self.open {
                Some(Segment::Thinking) => piece.thinking.push_str(&text),
                Some(Segment::Text) => piece.content.push_str(&text),
                Some(Segment::Call { .. }) => self.arguments.push_str(&text),
                None => {}
            },
            Step::End { whole } => {
                if let Some(Segment::Call { id, name }) = self.open.take()
                    && whole
                {
                    piece.calls.extend(self.call(id, name));
                }
            }
        }
    }

    fn call(&mut self, id: String, name: String) -> Option<OllamaToolCall> {
        let arguments: Map<String, Value> = serde_json::from_str(&self.arguments).ok()?;
        let index = self.calls;
        self.calls += 1;
        Some(OllamaToolCall {
            id: Some(id),
            kind: None,
            function: OllamaCalledFunction {
                index: Some(index),
                name,
                arguments,
            },
        })
    }
}
