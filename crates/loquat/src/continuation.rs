//! From a text to continue to a generate request.

use loquat_chat::ChatContext;
use loquat_engine::{GenerateRequest, Logprobs, SamplingParams};
use loquat_grammar::GrammarSource;
use loquat_text::Special;

use crate::Error;

/// A text to continue, without a chat template; the counterpart of
/// [`ChatRequest`](crate::ChatRequest).
#[derive(Debug, Clone, PartialEq)]
pub struct ContinuationRequest {
    /// The text. Special tokens in it are read as such.
    pub text: String,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Strings that ends the continuation.
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
            sampling,
            stop,
            constraint,
            logprobs,
            ignore_eos,
        } = self;
        let tokenizer = context.tokenizer();
        let grammar = constraint.map(|source| context.grammars().compile(&source));
        let grammar = grammar.transpose()?;
        Ok(GenerateRequest {
            prompt: tokenizer.encode(&text, Special::PROMPT)?,
            sampling,
            stop_ids: if ignore_eos {
                Vec::new()
            } else {
                tokenizer.eos_ids().to_vec()
            },
            stop,
            logprobs,
            skip_special: true,
            constraint: grammar.map(|grammar| grammar.constraint()),
            ..GenerateRequest::default()
        })
    }
}
