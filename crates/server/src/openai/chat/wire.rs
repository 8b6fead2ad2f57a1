//! The request of a chat completion.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::field::{Field, FieldPath};
use crate::llama_cpp::LoraScale;
use crate::openai::messages::{self, ChatMessage};
use crate::openai::options::{self, NO_SETTING, StreamOptions};
use crate::openai::tools::{ChatTool, ChatToolChoice};
use crate::remote_media::MediaUrls;
use crate::tool_types;
use crate::union::TextOr;
use crate::wire::{FieldTables, WireRequest};

/// A conversation to answer. The engine's sampling parameters are accepted beside these fields.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatCompletionRequest {
    /// The model's name or alias. May be omitted if only one model is served.
    pub model: Option<String>,
    /// The conversation so far; at least one message.
    pub messages: Vec<ChatMessage>,
    /// Stream the answer as server-sent events.
    pub stream: Option<bool>,
    /// Needs `stream`.
    pub stream_options: Option<StreamOptions>,
    /// Number of answers, from 1 to 128; default 1.
    pub n: Option<usize>,
    /// Up to 64 strings that end the answer; they are not part of it.
    #[schema(value_type = Option<TextOr<String>>)]
    pub stop: Option<TextOr<String>>,
    /// Tokens that end the answer, besides the model's end-of-turn tokens.
    pub stop_token_ids: Option<Vec<u32>>,
    /// False shows special tokens in the answer's text; default true.
    pub skip_special_tokens: Option<bool>,
    /// Return the log-probabilities of the answer's tokens.
    pub logprobs: Option<bool>,
    /// Number of alternatives to each token, from 0 to 20. Needs `logprobs`.
    pub top_logprobs: Option<usize>,
    /// The longest reply in tokens, reasoning included. The model's default if omitted; -1 for all
    /// that fit. One that exceeds the room in the context is reduced to it, and the header
    /// `x-loquat-max-tokens` has the limit.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub max_completion_tokens: Option<usize>,
    /// Another name for `max_completion_tokens`.
    #[serde(default, deserialize_with = "options::token_limit")]
    #[schema(value_type = Option<i64>, minimum = -1)]
    pub max_tokens: Option<usize>,
    /// Functions that the model may call.
    pub tools: Option<Vec<ChatTool>>,
    /// Whether it calls them; default `auto`.
    pub tool_choice: Option<ChatToolChoice>,
    /// Whether one reply may call several tools; default true.
    pub parallel_tool_calls: Option<bool>,
    /// How much to reason before answering; the model's default if omitted. Has no effect if the
    /// model does not think or its template has no such setting; `none` is refused if the model
    /// always thinks.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Whether to reason before answering. Has no effect if the model's template has no such
    /// setting.
    pub enable_thinking: Option<bool>,
    /// The most tokens of reasoning; then the answer begins. Has no effect if the model does not
    /// think.
    pub thinking_budget: Option<usize>,
    /// Another name for `thinking_budget`.
    pub thinking_token_budget: Option<usize>,
    /// Continue the last message, the assistant's, instead of opening a new turn. The answer does
    /// not repeat it.
    pub continue_final_message: Option<bool>,
    /// Open the assistant's turn after the conversation; default true, and false with
    /// `continue_final_message`.
    pub add_generation_prompt: Option<bool>,
    /// Extra variables of the model's template.
    #[schema(value_type = Option<Object>)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Share cached prompts only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Lower runs first, from -100 to 100; default 0. A key needs the scope `manage` for negative ones.
    pub priority: Option<i32>,
    /// Continue past the model's end-of-turn tokens.
    pub ignore_eos: Option<bool>,
    /// Most tokens to draft and verify in one step; 0 for none. Drafts change the speed, not the
    /// reply.
    #[serde(rename = "speculative.n_max")]
    pub draft_max: Option<usize>,
    /// Must be `["text"]`.
    pub modalities: Option<Vec<Modality>>,
    /// Exactly these adapters, by their numbers, as llama.cpp takes them.
    pub lora: Option<Vec<LoraScale>>,
}

/// How much to reason.
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

impl WireRequest for ChatCompletionRequest {
    const IGNORED: FieldTables<&'static str> = &[
        options::IGNORED,
        &[
            ("safety_identifier", "clients are identified by their keys"),
            ("store", "completions are not stored; see /v1/responses"),
            ("metadata", "completions are not stored; see /v1/responses"),
            ("service_tier", "there is only one; see `priority`"),
            ("prompt_cache_key", "prompts share every common prefix"),
            (
                "prompt_cache_retention",
                "prompts stay cached while there is memory",
            ),
            ("verbosity", "no supported model is trained for it"),
            (
                "prediction",
                "it could make an answer faster, and changes none",
            ),
            ("add_special_tokens", "the template adds special tokens"),
        ],
    ];
    const IGNORED_NESTED: FieldTables<&'static str> = &[
        options::IGNORED_NESTED,
        &[
            (
                "cache_control",
                "every prompt is cached while there is memory",
            ),
            tool_types::IGNORED,
            ("reasoning_effort", NO_SETTING),
            ("enable_thinking", NO_SETTING),
            ("chat_template_kwargs.enable_thinking", NO_SETTING),
            ("thinking_budget", "only if the model does not think"),
        ],
    ];
    const REFUSED: FieldTables<Field> = &[
        options::REFUSED,
        &[
            (Field::Audio, "this server writes text only"),
            (Field::WebSearchOptions, "this server does not search"),
            (Field::Functions, "use `tools`"),
            (Field::FunctionCall, "use `tool_choice`"),
            (
                Field::ChatTemplate,
                "the configuration sets the model's template",
            ),
            (Field::Documents, "send them as text in `messages`"),
            (Field::Echo, "an answer does not repeat the conversation"),
            (Field::PromptLogprobs, "use /v1/completions"),
        ],
    ];
    const SAMPLING: bool = true;
    const ANSWER_FORMAT: bool = true;
    const TOOL_TYPES: &'static [&'static str] = &["function"];
}

impl MediaUrls for ChatCompletionRequest {
    fn media_urls(&mut self) -> Vec<(FieldPath, &mut String)> {
        messages::media_urls(&mut self.messages)
    }
}
