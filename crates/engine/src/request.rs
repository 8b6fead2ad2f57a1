//! Requests and their validation.

use std::ops::RangeInclusive;
use std::time::Duration;

use loquat_session::{AdapterLimits, AppliedAdapter, Capabilities};

use crate::limits::Limits;
use crate::sampling::check_token;
use crate::{EngineError, Logprobs, Pooling, PromptMedia, RequestConstraint, SamplingParams};

/// Allowed values of [`GenerateRequest::priority`].
const PRIORITIES: RangeInclusive<i32> = -100..=100;

/// A request to generate tokens, score a prompt or embed it.
#[derive(Debug, Clone, Default)]
pub struct GenerateRequest {
    /// At least one token. Positions of `media` hold any token, which is not read, and count toward
    /// the length; [`join_spans`](crate::join_spans) makes both fields from spans.
    pub prompt: Vec<u32>,
    /// The media in the prompt, in order.
    pub media: Vec<PromptMedia>,
    /// At least 1; or 0 with `prompt_logprobs`, to score the prompt alone, or with `embed`.
    /// Together with the prompt at most the context.
    pub max_tokens: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens that end the text. The model's end-of-text tokens are not added automatically.
    pub stop_ids: Vec<u32>,
    /// Strings that end the text, even across tokens. They need a tokenizer.
    pub stop: Vec<String>,
    /// Log-probabilities of the chosen tokens and of alternatives.
    pub logprobs: Option<Logprobs>,
    /// Log-probabilities of the prompt's tokens, with the same number of alternatives, always of
    /// the model's own distribution.
    pub prompt_logprobs: bool,
    /// Compute the prompt's embedding only.
    pub embed: Option<Pooling>,
    /// Omit special tokens from the text.
    pub skip_special: bool,
    /// Special tokens to show anyway: marks of reasoning and tool calls.
    pub shown_special: Vec<u32>,
    /// The output starts a new text (a chat reply) instead of continuing the prompt:
    /// SentencePiece's leading space is dropped.
    pub fresh_text: bool,
    /// Limits which tokens may be generated.
    pub constraint: Option<RequestConstraint>,
    /// Lower goes first, as in vLLM; from -100 to 100. Waiting improves it.
    pub priority: i32,
    /// The client. Clients of one priority get equal shares; requests without a name form one
    /// client.
    pub client: Option<String>,
    /// Prefixes are shared only within a scope, so that response times reveal nothing about other
    /// scopes' prompts.
    pub cache_scope: Option<String>,
    /// Adapters that the [engine](crate::Engine::load_adapter) loaded. Their changes add up.
    pub adapters: Vec<AppliedAdapter>,
    /// How long the request may queue; `None` uses the engine's default.
    pub queue_timeout: Option<Duration>,
    /// How long its first token may take; `None` uses the engine's default.
    pub first_token_timeout: Option<Duration>,
    /// Most drafts that a step verifies: 0 for none, `None` for the engine's
    /// [limit](crate::SpeculationOptions::max_tokens), which it cannot exceed. They change how fast
    /// tokens come, not which.
    pub draft_tokens: Option<usize>,
}

/// What a request is validated against.
pub(crate) struct ValidationContext<'a> {
    pub capabilities: &'a Capabilities,
    pub limits: Limits,
    pub has_tokenizer: bool,
}

impl GenerateRequest {
    /// Rejects requests that can never be served.
    pub(crate) fn validate(&self, terms: &ValidationContext<'_>) -> Result<(), EngineError> {
        let Self {
            prompt,
            media,
            max_tokens,
            sampling,
            stop_ids,
            stop,
            logprobs,
            prompt_logprobs,
            embed,
            skip_special: _,
            shown_special: _,
            fresh_text: _,
            constraint: _,
            priority,
            client: _,
            cache_scope: _,
            adapters,
            queue_timeout: _,
            first_token_timeout: _,
            draft_tokens: _,
        } = self;
        if !PRIORITIES.contains(priority) {
            return Err(EngineError::OutOfRange {
                field: "priority",
                found: priority.to_string(),
                expected: format!("from {} to {}", PRIORITIES.start(), PRIORITIES.end()),
            });
        }
        let vocab_size = terms.capabilities.vocab_size;
        if prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        for (field, tokens) in [("prompt", prompt), ("stop_ids", stop_ids)] {
            for &token in tokens {
                check_token(field, token, vocab_size)?;
            }
        }
        self.check_media(media, terms)?;
        check_adapters(adapters, terms.capabilities)?;
        sampling.validate(vocab_size)?;
        check_stop(stop, terms.has_tokenizer)?;
        if sampling.needs_tokenizer() && !terms.has_tokenizer {
            return Err(EngineError::Unsupported {
                field: "dry_sequence_breakers",
                why: NO_TEXT,
            });
        }
        if embed.is_some() {
            self.check_embed(terms.capabilities)?;
        } else if *max_tokens == 0 && !prompt_logprobs {
            return Err(EngineError::OutOfRange {
                field: "max_tokens",
                found: "0".into(),
                expected: "at least 1, unless `prompt_logprobs` is all that is asked for".into(),
            });
        }
        if sampling.min_tokens > *max_tokens {
            return Err(EngineError::OutOfRange {
                field: "min_tokens",
                found: sampling.min_tokens.to_string(),
                expected: format!("at most `max_tokens`, which is {max_tokens}"),
            });
        }
        let alternatives = logprobs.map_or(0, |logprobs| logprobs.alternatives);
        if alternatives > vocab_size {
            return Err(EngineError::OutOfRange {
                field: "logprobs",
                found: alternatives.to_string(),
                expected: format!("from 0 to {vocab_size}, the vocabulary"),
            });
        }
        self.check_logits(terms.capabilities)?;
        terms.limits.check_size(prompt.len(), *max_tokens)
    }

    fn check_media(
        &self,
        media: &[PromptMedia],
        terms: &ValidationContext<'_>,
    ) -> Result<(), EngineError> {
        let (prompt, inputs) = (self.prompt.len(), &terms.capabilities.media);
        let capacity = terms.capabilities.media_positions;
        crate::media::validate(media, prompt, (inputs, capacity))?;
        let most = terms.limits.step_tokens;
        if inputs.whole_prompt && prompt > most {
            return Err(EngineError::OutOfRange {
                field: "prompt",
                found: format!("{prompt} tokens"),
                expected: format!("at most {most}, which this model reads at once"),
            });
        }
        if self.prompt_logprobs && !media.is_empty() {
            return Err(EngineError::Unsupported {
                field: "prompt_logprobs",
                why: "the prompt contains media, which have no tokens to score",
            });
        }
        Ok(())
    }

    /// Rejects generation and scoring options, which an embedding would ignore.
    fn check_embed(&self, capabilities: &Capabilities) -> Result<(), EngineError> {
        if capabilities.hidden_size.is_none() {
            return Err(EngineError::Unsupported {
                field: "embed",
                why: "this session gives no hidden states",
            });
        }
        let about_output = [
            ("max_tokens", self.max_tokens > 0),
            ("prompt_logprobs", self.prompt_logprobs),
            ("logprobs", self.logprobs.is_some()),
            ("constraint", self.constraint.is_some()),
            ("stop_ids", !self.stop_ids.is_empty()),
            ("stop", !self.stop.is_empty()),
            ("sampling", self.sampling != SamplingParams::default()),
        ];
        match about_output.into_iter().find(|(_, given)| *given) {
            None => Ok(()),
            Some((field, _)) => Err(EngineError::Unsupported {
                field,
                why: "an embedding is of the prompt, and nothing is generated beside it",
            }),
        }
    }

    fn check_logits(&self, capabilities: &Capabilities) -> Result<(), EngineError> {
        if capabilities.logits {
            return Ok(());
        }
        let field = if self.prompt_logprobs {
            "prompt_logprobs"
        } else if self.logprobs.is_some() {
            "logprobs"
        } else if self.constraint.is_some() {
            "constraint"
        } else if !self.sampling.is_plain_greedy() {
            "sampling"
        } else {
            return Ok(());
        };
        Err(EngineError::Unsupported {
            field,
            why: "this session gives no logits, only greedy tokens",
        })
    }
}

const NO_TEXT: &str = "the engine was started without a tokenizer, so it produces no text";

/// The session checks which adapters are loaded, when the request starts.
fn check_adapters(
    adapters: &[AppliedAdapter],
    capabilities: &Capabilities,
) -> Result<(), EngineError> {
    if !adapters.is_empty() && !capabilities.adapters.any() {
        return Err(EngineError::Unsupported {
            field: "adapters",
            why: "the session was opened without room for adapters",
        });
    }
    let out_of_range = |found: String, expected: String| EngineError::OutOfRange {
        field: "adapters",
        found,
        expected,
    };
    if adapters.len() > AdapterLimits::PER_SEQUENCE {
        let expected = format!("at most {}", AdapterLimits::PER_SEQUENCE);
        return Err(out_of_range(adapters.len().to_string(), expected));
    }
    match adapters.iter().find(|adapter| !adapter.scale.is_finite()) {
        Some(adapter) => Err(out_of_range(
            format!("of scale {}", adapter.scale),
            "of finite scales".to_owned(),
        )),
        None => Ok(()),
    }
}

fn check_stop(stop: &[String], has_tokenizer: bool) -> Result<(), EngineError> {
    if !stop.is_empty() && !has_tokenizer {
        return Err(EngineError::Unsupported {
            field: "stop",
            why: NO_TEXT,
        });
    }
    Ok(())
}
