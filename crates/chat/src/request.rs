//! A chat request.

use loquat_engine::{Logprobs, SamplingParams};
use loquat_grammar::GrammarSource;
use serde_json::{Map, Value};

use crate::{Message, Tool, ToolChoice};

/// Asks for one reply to a conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// At least one.
    pub messages: Vec<Message>,
    /// The conversation, oldest message first.
    pub tools: Vec<Tool>,
    /// The tools the model may call.
    pub tool_choice: ToolChoice,
    /// Whether one reply may call several tools.
    pub parallel_tool_calls: bool,
    /// Whether the reply must, may or must not call tools.
    pub thinking: Thinking,
    /// The grammar of the answer. Reasoning before it is unconstrained.
    pub answer: Option<GrammarSource>,
    /// The longest reply. The engine refuses a request that does not fit the context; it never
    /// truncates.
    pub max_tokens: usize,
    /// How much the model thinks before it answers.
    pub sampling: SamplingParams,
    /// Strings that end the reply, besides the model's own end-of-turn tokens.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub logprobs: Option<Logprobs>,
    /// Encode special tokens spelled out in messages as special, as most engines do. By default
    /// only the template writes them, so no message can end a turn or start another.
    pub read_special: bool,
    /// Further template variables. They override those that other fields set.
    pub template_variables: Map<String, Value>,
    /// Which log-probabilities to report; `None` for none.
    pub opening: ReplyOpening,
}

/// Where a reply begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReplyOpening {
    /// In a new turn of the assistant.
    #[default]
    NewTurn,
    /// In the last message, the assistant's, which the reply continues. Its text is not repeated.
    ContinueLast,
    /// After the conversation as the template writes it, without opening a turn.
    Unopened,
}

impl Default for ChatRequest {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: Vec::new(),
            tool_choice: ToolChoice::default(),
            parallel_tool_calls: true,
            thinking: Thinking::default(),
            answer: None,
            max_tokens: 0,
            sampling: SamplingParams::default(),
            stop: Vec::new(),
            logprobs: None,
            read_special: false,
            template_variables: Map::new(),
            opening: ReplyOpening::default(),
        }
    }
}

/// How much the model thinks before it answers. Unset fields keep the model's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Thinking {
    /// How hard to think.
    pub effort: Option<Effort>,
    /// The most thinking tokens. At the limit thinking is closed and the answer begins.
    pub budget: Option<usize>,
}

/// How hard to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Effort {
    /// No thinking.
    Off,
    /// As much as the model chooses.
    On,
    /// Little thinking.
    Low,
    /// Moderate thinking.
    Medium,
    /// Much thinking.
    High,
}
