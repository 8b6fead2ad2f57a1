//! The response object.

use std::collections::BTreeMap;

use loquat_engine::Usage;
use serde::Serialize;
use utoipa::ToSchema;

use super::item::Item;
use super::request::{Reasoning, TextConfig, Tool, ToolChoice, Truncation};
use crate::error::{ApiError, ErrorKind};

/// A response, with the options of its request.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Response)]
pub struct ResponseObject {
    pub id: String,
    #[schema(pattern = "^response$")]
    pub object: &'static str,
    /// In seconds since 1970.
    pub created_at: u64,
    /// In seconds since 1970.
    pub completed_at: Option<u64>,
    pub status: ResponseStatus,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<usize>,
    pub model: String,
    /// Reasoning, text and calls, in the model's order.
    pub output: Vec<Item>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    pub reasoning: Reasoning,
    pub store: bool,
    pub temperature: f32,
    pub text: TextConfig,
    pub tool_choice: ToolChoice,
    pub tools: Vec<Tool>,
    pub top_logprobs: usize,
    pub top_p: f32,
    pub truncation: Truncation,
    pub background: bool,
    pub usage: Option<ResponseUsage>,
    pub metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// Why a response failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseError {
    /// `server_error`, `rate_limit_exceeded` or `invalid_prompt`.
    pub code: &'static str,
    pub message: String,
}

impl From<&ApiError> for ResponseError {
    fn from(error: &ApiError) -> Self {
        let code = match error.kind {
            ErrorKind::RateLimited | ErrorKind::Overloaded => "rate_limit_exceeded",
            ErrorKind::InvalidRequest => "invalid_prompt",
            _ => "server_error",
        };
        Self {
            code,
            message: error.message.clone(),
        }
    }
}

/// Why a response is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct IncompleteDetails {
    #[schema(pattern = "^max_output_tokens$")]
    pub reason: &'static str,
}

/// The tokens of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseUsage {
    pub input_tokens: usize,
    pub input_tokens_details: InputTokensDetails,
    /// Reasoning and the end-of-turn token included.
    pub output_tokens: usize,
    pub output_tokens_details: OutputTokensDetails,
    pub total_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct InputTokensDetails {
    /// Tokens found in the prefix cache.
    pub cached_tokens: usize,
    /// Always 0: caching a prompt has no cost.
    pub cache_write_tokens: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OutputTokensDetails {
    /// Tokens of reasoning, without its markers.
    pub reasoning_tokens: usize,
}

impl ResponseUsage {
    pub fn new(usage: Usage, reasoning_tokens: usize) -> Self {
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        } = usage;
        Self {
            input_tokens: prompt_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: completion_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens },
            total_tokens: prompt_tokens + completion_tokens,
        }
    }
}

/// The input of a response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseItemList)]
pub struct ItemList {
    #[schema(pattern = "^list$")]
    pub object: &'static str,
    pub data: Vec<Item>,
    pub first_id: Option<String>,
    pub last_id: Option<String>,
    pub has_more: bool,
}

/// A deleted response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ResponseDeleted)]
pub struct DeletedResponse {
    pub id: String,
    #[schema(pattern = "^response$")]
    pub object: &'static str,
    pub deleted: bool,
}
