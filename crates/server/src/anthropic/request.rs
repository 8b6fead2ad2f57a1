//! What Anthropic's clients send.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::union::{Kinds, TextOr, or_default};
use crate::wire::Wire;

/// A conversation to go on with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesRequest {
    /// The model's name or alias.
    pub model: String,
    /// What was said so far, the user's words last. Turns of one speaker in a row are one turn.
    pub messages: Vec<Turn>,
    /// Longest reply, in tokens, thinking included.
    #[schema(minimum = 1)]
    pub max_tokens: usize,
    /// How the model is to behave.
    pub system: Option<TextOr<SystemBlock>>,
    /// Texts that end the reply; the one that did is named in `stop_sequence`.
    #[serde(default)]
    pub stop_sequences: Vec<String>,
    /// Functions that the model may ask to have called.
    #[serde(default)]
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: Option<ToolChoice>,
    pub thinking: Option<Thinking>,
    pub output_config: Option<OutputConfig>,
    /// Send the reply as it comes.
    #[serde(default)]
    pub stream: bool,
}

impl Wire for MessagesRequest {
    const IGNORED: &'static [(&'static str, &'static str)] = IGNORED;
    const WITHIN: &'static [(&'static str, &'static str)] = WITHIN;
    const REFUSED: &'static [(&'static str, &'static str)] = REFUSED;
    const SAMPLING: bool = true;
}

/// A conversation whose tokens are to be counted.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountRequest {
    /// The model's name or alias.
    pub model: String,
    /// What was said so far.
    pub messages: Vec<Turn>,
    /// How the model is to behave.
    pub system: Option<TextOr<SystemBlock>>,
    /// Functions that the model may ask to have called.
    #[serde(default)]
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: Option<ToolChoice>,
    pub thinking: Option<Thinking>,
    pub output_config: Option<OutputConfig>,
}

impl Wire for CountRequest {
    const IGNORED: &'static [(&'static str, &'static str)] = IGNORED;
    const WITHIN: &'static [(&'static str, &'static str)] = WITHIN;
    const REFUSED: &'static [(&'static str, &'static str)] = REFUSED;
}

const IGNORED: &[(&str, &str)] = &[
    (
        "metadata",
        "who the request is for is told by the key it is made with",
    ),
    ("service_tier", "there is one tier"),
    (
        "cache_control",
        "prompts are cached without being asked, as far as there is room",
    ),
    (
        "context_management",
        "nothing is taken out of a conversation; what does not fit is refused",
    ),
];

const WITHIN: &[(&str, &str)] = &[
    (
        "output_config.effort",
        "only where the model's template cannot be told how hard to think",
    ),
    (
        "citations",
        "where an earlier reply had its words from is not shown to the model",
    ),
    ("redacted_thinking", "nobody can read it"),
    ("caller", "here only the model itself asks for calls"),
    ("eager_input_streaming", "input is streamed as it comes"),
];

const REFUSED: &[(&str, &str)] = &[
    ("container", "no code is run here"),
    ("mcp_servers", "tools are called by the client"),
    ("inference_geo", "the model runs where this server does"),
    ("speed", "there is one speed"),
    ("diagnostics", "nothing is compared with earlier requests"),
];

/// One turn of the conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicTurn)]
pub struct Turn {
    pub role: Speaker,
    pub content: TextOr<Block>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicRole)]
pub enum Speaker {
    User,
    Assistant,
    System,
}

/// A piece of a turn.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicBlock)]
pub enum Block {
    Text(TextBlock),
    Thinking(ThinkingBlock),
    RedactedThinking(RedactedThinkingBlock),
    ToolUse(ToolUseBlock),
    ToolResult(ToolResultBlock),
}

const BLOCKS: Kinds = Kinds {
    default: None,
    refused: &[
        (&["image", "document"], ONLY_TEXT),
        (
            &["search_result", "container_upload"],
            "write what it says as text",
        ),
        (
            &[
                "server_tool_use",
                "web_search_tool_result",
                "web_fetch_tool_result",
                "code_execution_tool_result",
                "bash_code_execution_tool_result",
                "text_editor_code_execution_tool_result",
                "tool_search_tool_result",
                "mcp_tool_use",
                "mcp_tool_result",
            ],
            "tools are called by the client",
        ),
    ],
};

const ONLY_TEXT: &str = "messages are text";

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BLOCKS.read(deserializer, Self::deserialize)
    }
}

/// Words.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicTextBlock)]
pub struct TextBlock {
    pub text: String,
    /// Has no effect: prompts are cached without being asked.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
    /// Has no effect: where an earlier reply had its words from is not shown to the model.
    #[schema(value_type = Option<Vec<Object>>)]
    pub citations: Option<Vec<Value>>,
}

/// What the assistant thought, as an earlier reply had it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicThinkingBlock)]
pub struct ThinkingBlock {
    pub thinking: String,
    /// Any text: thinking is not signed here.
    #[serde(default, deserialize_with = "or_default")]
    #[expect(dead_code, reason = "clients send back what they were given")]
    pub signature: String,
}

/// Thinking that nobody can read. Has no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicRedactedThinkingBlock)]
pub struct RedactedThinkingBlock {
    #[expect(dead_code, reason = "it cannot be read")]
    pub data: String,
}

/// A call that the assistant asked for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicToolUseBlock)]
pub struct ToolUseBlock {
    pub id: String,
    pub name: String,
    #[schema(value_type = Object)]
    pub input: Map<String, Value>,
    /// Has no effect: prompts are cached without being asked.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
    /// Has no effect: here only the model itself asks for calls, which is `{"type": "direct"}`.
    #[schema(value_type = Option<Object>)]
    pub caller: Option<Map<String, Value>>,
}

/// What came of a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicToolResultBlock)]
pub struct ToolResultBlock {
    /// The `id` of a `tool_use` block before it.
    pub tool_use_id: String,
    pub content: Option<TextOr<ResultBlock>>,
    /// The call failed. The model is told by `Error: ` before the result.
    #[serde(default, deserialize_with = "or_default")]
    pub is_error: bool,
    /// Has no effect: prompts are cached without being asked.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
}

/// A piece of a call's result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicResultBlock)]
pub enum ResultBlock {
    Text(TextBlock),
}

impl<'de> Deserialize<'de> for ResultBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BLOCKS.read(deserializer, Self::deserialize)
    }
}

/// A piece of what the model is told first.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicSystemBlock)]
pub enum SystemBlock {
    Text(TextBlock),
}

impl<'de> Deserialize<'de> for SystemBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BLOCKS.read(deserializer, Self::deserialize)
    }
}

/// A function that the model may ask to have called. `type` may be left out. Anthropic's own tools
/// are not to be had.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicTool)]
pub enum ToolDefinition {
    Custom(CustomTool),
}

const TOOLS: Kinds = Kinds {
    default: Some("custom"),
    refused: &[],
};

impl<'de> Deserialize<'de> for ToolDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TOOLS.read(deserializer, Self::deserialize)
    }
}

/// A function of the client's.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicCustomTool)]
pub struct CustomTool {
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema of an object.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// Hold the input to the schema while it is generated.
    #[serde(default, deserialize_with = "or_default")]
    pub strict: bool,
    /// Has no effect: prompts are cached without being asked.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
    /// Has no effect: input is streamed as it comes.
    pub eager_input_streaming: Option<bool>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = AnthropicToolChoice)]
pub enum ToolChoice {
    /// As the model likes.
    Auto {
        /// At most one call in a reply.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// At least one.
    Any {
        /// At most one call in a reply.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// This one.
    Tool {
        name: String,
        /// At most one call in a reply.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// Not at all.
    None {},
}

/// Whether the model thinks before it answers. Left out, as the model likes.
///
/// `enabled` is refused where the model does not think, and `disabled` where it always does.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = AnthropicThinking)]
pub enum Thinking {
    Enabled {
        /// Most tokens to think; then the answer begins. Less than `max_tokens`.
        #[schema(minimum = 1)]
        budget_tokens: usize,
        display: Option<Display>,
    },
    Disabled {},
    /// As the model likes.
    Adaptive {
        display: Option<Display>,
    },
}

/// How thinking is shown: as it was thought, which is what `summarized` asks for at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicThinkingDisplay)]
pub enum Display {
    Summarized,
    /// `thinking` is empty in the reply's blocks.
    Omitted,
}

/// What the answer must be, and how hard to think for it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicOutputConfig)]
pub struct OutputConfig {
    /// How hard to think; `xhigh` and `max` are as `high`. Has no effect on a model whose template
    /// cannot be told; refused beside `thinking` that is `disabled`.
    pub effort: Option<Effort>,
    pub format: Option<OutputFormat>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicEffort)]
pub enum Effort {
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// Holds the answer to a schema while it is generated.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = AnthropicOutputFormat)]
pub enum OutputFormat {
    JsonSchema {
        #[schema(value_type = Object)]
        schema: Value,
    },
}
