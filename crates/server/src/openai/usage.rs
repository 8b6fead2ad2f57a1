//! Token usage of a request.

use loquat_engine::Usage;
use serde::Serialize;
use utoipa::ToSchema;

/// The tokens of a request, over all its choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct TokenUsage {
    pub prompt_tokens: usize,
    /// The end-of-turn token of each choice included.
    pub completion_tokens: usize,
    pub total_tokens: usize,
    pub prompt_tokens_details: PromptTokensDetails,
    /// For models that reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of reasoning, without its markers.
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
