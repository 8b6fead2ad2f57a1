//! The request of a response.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::item::Item;
use crate::field::{Field, FieldPath};
use crate::openai::chat::wire::ReasoningEffort;
use crate::openai::options::NO_SETTING;
use crate::remote_media::MediaUrls;
use crate::tool_types;
use crate::union::{TextOr, TypeTags};
use crate::wire::{FieldTables, WireRequest};

/// A conversation to answer. The engine's sampling parameters are accepted beside these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// The user's message, or the items that follow those of `previous_response_id`.
    pub input: TextOr<Item>,
    /// The system message. Not carried over from a previous response.
    pub instructions: Option<String>,
    /// Continue this response, which the same key must have stored.
    pub previous_response_id: Option<String>,
    /// Store the response for later turns; default true. It is stored in memory, for as long as the
    /// configuration allows.
    pub store: Option<bool>,
    /// Stream the response as server-sent events.
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    /// The longest reply in tokens, reasoning included. The model's default if omitted. One that
    /// exceeds the room in the context is reduced to it, and the header `x-loquat-max-tokens` has
    /// the limit.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<usize>,
    /// The format of the answer.
    pub text: Option<TextConfig>,
    /// Functions that the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether it calls them; default `auto`.
    pub tool_choice: Option<ToolChoice>,
    /// Whether one reply may call several tools; default true.
    pub parallel_tool_calls: Option<bool>,
    pub reasoning: Option<Reasoning>,
    /// Extra output: `message.output_text.logprobs`. All others have no effect. Reasoning is not
    /// encrypted, and can be sent back as it is.
    pub include: Option<Vec<Include>>,
    /// Number of alternatives to each token in log-probabilities, from 0 to 20.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<usize>,
    /// Must be `disabled`: prompts that exceed the context are refused.
    pub truncation: Option<Truncation>,
    /// Must be false: responses are generated while the request is open.
    pub background: Option<bool>,
    /// Up to 16 entries, with keys of up to 64 and values of up to 512 characters. Returned as is.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Extra variables of the model's template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Share cached prompts only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Lower runs first, from -100 to 100; default 0. A key needs the scope `manage` for negative ones.
    pub priority: Option<i32>,
    /// Most tokens to draft and verify in one step; 0 for none. Drafts change the speed, not the
    /// reply.
    #[serde(rename = "speculative.n_max")]
    pub draft_max: Option<usize>,
}

impl WireRequest for ResponseRequest {
    const IGNORED: FieldTables<&'static str> = &[&[
        ("user", "clients are identified by their keys"),
        ("safety_identifier", "clients are identified by their keys"),
        ("service_tier", "there is only one; see `priority`"),
        ("prompt_cache_key", "prompts share every common prefix"),
        (
            "prompt_cache_retention",
            "prompts stay cached while there is memory",
        ),
        ("client_metadata", "clients are identified by their keys"),
        ("cache_prompt", "prompts share every common prefix"),
        ("prompt_cache_options", "every prompt is cached"),
        (
            "max_tool_calls",
            "it limits built-in tools, and there are none",
        ),
        (
            "context_management",
            "conversations are not shortened; those that exceed the context are refused",
        ),
    ]];
    const IGNORED_NESTED: FieldTables<&'static str> = &[&[
        ("reasoning.summary", "reasoning is returned in full"),
        ("text.verbosity", "no supported model is trained for it"),
        ("text.format.description", "the model does not see it"),
        ("reasoning.effort", NO_SETTING),
        tool_types::IGNORED,
        (
            "include[reasoning.encrypted_content]",
            "reasoning is not encrypted",
        ),
        ("include[file_search_call.results]", BUILT_IN),
        ("include[web_search_call.results]", BUILT_IN),
        ("include[web_search_call.action.sources]", BUILT_IN),
        ("include[code_interpreter_call.outputs]", BUILT_IN),
        ("include[computer_call_output.output.image_url]", BUILT_IN),
        (
            "include[message.input_image.image_url]",
            "images are not returned",
        ),
        ("encrypted_content", "reasoning is not encrypted"),
        ("phase", "replies have no phases"),
        (
            "stream_options.include_obfuscation",
            "chunks are not padded",
        ),
    ]];
    const REFUSED: FieldTables<Field> = &[&[
        (
            Field::Conversation,
            "continue a response with `previous_response_id`",
        ),
        (Field::Prompt, "prompts are not stored; send it as `input`"),
        (Field::Moderation, "this server does not moderate"),
    ]];
    const SAMPLING: bool = true;
    const TOOL_TYPES: &'static [&'static str] = &["function"];
}

const BUILT_IN: &str = "there are no built-in tools";

/// Options of a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseStreamOptions)]
pub struct StreamOptions {
    /// Has no effect: events are not padded.
    pub include_obfuscation: Option<bool>,
}

/// The format of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseTextConfig)]
pub struct TextConfig {
    #[serde(default)]
    pub format: Option<Format>,
    /// Has no effect: no supported model is trained for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<Verbosity>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseVerbosity)]
pub enum Verbosity {
    Low,
    Medium,
    High,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseTextFormat)]
pub enum Format {
    /// Any text.
    Text {},
    /// Any JSON object.
    JsonObject {},
    /// JSON that matches a schema.
    JsonSchema {
        /// The schema's name; has no effect.
        name: String,
        /// The JSON schema. Unsupported keywords are refused by name.
        #[schema(value_type = Object)]
        schema: Value,
        /// Has no effect: the model does not see it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// The answer always follows the schema.
        #[serde(default)]
        strict: Option<bool>,
    },
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", remote = "Self")]
#[schema(as = ResponseTool)]
pub enum Tool {
    Function(FunctionTool),
}

const TOOLS: TypeTags = TypeTags {
    default: None,
    refused: &[],
};

const CHOICES: TypeTags = TypeTags {
    default: None,
    refused: &[(
        &[
            "file_search",
            "web_search",
            "web_search_preview",
            "web_search_2025_08_26",
            "web_search_preview_2025_03_11",
            "computer",
            "computer_use_preview",
            "code_interpreter",
            "image_generation",
            "mcp",
            "local_shell",
            "shell",
            "apply_patch",
            "custom",
            "namespace",
            "tool_search",
        ],
        "only function tools, which the client calls, are supported",
    )],
};

impl<'de> Deserialize<'de> for Tool {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        TOOLS.read(deserializer, Self::deserialize)
    }
}

impl Serialize for Tool {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// A function's description and parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseFunctionTool)]
pub struct FunctionTool {
    /// 1 to 64 letters, digits, `_`, `-` or `.`; unique.
    pub name: String,
    /// When and how to use it; the model reads it.
    pub description: Option<String>,
    /// The JSON schema of the arguments, which is an object. No arguments if omitted.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Constrain the arguments to the schema; by default if the schema is supported.
    pub strict: Option<bool>,
}

/// Whether tools are called: a mode, the tool to call, or those that may be called.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ResponseToolChoice)]
pub enum ToolChoice {
    Mode(Mode),
    Tools(ToolSelection),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseToolMode)]
pub enum Mode {
    /// No tool is called.
    None,
    /// The model decides.
    Auto,
    /// At least one tool is called.
    Required,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseToolSelection)]
pub enum ToolSelection {
    /// This tool is called.
    Function { name: String },
    /// The model sees only these tools.
    AllowedTools { mode: Mode, tools: Vec<NamedTool> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseNamedTool)]
pub enum NamedTool {
    Function { name: String },
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            object @ Value::Object(_) => {
                let selection = CHOICES.read(object, serde_json::from_value);
                selection.map(Self::Tools).map_err(D::Error::custom)
            }
            word => Mode::deserialize(word)
                .map(Self::Mode)
                .map_err(D::Error::custom),
        }
    }
}

/// Whether the model reasons before it answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseReasoning)]
pub struct Reasoning {
    /// How much; the model's default if omitted. Has no effect if the model does not think or its
    /// template has no such setting; `none` is refused if the model always thinks.
    pub effort: Option<ReasoningEffort>,
    /// Has no effect: reasoning is returned in full.
    pub summary: Option<Summary>,
    /// Has no effect; the older name of `summary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_summary: Option<Summary>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseReasoningSummary)]
pub enum Summary {
    Auto,
    Concise,
    Detailed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = ResponseInclude)]
pub enum Include {
    #[serde(rename = "message.output_text.logprobs")]
    Logprobs,
    #[serde(rename = "reasoning.encrypted_content")]
    EncryptedReasoning,
    #[serde(rename = "file_search_call.results")]
    FileSearchResults,
    #[serde(rename = "web_search_call.results")]
    WebSearchResults,
    #[serde(rename = "web_search_call.action.sources")]
    WebSearchSources,
    #[serde(rename = "code_interpreter_call.outputs")]
    CodeOutputs,
    #[serde(rename = "computer_call_output.output.image_url")]
    ComputerImages,
    #[serde(rename = "message.input_image.image_url")]
    InputImages,
}

impl Include {
    /// How a header names it if it has no effect.
    pub fn ignored_name(self) -> Option<&'static str> {
        Some(match self {
            Self::Logprobs => return None,
            Self::EncryptedReasoning => "include[reasoning.encrypted_content]",
            Self::FileSearchResults => "include[file_search_call.results]",
            Self::WebSearchResults => "include[web_search_call.results]",
            Self::WebSearchSources => "include[web_search_call.action.sources]",
            Self::CodeOutputs => "include[code_interpreter_call.outputs]",
            Self::ComputerImages => "include[computer_call_output.output.image_url]",
            Self::InputImages => "include[message.input_image.image_url]",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseTruncation)]
pub enum Truncation {
    Auto,
    Disabled,
}

impl MediaUrls for ResponseRequest {
    fn media_urls(&mut self) -> Vec<(FieldPath, &mut String)> {
        match &mut self.input {
            TextOr::Text(_) => Vec::new(),
            TextOr::Many(items) => items.iter_mut().flat_map(Item::media_urls).collect(),
        }
    }
}
