//! A chunk of a streamed chat completion.

use serde::Serialize;
use utoipa::ToSchema;

use crate::openai::logprobs::ChatLogprobs;
use crate::openai::tools::FunctionType;
use crate::openai::usage::TokenUsage;

/// A chunk of a stream.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletionChunk<'a> {
    pub id: &'a str,
    /// `chat.completion.chunk`
    pub object: &'static str,
    pub created: u64,
    pub model: &'a str,
    pub system_fingerprint: &'a str,
    /// One choice; none in the chunk with the usage.
    pub choices: Vec<ChunkChoice>,
    /// If requested: null before the end, unless `continuous_usage_stats` is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TokenUsage>)]
    pub usage: Option<Option<TokenUsage>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkChoice {
    pub index: usize,
    pub delta: ChunkDelta,
    /// Of the tokens of `delta.content`; null unless requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`, in the choice's last chunk.
    pub finish_reason: Option<&'static str>,
}

/// What is new in a choice.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChunkDelta {
    /// `assistant`, in the choice's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ChunkCall; 1]>,
}

/// The start of a call, or more of its arguments.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkCall {
    /// The call's number in the choice.
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<FunctionType>,
    pub function: ChunkFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ChunkFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}
