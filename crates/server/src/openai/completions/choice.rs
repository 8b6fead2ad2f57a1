//! One continuation as it comes: what a stream sends on, and an answer gathers.

use std::sync::Arc;

use loquat_engine::{Completion, Event, FinishReason, TokenInfo};
use loquat_text::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::{self, CompletionLogprobs, Offsets, PromptLogprobs};
use super::lower::Telling;

/// A continuation, or a piece of one.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Choices of the first prompt come first.
    pub index: usize,
    pub text: String,
    /// Null unless asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null in a stream before the end.
    pub finish_reason: Option<&'static str>,
    /// Where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// What has to be remembered of a choice.
pub struct Choice {
    index: usize,
    tokenizer: Tokenizer,
    telling: Telling,
    /// Until the first news.
    prompt: Option<Arc<str>>,
    offsets: Offsets,
}

impl Choice {
    pub fn new(index: usize, prompt: &Arc<str>, telling: Telling, tokenizer: &Tokenizer) -> Self {
        let echoed = if telling.echo {
            prompt.chars().count()
        } else {
            0
        };
        Self {
            index,
            tokenizer: tokenizer.clone(),
            telling,
            prompt: Some(Arc::clone(prompt)),
            offsets: Offsets::behind(echoed, tokenizer),
        }
    }

    /// Takes news; gives what is to be told of them.
    pub fn take(&mut self, event: Event) -> CompletionChoice {
        let mut piece = self.begin(match &event {
            Event::PromptLogprobs(infos) => infos,
            _ => &[],
        });
        match event {
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_) => {}
            Event::Tokens { tokens, text } => {
                piece.text.push_str(&text);
                self.score(&tokens, &mut piece);
            }
            Event::Finished { reason, text, .. } => {
                piece.text.push_str(&text);
                piece.finish_reason = Some(match reason {
                    FinishReason::Length => "length",
                    FinishReason::Stop | FinishReason::StopString(_) => "stop",
                });
            }
        }
        piece
    }

    /// A piece that has the prompt, where it is the first and that is wanted.
    fn begin(&mut self, infos: &[TokenInfo]) -> CompletionChoice {
        let logprobs = self.telling.logprobs.map(|_| CompletionLogprobs::default());
        let mut piece = CompletionChoice {
            index: self.index,
            logprobs,
            ..CompletionChoice::default()
        };
        let Some(prompt) = self.prompt.take() else {
            return piece;
        };
        if let Some(count) = self.telling.prompt_logprobs {
            piece.prompt_logprobs = Some(logprobs::of_prompt(infos, count, &self.tokenizer));
        }
        if self.telling.echo {
            if let (Some(told), Some(count)) = (&mut piece.logprobs, self.telling.logprobs) {
                score_prompt(told, &prompt, infos, count, &self.tokenizer);
            }
            piece.text = prompt.to_string();
        }
        piece
    }

    fn score(&mut self, tokens: &[TokenInfo], piece: &mut CompletionChoice) {
        if let (Some(told), Some(count)) = (&mut piece.logprobs, self.telling.logprobs) {
            for info in tokens {
                let offset = self.offsets.next(info.id);
                told.push(info, count, offset, &self.tokenizer);
            }
        }
    }

    /// All of it at once.
    pub fn whole(mut self, completion: Completion) -> CompletionChoice {
        let Completion {
            prompt_logprobs,
            embedding: _,
            tokens,
            text,
            reason,
            usage,
            timings,
            seed,
        } = completion;
        let events = [
            Event::PromptLogprobs(prompt_logprobs),
            Event::Tokens { tokens, text },
            Event::Finished {
                reason,
                text: String::new(),
                usage,
                timings,
                seed,
            },
        ];
        let pieces = events.map(|event| self.take(event));
        pieces.into_iter().fold(
            CompletionChoice {
                index: self.index,
                ..CompletionChoice::default()
            },
            CompletionChoice::with,
        )
    }
}

impl CompletionChoice {
    fn with(mut self, more: Self) -> Self {
        let Self {
            index: _,
            text,
            logprobs,
            finish_reason,
            prompt_logprobs,
        } = more;
        self.text.push_str(&text);
        if let Some(more) = logprobs {
            self.logprobs.get_or_insert_default().extend(more);
        }
        self.finish_reason = self.finish_reason.or(finish_reason);
        self.prompt_logprobs = self.prompt_logprobs.or(prompt_logprobs);
        self
    }

    /// Whether it has anything to tell.
    pub fn is_empty(&self) -> bool {
        let Self {
            index: _,
            text,
            logprobs,
            finish_reason,
            prompt_logprobs,
        } = self;
        let scored = logprobs
            .as_ref()
            .is_some_and(|told| !told.tokens.is_empty());
        text.is_empty() && !scored && finish_reason.is_none() && prompt_logprobs.is_none()
    }
}

fn score_prompt(
    told: &mut CompletionLogprobs,
    prompt: &str,
    infos: &[TokenInfo],
    count: usize,
    tokenizer: &Tokenizer,
) {
    let mut offsets = Offsets::of_prompt(tokenizer);
    for (at, info) in infos.iter().enumerate() {
        let text = tokenizer.token_text(info.id).unwrap_or_default();
        // The tokenizer put it before a text that did not have it.
        let added = at == 0 && tokenizer.is_special(info.id) && !prompt.starts_with(&text);
        let offset = if added { 0 } else { offsets.next(info.id) };
        told.push(info, count, offset, tokenizer);
    }
}
