//! Responses and stream events.

use loquat_engine::{FinishReason, Usage};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Thinking is not signed, but clients require a text and send it back.
pub const SIGNATURE: &str = "unsigned";

/// A reply.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = AnthropicMessage)]
pub struct Message {
    pub id: String,
    #[schema(pattern = "^message$")]
    pub r#type: &'static str,
    #[schema(pattern = "^assistant$")]
    pub role: &'static str,
    pub model: String,
    pub content: Vec<Block>,
    pub stop_reason: Option<StopReason>,
    /// Which of the request's `stop_sequences` ended the reply.
    pub stop_sequence: Option<String>,
    pub usage: MessageUsage,
}

impl Message {
    /// A message without content.
    pub fn new(id: String, model: String, usage: MessageUsage) -> Self {
        Self {
            id,
            r#type: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schema(as = AnthropicReplyBlock)]
pub enum Block {
    Thinking {
        thinking: String,
        /// Send it back unchanged.
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        #[schema(value_type = Object)]
        input: Map<String, Value>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicStopReason)]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
}

impl StopReason {
    pub fn new(reason: FinishReason, has_calls: bool) -> Self {
        match reason {
            FinishReason::Length => Self::MaxTokens,
            FinishReason::StopString(_) => Self::StopSequence,
            FinishReason::Stop if has_calls => Self::ToolUse,
            FinishReason::Stop => Self::EndTurn,
        }
    }
}

/// The tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AnthropicUsage)]
pub struct MessageUsage {
    /// Prompt tokens that were not cached. All prompt tokens until a stream ends.
    pub input_tokens: usize,
    /// Prompt tokens found in the prefix cache.
    pub cache_read_input_tokens: usize,
    /// Always 0: caching a prompt has no cost.
    pub cache_creation_input_tokens: usize,
    pub output_tokens: usize,
}

impl From<Usage> for MessageUsage {
    fn from(usage: Usage) -> Self {
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        } = usage;
        Self {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_read_input_tokens: cached_tokens,
            cache_creation_input_tokens: 0,
            output_tokens: completion_tokens,
        }
    }
}

/// The length of a prompt.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicTokenCount)]
pub struct TokenCount {
    pub input_tokens: usize,
}

/// One event of a stream; its name is its `type`.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event<'a> {
    MessageStart {
        message: &'a Message,
    },
    Ping {},
    ContentBlockStart {
        index: usize,
        content_block: Block,
    },
    ContentBlockDelta {
        index: usize,
        delta: Delta<'a>,
    },
    ContentBlockStop {
        index: usize,
    },
    MessageDelta {
        delta: MessageEnd<'a>,
        usage: MessageUsage,
    },
    MessageStop {},
}

impl Event<'_> {
    pub fn name(&self) -> &'static str {
        match self {
            Self::MessageStart { .. } => "message_start",
            Self::Ping {} => "ping",
            Self::ContentBlockStart { .. } => "content_block_start",
            Self::ContentBlockDelta { .. } => "content_block_delta",
            Self::ContentBlockStop { .. } => "content_block_stop",
            Self::MessageDelta { .. } => "message_delta",
            Self::MessageStop {} => "message_stop",
        }
    }
}

/// More of a block.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub enum Delta<'a> {
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: &'static str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

/// Why a message ended.
#[derive(Debug, Serialize)]
pub struct MessageEnd<'a> {
    pub stop_reason: Option<StopReason>,
    pub stop_sequence: Option<&'a str>,
}
