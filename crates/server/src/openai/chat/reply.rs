//! A chat completion in one piece.

use serde::Serialize;
use utoipa::ToSchema;

use crate::openai::logprobs::ChatLogprobs;
use crate::openai::tools::FunctionType;
use crate::openai::usage::TokenUsage;

/// The answers to a conversation.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatCompletion {
    pub id: String,
    /// `chat.completion`
    pub object: &'static str,
    /// In seconds since 1970.
    pub created: u64,
    pub model: String,
    /// The version and backend. A seed repeats an answer while this stays the same.
    pub system_fingerprint: String,
    pub choices: Vec<ChatChoice>,
    pub usage: TokenUsage,
}

/// One answer.
#[derive(Debug, Serialize, ToSchema)]
pub struct ChatChoice {
    pub index: usize,
    pub message: ChatReply,
    /// Null unless requested.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// The assistant's message.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct ChatReply {
    /// `assistant`
    pub role: &'static str,
    /// Its text; null if it only called tools.
    pub content: Option<String>,
    /// Always null: a model's refusal is in its text.
    pub refusal: Option<String>,
    /// Its reasoning before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Its tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ReplyToolCall>,
}

/// A tool call of the assistant.
#[derive(Debug, Serialize, ToSchema)]
pub struct ReplyToolCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: FunctionType,
    pub function: ReplyFunction,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ReplyFunction {
    pub name: String,
    /// A JSON object as text, exactly as the model wrote it; incomplete if it was cut.
    pub arguments: String,
}
