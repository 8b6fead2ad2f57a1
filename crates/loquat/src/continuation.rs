//! From a text to continue to a generate request.

use loquat_chat::ChatContext;
use loquat_engine::{GenerateRequest, Logprobs, PromptSpan, SamplingParams, join_spans};
use loquat_grammar::GrammarSource;
use loquat_text::{FimPrompt, Special};

use crate::{Error, PromptEmbeddings};

/// A text to continue, without a chat template; the counterpart of
/// [`ChatRequest`](crate::ChatRequest).
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuationRequest {
    /// The text. Special tokens in it are read as such.
    pub text: String,
    /// The text that follows what the model writes, for models with fill-in-the-middle tokens.
    /// Special tokens are then plain text.
    pub suffix: Option<String>,
    /// Raw input embeddings before the text, which may then be empty. No token is added between.
    pub embeddings: Option<PromptEmbeddings>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Strings that end the continuation.
    pub stop: Vec<String>,
    /// What the continuation must match.
    pub constraint: Option<GrammarSource>,
    /// Log-probabilities to report.
    pub logprobs: Option<Logprobs>,
    /// Continue past the model's end-of-text tokens.
    pub ignore_eos: bool,
}

impl ContinuationRequest {
    /// A request with neutral sampling and nothing else set.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            suffix: None,
            embeddings: None,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            constraint: None,
            logprobs: None,
            ignore_eos: false,
        }
    }

    /// Tokenizes the text and compiles the constraint. `max_tokens` is left at 0 for
    /// [`Model::submit`](crate::Model::submit) to set.
    pub fn lower(self, context: &ChatContext) -> Result<GenerateRequest, Error> {
        let Self {
            text,
            suffix,
            embeddings,
            sampling,
            stop,
            constraint,
            logprobs,
            ignore_eos,
        } = self;
        let tokenizer = context.tokenizer();
        let grammar = constraint.map(|source| context.grammars().compile(&source));
        let grammar = grammar.transpose()?;
        let mut stop_ids = if ignore_eos {
            Vec::new()
        } else {
            tokenizer.eos_ids().to_vec()
        };
        let prompt = match suffix {
            Some(suffix) => {
                let (prompt, fim) = tokenizer.encode_fim(FimPrompt {
                    prefix: &text,
                    suffix: &suffix,
                    files: &[],
                })?;
                stop_ids.extend(fim.ends);
                prompt
            }
            None if embeddings.is_some() => tokenizer.encode(&text, Special::RENDERED)?,
            None => tokenizer.encode(&text, Special::PROMPT)?,
        };
        let embeddings = embeddings.map(PromptEmbeddings::into_span);
        let spans = embeddings.into_iter().chain([PromptSpan::Tokens(prompt)]);
        let (prompt, media) = join_spans(spans.collect());
        Ok(GenerateRequest {
            prompt,
            media,
            sampling,
            stop_ids,
            stop,
            logprobs,
            skip_special: true,
            constraint: grammar.map(|grammar| grammar.constraint()),
            ..GenerateRequest::default()
        })
    }
}
