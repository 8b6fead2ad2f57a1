//! What a request cost.

use loquat_engine::Usage;
use serde::Serialize;
use utoipa::ToSchema;

/// Tokens that a request cost, over all its choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenUsage {
    pub prompt_tokens: usize,
    /// The token that ended each choice included.
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    /// Of models that think.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Tokens of the prompt that were computed for an earlier request.
    pub cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of thinking, its marks aside.
    pub reasoning_tokens: usize,
}

impl TokenUsage {
    pub fn new(usage: Usage, reasoning_tokens: Option<usize>) -> Self {
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        } = usage;
        let details = |reasoning_tokens| CompletionTokensDetails { reasoning_tokens };
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: reasoning_tokens.map(details),
        }
    }
}
