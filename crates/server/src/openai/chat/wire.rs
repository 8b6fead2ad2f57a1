//! A chat completion as it is asked for.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::openai::answer::{ResponseFormat, StructuredOutputs};
use crate::openai::message::ChatMessage;
use crate::openai::options::StreamOptions;
use crate::openai::tool::{ChatTool, ChatToolChoice};
use crate::union::TextOr;
use crate::wire::Wire;

/// A conversation to answer. All sampling parameters of the engine may stand beside these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatCompletionRequest {
    /// Which model is to answer. May be left out where only one is served.
    pub model: Option<String>,
    /// The conversation so far; at least one message.
    pub messages: Vec<ChatMessage>,
    /// Send the answer as it comes, as server-sent events.
    pub stream: Option<bool>,
    /// How to stream; only together with `stream`.
    pub stream_options: Option<StreamOptions>,
    /// How many answers to give, from 1 to 128; 1 when left out.
    pub n: Option<usize>,
    /// Up to 64 strings that end the answer, which ends before them.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Tell the log-probabilities of the answer's tokens.
    pub logprobs: Option<bool>,
    /// Of how many alternatives to each token, from 0 to 20; only together with `logprobs`.
    pub top_logprobs: Option<usize>,
    /// The longest reply in tokens, thinking included. Where left out, as the model is set up.
    pub max_completion_tokens: Option<usize>,
    /// Another name for `max_completion_tokens`.
    pub max_tokens: Option<usize>,
    /// Functions that the model may call.
    pub tools: Option<Vec<ChatTool>>,
    /// Whether it does: `auto` when left out.
    pub tool_choice: Option<ChatToolChoice>,
    /// Whether one reply may call several tools; true when left out.
    pub parallel_tool_calls: Option<bool>,
    /// How hard to think before answering; the model's own way when left out. Refused where the
    /// model's template cannot be told so.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// The most tokens to think; then thinking is closed and the answer begins.
    pub thinking_budget: Option<usize>,
    /// Another name for `thinking_budget`.
    pub thinking_token_budget: Option<usize>,
    /// The form of the answer. At most one of this, `guided_*` and `structured_outputs`.
    pub response_format: Option<ResponseFormat>,
    /// The answer is JSON that this schema admits; the schema as an object or as text.
    pub guided_json: Option<Value>,
    /// The answer matches this regular expression as a whole.
    pub guided_regex: Option<String>,
    /// The answer is one of these.
    pub guided_choice: Option<Vec<String>>,
    /// The answer is of this grammar, in Lark's or llama.cpp's notation.
    pub guided_grammar: Option<String>,
    /// The same wishes in another form.
    pub structured_outputs: Option<StructuredOutputs>,
    /// Further variables of the model's template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Keeps what is computed for this request to requests with the same salt.
    pub cache_salt: Option<String>,
    /// Lower goes first, from -100 to 100; 0 when left out.
    pub priority: Option<i32>,
    /// Go on past the model's own end of turn.
    pub ignore_eos: Option<bool>,
    /// `["text"]`, which is all there is.
    pub modalities: Option<Vec<Modality>>,
}

/// How hard to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReasoningEffort {
    /// Not at all.
    None,
    /// As `low`.
    Minimal,
    Low,
    Medium,
    High,
    /// As `high`.
    Xhigh,
    /// As `high`.
    Max,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Modality {
    Text,
}

impl Wire for ChatCompletionRequest {
    const IGNORED: &'static [(&'static str, &'static str)] = &[
        ("user", "clients are told apart by their keys"),
        ("safety_identifier", "clients are told apart by their keys"),
        ("store", "completions are not kept; see /v1/responses"),
        ("metadata", "completions are not kept; see /v1/responses"),
        ("service_tier", "there is one; see `priority`"),
        (
            "prompt_cache_key",
            "prompts are shared wherever they begin alike",
        ),
        (
            "prompt_cache_retention",
            "prompts are kept while there is room",
        ),
        ("verbosity", "no model here is trained for it"),
        ("guided_decoding_backend", "there is one"),
    ];
    const WITHIN: &'static [(&'static str, &'static str)] = &[
        (
            "response_format.json_schema.description",
            "the model does not see it",
        ),
        (
            "stream_options.include_obfuscation",
            "pieces of a stream are not padded",
        ),
    ];
    const REFUSED: &'static [(&'static str, &'static str)] = &[
        ("audio", "this server writes text only"),
        ("prediction", "nothing here makes use of it"),
        ("web_search_options", "this server does not search"),
        ("functions", "use `tools`"),
        ("function_call", "use `tool_choice`"),
    ];
    const SAMPLING: bool = true;
}
