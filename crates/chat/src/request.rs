//! A reply wanted.

use loquat_engine::{Logprobs, SamplingParams};
use loquat_grammar::GrammarSource;
use serde_json::{Map, Value};

use crate::{Message, Tool, ToolChoice};

#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// At least one.
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub tool_choice: ToolChoice,
    /// Whether one reply may call several tools.
    pub parallel_tool_calls: bool,
    pub thinking: Thinking,
    /// What the answer must be; thinking comes before it and is free.
    pub answer: Option<GrammarSource>,
    /// Longest reply. What does not fit the context together with the prompt is refused by the
    /// engine, never cut.
    pub max_tokens: usize,
    pub sampling: SamplingParams,
    /// Strings that end the reply, besides the model's own end-of-turn tokens.
    pub stop: Vec<String>,
    pub logprobs: Option<Logprobs>,
    /// Read special tokens that messages spell out as such, as most others do. Otherwise only
    /// the template writes them, and nobody's words can end a turn or begin another's.
    pub read_special: bool,
    /// Further variables of the template; they win over those that other fields set.
    pub template_variables: Map<String, Value>,
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
        }
    }
}

/// How much the model is to think before it answers; what is left out is the model's own way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thinking {
    pub effort: Option<Effort>,
    /// Most tokens to think; then thinking is closed and the answer begins.
    pub budget: Option<usize>,
}

/// How hard to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Not at all.
    None,
    /// On, as the model likes it.
    Some,
    Low,
    Medium,
    High,
}
