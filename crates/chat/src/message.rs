//! What was said in a conversation, and by whom.

use std::fmt;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    /// The application, where a model tells it from the system.
    Developer,
    User,
    Assistant,
    /// A tool's result.
    Tool,
}

impl fmt::Display for Role {
    /// The name templates know the role by.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        })
    }
}

/// One turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: Content,
    /// What the assistant thought before it answered.
    pub reasoning: Option<String>,
    /// What the assistant asked tools for.
    pub tool_calls: Vec<ToolCall>,
    /// Which call a tool's result answers.
    pub tool_call_id: Option<String>,
    /// A participant's or a tool's name.
    pub name: Option<String>,
}

impl Message {
    pub fn new(role: Role, content: impl Into<Content>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

/// The words of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// Several texts, which templates may write out apart.
    Parts(Vec<String>),
}

impl Content {
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.iter().all(String::is_empty),
        }
    }

    /// As one text, a line for each part.
    pub fn joined(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.join("\n"),
        }
    }
}

impl<T: Into<String>> From<T> for Content {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// A tool that the assistant wants called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// By which the result is told to belong to the call.
    pub id: String,
    pub name: String,
    /// A JSON object as text: exactly what the model wrote, which need not be whole where the
    /// reply was cut short.
    pub arguments: String,
}
