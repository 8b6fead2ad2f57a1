use std::fmt;

use loquat_engine::SamplingParams;
use serde_json::{Map, Value};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

impl fmt::Display for Role {
    /// The name templates know the role by.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// A reply wanted.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatRequest {
    /// At least one.
    pub messages: Vec<Message>,
    /// Longest reply. What does not fit the context together with the prompt is refused by the
    /// engine, never cut.
    pub max_tokens: usize,
    pub sampling: SamplingParams,
    /// Strings that end the reply, besides the model's own end-of-turn tokens.
    pub stop: Vec<String>,
    /// Log-probabilities of the reply's tokens, and of this many alternatives.
    pub logprobs: Option<usize>,
    /// Further variables of the template, such as `enable_thinking`.
    pub template_variables: Map<String, Value>,
}
