//! Messages of a conversation.

use std::fmt;

use crate::{Image, Video};

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

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum MessageContent {
    /// One text.
    Text(String),
    /// Texts and media, which a template may render separately.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(untagged))]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// An image, for models that read images.
    Image(Image),
    /// A video, for models that read videos.
    Video(Video),
}

impl ContentPart {
    /// The text of a text part.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) | Self::Video(_) => None,
        }
    }
}

impl<T: Into<String>> From<T> for ContentPart {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

impl From<Image> for ContentPart {
    fn from(image: Image) -> Self {
        Self::Image(image)
    }
}

impl From<Video> for ContentPart {
    fn from(video: Video) -> Self {
        Self::Video(video)
    }
}

impl MessageContent {
    /// Whether there are no media and all text is empty.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => {
                let is_empty = |part: &ContentPart| part.as_text().is_some_and(str::is_empty);
                parts.iter().all(is_empty)
            }
        }
    }

    /// The texts, joined by line breaks. Media are left out.
    pub fn joined(&self) -> String {
        let texts: Vec<&str> = self.texts().collect();
        texts.join("\n")
    }

    /// The texts, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let (text, parts) = match self {
            Self::Text(text) => (Some(text.as_str()), [].as_slice()),
            Self::Parts(parts) => (None, parts.as_slice()),
        };
        text.into_iter()
            .chain(parts.iter().filter_map(ContentPart::as_text))
    }

    /// Images and videos, in order, each with its index among the parts.
    pub fn media(&self) -> impl Iterator<Item = (usize, &ContentPart)> {
        let parts = match self {
            Self::Text(_) => [].as_slice(),
            Self::Parts(parts) => parts.as_slice(),
        };
        let parts = parts.iter().enumerate();
        parts.filter(|(_, part)| part.as_text().is_none())
    }

    /// Whether there are images or videos.
    pub fn has_media(&self) -> bool {
        self.media().next().is_some()
    }

    /// The parts; a text is one part, unless it is empty.
    pub fn into_parts(self) -> Vec<ContentPart> {
        match self {
            Self::Text(text) if text.is_empty() => Vec::new(),
            Self::Text(text) => vec![ContentPart::Text(text)],
            Self::Parts(parts) => parts,
        }
    }

    /// Adds an image or a video after those that are there, before other text.
    pub fn insert_media(&mut self, media: ContentPart) {
        let content = std::mem::replace(self, Self::Text(String::new()));
        let mut parts = content.into_parts();
        let leading = parts.iter().take_while(|part| part.as_text().is_none());
        parts.insert(leading.count(), media);
        *self = Self::from_parts(parts);
    }

    /// A single text as such, otherwise a list.
    pub fn from_parts(mut parts: Vec<ContentPart>) -> Self {
        match parts.pop() {
            None => Self::Text(String::new()),
            Some(ContentPart::Text(text)) if parts.is_empty() => Self::Text(text),
            Some(last) => {
                parts.push(last);
                Self::Parts(parts)
            }
        }
    }
}

impl From<String> for MessageContent {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for MessageContent {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&String> for MessageContent {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<Vec<ContentPart>> for MessageContent {
    fn from(parts: Vec<ContentPart>) -> Self {
        Self::from_parts(parts)
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
