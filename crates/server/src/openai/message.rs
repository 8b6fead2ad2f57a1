//! Messages of a conversation, as OpenAI writes them.

use loquat_chat::{Message, MessageContent, Role, ToolCall};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::agree;
use super::tool::FunctionType;
use crate::error::ApiError;
use crate::union::TextOr;

/// One turn of a conversation. Replies of this server can be sent back as they are.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: ChatRole,
    /// What was said: a text, or text parts. An assistant that called tools need not have said
    /// anything.
    pub content: Option<TextOr<ContentPart>>,
    /// A participant's name.
    pub name: Option<String>,
    /// What the assistant asked tools for.
    pub tool_calls: Option<Vec<ChatToolCall>>,
    /// Of a tool's result: which call it answers.
    pub tool_call_id: Option<String>,
    /// What the assistant thought before it answered. Whether the model sees it again is its
    /// template's choice.
    pub reasoning_content: Option<String>,
    /// Another name for `reasoning_content`.
    pub reasoning: Option<String>,
    /// What the assistant said in place of an answer; read as its words.
    pub refusal: Option<String>,
    /// Must be null: this server reads and writes text only.
    pub audio: Option<Value>,
    /// Must be empty, null or left out, as replies of this server have it: there is nothing that
    /// annotations refer to.
    pub annotations: Option<Vec<Value>>,
    /// Must be null: `tool_calls` took its place.
    pub function_call: Option<Value>,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A piece of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContentPart {
    /// `text`, or `refusal` in an assistant's message. Images, audio and files are refused.
    #[serde(rename = "type")]
    pub kind: ContentPartType,
    /// The words of a `text` part.
    pub text: Option<String>,
    /// The words of a `refusal` part.
    pub refusal: Option<String>,
    /// Refused: this server reads text only.
    pub image_url: Option<Value>,
    /// Refused: this server reads text only.
    pub input_audio: Option<Value>,
    /// Refused: this server reads text only.
    pub file: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContentPartType {
    Text,
    Refusal,
    ImageUrl,
    InputAudio,
    File,
}

/// A tool that the assistant wanted called.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatToolCall {
    /// By which the result is told to belong to the call.
    pub id: String,
    #[serde(rename = "type")]
    pub kind: FunctionType,
    pub function: CalledFunction,
    /// As streams number calls; changes nothing.
    #[expect(dead_code, reason = "calls may be sent back as they came")]
    pub index: Option<usize>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CalledFunction {
    pub name: String,
    /// A JSON object as text.
    pub arguments: String,
}

/// A conversation of at least one message.
pub fn lower(messages: Vec<ChatMessage>) -> Result<Vec<Message>, ApiError> {
    if messages.is_empty() {
        let what = "`messages` is empty; a chat needs at least one message";
        return Err(ApiError::invalid("messages", what));
    }
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, message)| one(&format!("messages[{index}]"), message))
        .collect()
}

fn one(place: &str, message: ChatMessage) -> Result<Message, ApiError> {
    check_place(place, &message)?;
    let ChatMessage {
        role,
        content,
        name,
        tool_calls,
        tool_call_id,
        reasoning_content,
        reasoning,
        refusal,
        audio: _,
        annotations: _,
        function_call: _,
    } = message;
    let reasoning = agree(
        (&format!("{place}.reasoning_content"), reasoning_content),
        (&format!("{place}.reasoning"), reasoning),
    )?;
    let tool_calls: Vec<_> = tool_calls.into_iter().flatten().map(call).collect();
    let content = match content {
        Some(content) => Some(self::content(&format!("{place}.content"), role, content)?),
        None => None,
    };
    let silent = !tool_calls.is_empty() || reasoning.is_some();
    let content = words(content, refusal).or_else(|| silent.then(|| MessageContent::from("")));
    Ok(Message {
        role: match role {
            ChatRole::System => Role::System,
            ChatRole::Developer => Role::Developer,
            ChatRole::User => Role::User,
            ChatRole::Assistant => Role::Assistant,
            ChatRole::Tool => Role::Tool,
        },
        content: content.ok_or_else(|| {
            let field = format!("{place}.content");
            let what = format!("`{field}` is missing; it must be a string or a list of parts");
            ApiError::invalid(field, what)
        })?,
        reasoning,
        tool_calls,
        tool_call_id,
        name,
    })
}

/// Refuses fields that messages of this role do not have.
fn check_place(place: &str, message: &ChatMessage) -> Result<(), ApiError> {
    let nulls = [
        ("audio", &message.audio),
        ("function_call", &message.function_call),
    ];
    if let Some((field, _)) = nulls.iter().find(|(_, value)| value.is_some()) {
        let why = "it must be null or left out";
        return Err(ApiError::unsupported(format!("{place}.{field}"), why));
    }
    let annotations = message.annotations.as_ref();
    if annotations.is_some_and(|annotations| !annotations.is_empty()) {
        let why = "it must be empty, null or left out";
        return Err(ApiError::unsupported(format!("{place}.annotations"), why));
    }
    let calls = message.tool_calls.as_ref();
    let assistants = [
        ("tool_calls", calls.is_some_and(|calls| !calls.is_empty())),
        ("reasoning_content", message.reasoning_content.is_some()),
        ("reasoning", message.reasoning.is_some()),
        ("refusal", message.refusal.is_some()),
    ];
    if let Some((field, _)) = assistants.iter().find(|(_, given)| *given)
        && message.role != ChatRole::Assistant
    {
        return Err(misplaced(place, field, "the role `assistant`"));
    }
    match (message.role, &message.tool_call_id) {
        (ChatRole::Tool, None) => {
            let field = format!("{place}.tool_call_id");
            let what = format!("`{field}` is missing; it says which call the result answers");
            Err(ApiError::invalid(field, what))
        }
        (ChatRole::Tool, Some(_)) | (_, None) => Ok(()),
        (_, Some(_)) => Err(misplaced(place, "tool_call_id", "the role `tool`")),
    }
}

/// What was said, a refusal included.
fn words(content: Option<MessageContent>, refusal: Option<String>) -> Option<MessageContent> {
    match (content, refusal) {
        (Some(content), Some(refusal)) if !content.is_empty() => {
            Some(MessageContent::Parts(vec![content.joined(), refusal]))
        }
        (_, Some(refusal)) => Some(MessageContent::Text(refusal)),
        (content, None) => content,
    }
}

fn misplaced(place: &str, field: &str, whose: &str) -> ApiError {
    let field = format!("{place}.{field}");
    let what = format!("`{field}` is for messages of {whose} only");
    ApiError::invalid(field, what)
}

fn content(
    place: &str,
    role: ChatRole,
    content: TextOr<ContentPart>,
) -> Result<MessageContent, ApiError> {
    match content {
        TextOr::Text(text) => Ok(MessageContent::Text(text)),
        TextOr::Many(parts) => {
            let parts = parts.into_iter().enumerate();
            let texts = parts.map(|(index, each)| part(&format!("{place}[{index}]"), role, each));
            texts.collect::<Result<_, _>>().map(MessageContent::Parts)
        }
    }
}

fn part(place: &str, role: ChatRole, part: ContentPart) -> Result<String, ApiError> {
    const TEXT_ONLY: &str = "this server reads text only";
    let ContentPart {
        kind,
        text,
        refusal,
        image_url,
        input_audio,
        file,
    } = part;
    let fields = [
        ("text", text.is_some(), ContentPartType::Text),
        ("refusal", refusal.is_some(), ContentPartType::Refusal),
        ("image_url", image_url.is_some(), ContentPartType::ImageUrl),
        (
            "input_audio",
            input_audio.is_some(),
            ContentPartType::InputAudio,
        ),
        ("file", file.is_some(), ContentPartType::File),
    ];
    let foreign = fields.iter().find(|(_, given, of)| *given && *of != kind);
    if let Some((field, ..)) = foreign {
        let field = format!("{place}.{field}");
        let what = format!("`{field}` does not belong to a part of this `type`");
        return Err(ApiError::invalid(field, what));
    }
    let (field, words) = match kind {
        ContentPartType::Text => ("text", text),
        ContentPartType::Refusal if role == ChatRole::Assistant => ("refusal", refusal),
        ContentPartType::Refusal => {
            return Err(misplaced(place, "refusal", "the role `assistant`"));
        }
        ContentPartType::ImageUrl => {
            return Err(ApiError::unsupported(
                format!("{place}.image_url"),
                TEXT_ONLY,
            ));
        }
        ContentPartType::InputAudio => {
            return Err(ApiError::unsupported(
                format!("{place}.input_audio"),
                TEXT_ONLY,
            ));
        }
        ContentPartType::File => {
            return Err(ApiError::unsupported(format!("{place}.file"), TEXT_ONLY));
        }
    };
    words.ok_or_else(|| {
        let field = format!("{place}.{field}");
        let what = format!("`{field}` is missing");
        ApiError::invalid(field, what)
    })
}

fn call(call: ChatToolCall) -> ToolCall {
    let ChatToolCall {
        id,
        kind: FunctionType::Function,
        function: CalledFunction { name, arguments },
        index: _,
    } = call;
    ToolCall {
        id,
        name,
        // How some clients write that there are none.
        arguments: match arguments.trim() {
            "" => "{}".to_owned(),
            _ => arguments,
        },
    }
}
