//! A response as it is asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::item::Item;
use crate::openai::chat::wire::ReasoningEffort;
use crate::union::{Kinds, TextOr};
use crate::wire::Wire;

/// A conversation to answer. All sampling parameters of the engine may stand beside these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseRequest {
    /// Which model is to answer. May be left out where only one is served.
    pub model: Option<String>,
    /// The user's words, or the conversation so far; after those of `previous_response_id`.
    pub input: TextOr<Item>,
    /// How the model is to behave. Not carried over from a previous response.
    pub instructions: Option<String>,
    /// Goes on from this response, which must have been stored by the same key.
    pub previous_response_id: Option<String>,
    /// Keep the response for later turns; true when left out. It is kept in memory, as long as the
    /// configuration says.
    pub store: Option<bool>,
    /// Send the response as it comes, as server-sent events.
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    /// The longest reply in tokens, thinking included. Where left out, as the model is set up.
    #[schema(minimum = 1)]
    pub max_output_tokens: Option<usize>,
    /// The form of the answer.
    pub text: Option<TextConfig>,
    /// Functions that the model may call.
    pub tools: Option<Vec<Tool>>,
    /// Whether it does: `auto` when left out.
    pub tool_choice: Option<ToolChoice>,
    /// Whether one reply may call several tools; true when left out.
    pub parallel_tool_calls: Option<bool>,
    pub reasoning: Option<Reasoning>,
    /// What to tell beside the answer: `message.output_text.logprobs`.
    /// `reasoning.encrypted_content` has no effect: thinking is told in the clear, and can be sent
    /// back so.
    pub include: Option<Vec<Include>>,
    /// Of how many alternatives to each token log-probabilities are told, from 0 to 20.
    #[schema(maximum = 20)]
    pub top_logprobs: Option<usize>,
    /// Must be `disabled`: what does not fit the context is refused, never cut.
    pub truncation: Option<Truncation>,
    /// Must be false: a response is made while the request lasts.
    pub background: Option<bool>,
    /// Up to 16 texts of up to 512 characters, by names of up to 64. Given back as they are.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Further variables of the model's template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Keeps what is computed for this request to requests with the same salt.
    pub cache_salt: Option<String>,
    /// Lower goes first, from -100 to 100; 0 when left out.
    pub priority: Option<i32>,
}

impl Wire for ResponseRequest {
    const IGNORED: &'static [(&'static str, &'static str)] = &[
        ("user", "clients are told apart by their keys"),
        ("safety_identifier", "clients are told apart by their keys"),
        ("service_tier", "there is one; see `priority`"),
        (
            "prompt_cache_key",
            "prompts are shared wherever they begin alike",
        ),
        (
            "prompt_cache_retention",
            "prompts are kept while there is room",
        ),
    ];
    const WITHIN: &'static [(&'static str, &'static str)] = &[
        ("reasoning.summary", "thinking is told as it was thought"),
        ("text.verbosity", "no model here is trained for it"),
        ("text.format.description", "the model does not see it"),
        (
            "include[reasoning.encrypted_content]",
            "thinking is told in the clear",
        ),
        ("encrypted_content", "nothing is encrypted here"),
        ("phase", "replies have no phases here"),
        (
            "stream_options.include_obfuscation",
            "pieces of a stream are not padded",
        ),
    ];
    const REFUSED: &'static [(&'static str, &'static str)] = &[
        (
            "conversation",
            "go on from a response by `previous_response_id`",
        ),
        ("prompt", "no prompts are kept here; write it as `input`"),
        (
            "max_tool_calls",
            "it bounds built-in tools, and there are none",
        ),
        ("moderation", "nothing is judged here"),
        (
            "context_management",
            "nothing is taken out of a conversation",
        ),
        ("prompt_cache_options", "prompts are cached as they come"),
    ];
    const SAMPLING: bool = true;
}

/// How a stream is told.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseStreamOptions)]
pub struct StreamOptions {
    /// Has no effect: events are not padded.
    pub include_obfuscation: Option<bool>,
}

/// The form of the answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseTextConfig)]
pub struct TextConfig {
    #[serde(default)]
    pub format: Option<Format>,
    /// Has no effect: no model here is trained for it.
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
    /// Anything.
    Text {},
    /// Any JSON object.
    JsonObject {},
    /// JSON that a schema admits.
    JsonSchema {
        /// What the schema is called; changes nothing.
        name: String,
        /// The JSON schema. A keyword that cannot be held to is refused by name.
        #[schema(value_type = Object)]
        schema: Value,
        /// Changes nothing: the model does not see it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// The answer is held to the schema either way.
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

const TOOLS: Kinds = Kinds {
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
        "tools are functions, which the client calls",
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

/// What a function does and takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseFunctionTool)]
pub struct FunctionTool {
    /// 1 to 64 letters, digits, `_`, `-` or `.`; each tool its own.
    pub name: String,
    /// When and how to use it, for the model to read.
    pub description: Option<String>,
    /// A JSON schema of an object: the arguments. None when left out.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
    /// Hold the arguments to the schema while they are generated. Where left out, they are if the
    /// schema can be held to.
    pub strict: Option<bool>,
}

/// Whether tools are called: a word, the one to call, or those that may be.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ResponseToolChoice)]
pub enum ToolChoice {
    Mode(Mode),
    Some(SomeTools),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseToolMode)]
pub enum Mode {
    /// None is called.
    None,
    /// As the model likes.
    Auto,
    /// At least one is called.
    Required,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseSomeTools)]
pub enum SomeTools {
    /// This one is called.
    Function { name: String },
    /// Only these are offered.
    AllowedTools { mode: Mode, tools: Vec<NamedTool> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[schema(as = ResponseNamedTool)]
pub enum NamedTool {
    Function { name: String },
}

const CHOICES: Kinds = Kinds {
    default: None,
    refused: TOOLS.refused,
};

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            object @ Value::Object(_) => {
                let some = CHOICES.read(object, serde_json::from_value);
                some.map(Self::Some).map_err(D::Error::custom)
            }
            word => Mode::deserialize(word)
                .map(Self::Mode)
                .map_err(D::Error::custom),
        }
    }
}

/// Whether the model thinks before it answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ResponseReasoning)]
pub struct Reasoning {
    /// How hard; the model's own way when left out. Refused where the model's template cannot be
    /// told so.
    pub effort: Option<ReasoningEffort>,
    /// Has no effect: thinking is told as it was thought.
    pub summary: Option<Summary>,
    /// Has no effect; `summary` took its place.
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ResponseTruncation)]
pub enum Truncation {
    Auto,
    Disabled,
}
