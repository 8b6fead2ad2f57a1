//! Completions in one piece.

use loquat_engine::Usage;
use serde::Serialize;
use utoipa::ToSchema;

use super::choice::CompletionChoice;
use crate::openai::Head;
use crate::openai::usage::TokenUsage;

/// Continuations of all prompts, or a piece of a stream of them.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    pub id: String,
    /// `text_completion`
    pub object: &'static str,
    /// When, in seconds since 1970.
    pub created: u64,
    pub model: String,
    /// By which version and backend. A seed repeats a text as long as this stays the same.
    pub system_fingerprint: String,
    pub choices: Vec<CompletionChoice>,
    /// In a stream where it was asked for: null before the end, unless `continuous_usage_stats`
    /// is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TokenUsage>)]
    pub usage: Option<Option<TokenUsage>>,
}

impl Completion {
    pub fn new(
        head: Head,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<TokenUsage>>,
    ) -> Self {
        let Head {
            id,
            created,
            model,
            fingerprint,
        } = head;
        Self {
            id,
            object: "text_completion",
            created,
            model,
            system_fingerprint: fingerprint,
            choices,
            usage,
        }
    }
}

impl TokenUsage {
    /// Of several prompts.
    pub fn of_all(usages: impl Iterator<Item = Usage>) -> Self {
        let sum = usages.fold(Usage::default(), |sum, each| Usage {
            prompt_tokens: sum.prompt_tokens + each.prompt_tokens,
            completion_tokens: sum.completion_tokens + each.completion_tokens,
            cached_tokens: sum.cached_tokens + each.cached_tokens,
        });
        Self::new(sum, None)
    }
}
