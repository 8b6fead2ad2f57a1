//! Renders one choice of a completion, in chunks or in one chunk.

use std::sync::Arc;

use loquat_engine::{Completion, Event, FinishReason, TokenInfo};
use loquat_text::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

use super::logprobs::{self, CompletionLogprobs, PromptLogprobs, TextOffsets};
use super::lower::OutputOptions;

/// A choice, or a chunk of one.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct CompletionChoice {
    /// Choices of the first prompt come first.
    pub index: usize,
    pub text: String,
    /// Null unless requested.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null in a stream before the end.
    pub finish_reason: Option<&'static str>,
    /// If requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Follows one choice.
pub struct ChoiceWriter {
    index: usize,
    tokenizer: Tokenizer,
    options: OutputOptions,
    /// Until the first event.
    prompt: Option<Arc<str>>,
    offsets: TextOffsets,
}

impl ChoiceWriter {
    pub fn new(
        index: usize,
        prompt: &Arc<str>,
        options: OutputOptions,
        tokenizer: &Tokenizer,
    ) -> Self {
        let echoed = if options.echo {
            prompt.chars().count()
        } else {
            0
        };
        Self {
            index,
            tokenizer: tokenizer.clone(),
            options,
            prompt: Some(Arc::clone(prompt)),
            offsets: TextOffsets::after(echoed, tokenizer),
        }
    }

    /// Consumes an event and returns its chunk, which may be empty.
    pub fn consume(&mut self, event: Event) -> CompletionChoice {
        let mut chunk = self.begin(match &event {
            Event::PromptLogprobs(infos) => infos,
            _ => &[],
        });
        match event {
            Event::PromptLogprobs(_) | Event::Embedding(_) | Event::Failed(_) => {}
            Event::Tokens { tokens, text } => {
                chunk.text.push_str(&text);
                self.push_logprobs(&tokens, &mut chunk);
            }
            Event::Finished { reason, text, .. } => {
                chunk.text.push_str(&text);
                chunk.finish_reason = Some(match reason {
                    FinishReason::Length => "length",
                    FinishReason::Stop | FinishReason::StopString(_) => "stop",
                });
            }
        }
        chunk
    }

    /// A chunk; the first one has the prompt, if requested.
    fn begin(&mut self, infos: &[TokenInfo]) -> CompletionChoice {
        let logprobs = self.options.logprobs.map(|_| CompletionLogprobs::default());
        let mut chunk = CompletionChoice {
            index: self.index,
            logprobs,
            ..CompletionChoice::default()
        };
        let Some(prompt) = self.prompt.take() else {
            return chunk;
        };
        if let Some(count) = self.options.prompt_logprobs {
            chunk.prompt_logprobs = Some(logprobs::prompt_logprobs(infos, count, &self.tokenizer));
        }
        if self.options.echo {
            if let (Some(logprobs), Some(count)) = (&mut chunk.logprobs, self.options.logprobs) {
                push_prompt(logprobs, &prompt, infos, count, &self.tokenizer);
            }
            chunk.text = prompt.to_string();
        }
        chunk
    }

    fn push_logprobs(&mut self, tokens: &[TokenInfo], chunk: &mut CompletionChoice) {
        if let (Some(logprobs), Some(count)) = (&mut chunk.logprobs, self.options.logprobs) {
            for info in tokens {
                let offset = self.offsets.next(info.id);
                logprobs.push(info, count, offset, &self.tokenizer);
            }
        }
    }

    /// Renders the choice in one chunk.
    pub fn finish(mut self, completion: Completion) -> CompletionChoice {
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
        let chunks = events.map(|event| self.consume(event));
        chunks.into_iter().fold(
            CompletionChoice {
                index: self.index,
                ..CompletionChoice::default()
            },
            CompletionChoice::joined,
        )
    }
}

impl CompletionChoice {
    fn joined(mut self, more: Self) -> Self {
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

    /// Whether it has nothing for the client.
    pub fn is_empty(&self) -> bool {
        let Self {
            index: _,
            text,
            logprobs,
            finish_reason,
            prompt_logprobs,
        } = self;
        let logprobs = logprobs.as_ref();
        let has_logprobs = logprobs.is_some_and(|logprobs| !logprobs.tokens.is_empty());
        text.is_empty() && !has_logprobs && finish_reason.is_none() && prompt_logprobs.is_none()
    }
}

fn push_prompt(
    logprobs: &mut CompletionLogprobs,
    prompt: &str,
    infos: &[TokenInfo],
    count: usize,
    tokenizer: &Tokenizer,
) {
    let mut offsets = TextOffsets::prompt(tokenizer);
    for (at, info) in infos.iter().enumerate() {
        let text = tokenizer.token_text(info.id).unwrap_or_default();
        // The tokenizer added it to a text without it.
        let added = at == 0 && tokenizer.is_special(info.id) && !prompt.starts_with(&text);
        let offset = if added { 0 } else { offsets.next(info.id) };
        logprobs.push(info, count, offset, tokenizer);
    }
}
