//! Requests.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::field::{Field, FieldPath};
use crate::remote_media::MediaUrls;
use crate::tool_types;
use crate::union::{TextOr, TypeTags, null_as_default};
use crate::wire::{FieldTables, WireRequest};

/// A conversation to answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MessagesRequest {
    /// The model's name or alias.
    pub model: String,
    /// The conversation so far, the user's message last. Adjacent messages of one role are joined.
    pub messages: Vec<InputMessage>,
    /// The longest reply in tokens, thinking included. One that exceeds the room in the context is
    /// reduced to it, and the header `x-loquat-max-tokens` has the limit.
    #[schema(minimum = 1)]
    pub max_tokens: usize,
    /// The system message.
    pub system: Option<TextOr<SystemBlock>>,
    /// Texts that end the reply; `stop_sequence` names the one that did.
    #[serde(default)]
    pub stop_sequences: Vec<String>,
    /// Functions that the model may call.
    #[serde(default)]
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: Option<ToolChoice>,
    pub thinking: Option<Thinking>,
    pub output_config: Option<OutputConfig>,
    /// Stream the reply as server-sent events.
    #[serde(default)]
    pub stream: bool,
    /// Most tokens to draft and verify in one step; 0 for none. Drafts change the speed, not the
    /// reply.
    #[serde(rename = "speculative.n_max")]
    pub draft_max: Option<usize>,
}

impl WireRequest for MessagesRequest {
    const IGNORED: FieldTables<&'static str> = &[IGNORED];
    const IGNORED_NESTED: FieldTables<&'static str> = &[IGNORED_NESTED];
    const REFUSED: FieldTables<Field> = &[REFUSED];
    const SAMPLING: bool = true;
    const TOOL_TYPES: &'static [&'static str] = TOOL_TYPES;
}

/// A conversation to count tokens of.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountRequest {
    /// The model's name or alias.
    pub model: String,
    /// The conversation so far.
    pub messages: Vec<InputMessage>,
    /// The system message.
    pub system: Option<TextOr<SystemBlock>>,
    /// Functions that the model may call.
    #[serde(default)]
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: Option<ToolChoice>,
    pub thinking: Option<Thinking>,
    pub output_config: Option<OutputConfig>,
}

impl WireRequest for CountRequest {
    const IGNORED: FieldTables<&'static str> = &[IGNORED];
    const IGNORED_NESTED: FieldTables<&'static str> = &[IGNORED_NESTED];
    const REFUSED: FieldTables<Field> = &[REFUSED];
    const TOOL_TYPES: &'static [&'static str] = TOOL_TYPES;
}

const TOOL_TYPES: &[&str] = &["custom"];

const IGNORED: &[(&str, &str)] = &[
    ("metadata", "clients are identified by their keys"),
    ("service_tier", "there is only one tier"),
    (
        "cache_control",
        "every prompt is cached while there is memory",
    ),
    (
        "context_management",
        "conversations are not shortened; those that exceed the context are refused",
    ),
    ("inference_geo", "the model runs on this server"),
    ("speed", "there is only one speed"),
    ("diagnostics", "requests are not compared"),
];

const IGNORED_NESTED: &[(&str, &str)] = &[
    (
        "output_config.effort",
        "only if the model's template has no such setting, or `thinking` is disabled",
    ),
    (
        "thinking",
        "`enabled` and `adaptive`, only if the model does not think",
    ),
    tool_types::IGNORED,
    ("citations", "the model does not see citations"),
    ("redacted_thinking", "it cannot be decrypted"),
    ("caller", "only the model calls tools"),
    ("eager_input_streaming", "input is always streamed"),
];

const REFUSED: &[(Field, &str)] = &[
    (Field::Container, "this server does not run code"),
    (Field::McpServers, "the client calls tools"),
];

/// A message of the conversation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicInputMessage)]
pub struct InputMessage {
    pub role: MessageRole,
    pub content: TextOr<InputBlock>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicRole)]
pub enum MessageRole {
    User,
    Assistant,
    System,
}

/// A block of a message.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicBlock)]
pub enum InputBlock {
    Text(TextBlock),
    Image(ImageBlock),
    Thinking(ThinkingBlock),
    RedactedThinking(RedactedThinkingBlock),
    ToolUse(ToolUseBlock),
    ToolResult(ToolResultBlock),
}

const BLOCKS: TypeTags = TypeTags {
    default: None,
    refused: &[
        (&["document"], "send its text"),
        (
            &["search_result", "container_upload"],
            "send its content as text",
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
            "the client calls tools",
        ),
    ],
};

impl<'de> Deserialize<'de> for InputBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BLOCKS.read(deserializer, Self::deserialize)
    }
}

/// Text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicTextBlock)]
pub struct TextBlock {
    pub text: String,
    /// Has no effect: every prompt is cached.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
    /// Has no effect: the model does not see citations.
    #[schema(value_type = Option<Vec<Object>>)]
    pub citations: Option<Vec<Value>>,
}

/// An image, for models that read images.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicImageBlock)]
pub struct ImageBlock {
    pub source: ImageSource,
    /// Has no effect: every prompt is cached.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
}

/// Where an image is: in the request, or at a URL.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicImageSource)]
pub enum ImageSource {
    Base64(Base64Source),
    Url(UrlSource),
}

const SOURCES: TypeTags = TypeTags {
    default: None,
    refused: &[(
        &["file"],
        "this server stores no files; send the image itself as `base64`",
    )],
};

impl<'de> Deserialize<'de> for ImageSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        SOURCES.read(deserializer, Self::deserialize)
    }
}

/// An image file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicBase64Source)]
pub struct Base64Source {
    /// `image/png`, `image/jpeg`, `image/webp`, `image/gif` or `image/bmp`.
    pub media_type: String,
    pub data: String,
}

/// An image's address.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicUrlSource)]
pub struct UrlSource {
    /// On a host that the configuration lists; or a `data:` URI with base64.
    pub url: String,
}

/// The assistant's thinking in an earlier reply.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicThinkingBlock)]
pub struct ThinkingBlock {
    pub thinking: String,
    /// Any text: thinking is not signed.
    #[serde(default, deserialize_with = "null_as_default")]
    #[expect(dead_code, reason = "clients send it back")]
    pub signature: String,
}

/// Encrypted thinking. Has no effect.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicRedactedThinkingBlock)]
pub struct RedactedThinkingBlock {
    #[expect(dead_code, reason = "it cannot be decrypted")]
    pub data: String,
}

/// A call of the assistant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicToolUseBlock)]
pub struct ToolUseBlock {
    pub id: String,
    pub name: String,
    #[schema(value_type = Object)]
    pub input: Map<String, Value>,
    /// Has no effect: every prompt is cached.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
    /// Has no effect: only the model calls tools, which is `{"type": "direct"}`.
    #[schema(value_type = Option<Object>)]
    pub caller: Option<Map<String, Value>>,
}

/// The result of a call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicToolResultBlock)]
pub struct ToolResultBlock {
    /// The `id` of an earlier `tool_use` block.
    pub tool_use_id: String,
    pub content: Option<TextOr<ResultBlock>>,
    /// The call failed. The model sees `Error: ` before the result.
    #[serde(default, deserialize_with = "null_as_default")]
    pub is_error: bool,
    /// Has no effect: every prompt is cached.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
}

/// A block of a call's result.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicResultBlock)]
pub enum ResultBlock {
    Text(TextBlock),
    Image(ImageBlock),
}

impl<'de> Deserialize<'de> for ResultBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BLOCKS.read(deserializer, Self::deserialize)
    }
}

/// A block of the system message.
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

/// A function that the model may call. `type` may be omitted. Anthropic's own tools are removed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = AnthropicTool)]
pub enum ToolDefinition {
    Custom(CustomTool),
}

const TOOLS: TypeTags = TypeTags {
    default: Some("custom"),
    refused: &[],
};

impl<'de> Deserialize<'de> for ToolDefinition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TOOLS.read(deserializer, Self::deserialize)
    }
}

/// A function of the client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicCustomTool)]
pub struct CustomTool {
    pub name: String,
    pub description: Option<String>,
    /// The JSON schema of an object.
    #[schema(value_type = Object)]
    pub input_schema: Value,
    /// Constrain the input to the schema.
    #[serde(default, deserialize_with = "null_as_default")]
    pub strict: bool,
    /// Has no effect: every prompt is cached.
    #[schema(value_type = Option<Object>)]
    pub cache_control: Option<Map<String, Value>>,
    /// Has no effect: input is always streamed.
    pub eager_input_streaming: Option<bool>,
}

/// Whether tools are called.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = AnthropicToolChoice)]
pub enum ToolChoice {
    /// The model decides.
    Auto {
        /// At most one call in a reply.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// At least one tool is called.
    Any {
        /// At most one call in a reply.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// This tool is called.
    Tool {
        name: String,
        /// At most one call in a reply.
        #[serde(default)]
        disable_parallel_tool_use: bool,
    },
    /// No tool is called.
    None {},
}

/// Whether the model thinks before it answers; the model decides if omitted.
///
/// `enabled` and `adaptive` have no effect if the model does not think; `disabled` is refused if it
/// always does.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = AnthropicThinking)]
pub enum Thinking {
    Enabled {
        /// The most tokens of thinking; then the answer begins. Less than `max_tokens`.
        #[schema(minimum = 1)]
        budget_tokens: usize,
        display: Option<Display>,
    },
    Disabled {},
    /// The model decides.
    Adaptive {
        display: Option<Display>,
    },
}

/// How thinking is returned: in full, unless it is `omitted`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = AnthropicThinkingDisplay)]
pub enum Display {
    Summarized,
    /// The blocks' `thinking` is empty.
    Omitted,
}

/// The format of the answer, and how much to think.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AnthropicOutputConfig)]
pub struct OutputConfig {
    /// How much to think; `xhigh` and `max` mean `high`. Has no effect if the model's template has
    /// no such setting, or if `thinking` is `disabled`.
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

/// Constrains the answer to a schema.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = AnthropicOutputFormat)]
pub enum OutputFormat {
    JsonSchema {
        #[schema(value_type = Object)]
        schema: Value,
    },
}

impl MediaUrls for CountRequest {
    fn media_urls(&mut self) -> Vec<(FieldPath, &mut String)> {
        media_urls(&mut self.messages)
    }
}

fn media_urls(messages: &mut [InputMessage]) -> Vec<(FieldPath, &mut String)> {
    let mut urls = Vec::new();
    for (index, message) in messages.iter_mut().enumerate() {
        let TextOr::Many(blocks) = &mut message.content else {
            continue;
        };
        for (at, block) in blocks.iter_mut().enumerate() {
            let path = Field::Messages.index(index).field(Field::Content).index(at);
            match block {
                InputBlock::Image(block) => urls.extend(block.media_url(path)),
                InputBlock::ToolResult(ToolResultBlock {
                    content: Some(TextOr::Many(blocks)),
                    ..
                }) => {
                    let blocks = blocks.iter_mut().enumerate();
                    urls.extend(blocks.filter_map(|(at, block)| match block {
                        ResultBlock::Image(block) => {
                            block.media_url(path.clone().field(Field::Content).index(at))
                        }
                        ResultBlock::Text(_) => None,
                    }));
                }
                _ => {}
            }
        }
    }
    urls
}

impl ImageBlock {
    fn media_url(&mut self, path: FieldPath) -> Option<(FieldPath, &mut String)> {
        match &mut self.source {
            ImageSource::Url(UrlSource { url }) => {
                Some((path.field(Field::Source).field(Field::Url), url))
            }
            ImageSource::Base64(_) => None,
        }
    }
}
