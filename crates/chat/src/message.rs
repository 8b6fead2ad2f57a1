//! Messages of a conversation.

use std::fmt;

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Role {
    /// Instructions that come before the conversation.
    System,
    /// The application, for models that distinguish it from the system.
    Developer,
    /// The person, or the program, that talks to the model.
    User,
    /// The model.
    Assistant,
    /// A tool's result.
    Tool,
}

impl fmt::Display for Role {
    /// The name templates use.
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

/// One message.
///
/// With the feature `serde` an application can store conversations. The stored form is Loquat's
/// own, not the format of any API.
///
/// ```
/// use loquat_chat::{Message, Role};
///
/// let messages = [
///     Message::system("Answer in one word."),
///     Message::user("What is the capital of France?"),
///     Message::assistant("Paris."),
/// ];
/// assert_eq!(messages[1].role, Role::User);
/// assert_eq!(Message::tool("call00001", "21 °C").tool_call_id.as_deref(), Some("call00001"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Message {
    /// Who wrote the message.
    pub role: Role,
    /// What it says.
    pub content: MessageContent,
    /// The assistant's reasoning before its answer.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub reasoning: Option<String>,
    /// The tools the assistant calls.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Vec::is_empty")
    )]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool's result answers.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub tool_call_id: Option<String>,
    /// A participant's or a tool's name.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub name: Option<String>,
}

impl Message {
    /// A message with text and nothing else set.
    pub fn new(role: Role, content: impl Into<MessageContent>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// A system message: instructions for the whole conversation.
    pub fn system(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::System, content)
    }

    /// A user message.
    pub fn user(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::User, content)
    }

    /// An assistant message: an earlier reply of the model.
    pub fn assistant(content: impl Into<MessageContent>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// The result of the call with this id.
    pub fn tool(call_id: impl Into<String>, result: impl Into<MessageContent>) -> Self {
        Self {
            tool_call_id: Some(call_id.into()),
            ..Self::new(Role::Tool, result)
        }
    }
}

/// The text of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum MessageContent {
    /// One text.
    Text(String),
    /// Several texts, which a template may render separately.
    Parts(Vec<String>),
}

impl MessageContent {
    /// Whether all text is empty.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.iter().all(String::is_empty),
        }
    }

    /// One text, with parts joined by line breaks.
    pub fn joined(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => parts.join("\n"),
        }
    }
}

impl<T: Into<String>> From<T> for MessageContent {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// A tool call by the assistant.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ToolCall {
    /// Links the result to the call.
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// A JSON object as text, exactly as the model wrote it. It is incomplete if the reply was
    /// cut short.
    pub arguments: String,
}
