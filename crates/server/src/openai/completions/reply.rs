//! Completions in one piece.

use loquat_engine::Usage;
use serde::Serialize;
use utoipa::ToSchema;

use super::choice::CompletionChoice;
use crate::openai::CompletionHead;
use crate::openai::usage::TokenUsage;

/// Choices of all prompts, or a chunk of a stream of them.
#[derive(Debug, Serialize, ToSchema)]
pub struct Completion {
    pub id: String,
    /// `text_completion`
    pub object: &'static str,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    /// The version and backend. A seed repeats a text while this stays the same.
    pub system_fingerprint: String,
    pub choices: Vec<CompletionChoice>,
    /// In a stream if requested: null before the end, unless `continuous_usage_stats` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TokenUsage>)]
    pub usage: Option<Option<TokenUsage>>,
}

impl Completion {
    pub fn new(
        head: CompletionHead,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<TokenUsage>>,
    ) -> Self {
        let CompletionHead {
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
    /// The usage of several prompts.
    pub fn sum(usages: impl Iterator<Item = Usage>) -> Self {
        let sum = usages.fold(Usage::default(), |sum, each| Usage {
            prompt_tokens: sum.prompt_tokens + each.prompt_tokens,
            completion_tokens: sum.completion_tokens + each.completion_tokens,
            cached_tokens: sum.cached_tokens + each.cached_tokens,
        });
        Self::new(sum, None)
    }
}
