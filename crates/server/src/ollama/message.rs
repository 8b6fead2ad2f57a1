//! Messages and tools.

use std::collections::VecDeque;

use loquat_chat::{ContentPart, Message, MessageContent, Role, Tool, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::field::{Field, FieldPath};
use crate::media_data;

/// Why videos are refused.
pub const NO_VIDEOS: &str = "Ollama's API has no videos; use `video_url` of `/v1/chat/completions`";

/// A message of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaMessage {
    /// The author.
    pub role: OllamaRole,
    /// The text.
    pub content: Option<String>,
    /// The assistant's thinking before the answer.
    pub thinking: Option<String>,
    /// PNG, JPEG, WebP, GIF or BMP files as base64, for models that read images. They come before
    /// the text.
    pub images: Option<Vec<String>>,
    /// Must be empty, null or omitted: Ollama's API has no videos.
    pub videos: Option<Vec<String>>,
    /// Tool calls of the assistant.
    pub tool_calls: Option<Vec<OllamaToolCall>>,
    /// For a tool's result: the tool's name. Results without `tool_call_id` answer the calls of that
    /// name, or else all calls, in order.
    pub tool_name: Option<String>,
    /// For a tool's result: the id of the call it answers.
    pub tool_call_id: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OllamaRole {
    System,
    User,
    Assistant,
    Tool,
}

/// A tool call of the assistant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaToolCall {
    /// The id by which a result may refer to the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Must be `function` if present.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub function: OllamaCalledFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaCalledFunction {
    /// The call's number in the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    pub name: String,
    #[schema(value_type = Object)]
    pub arguments: Map<String, Value>,
}

/// A tool that the model may call.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaTool {
    /// Must be `function` if present.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub function: OllamaFunction,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaFunction {
    /// 1 to 64 letters, digits, `_`, `-` or `.`; unique.
    pub name: String,
    /// When and how to use it; the model reads it.
    pub description: Option<String>,
    /// The JSON schema of the arguments, which is an object. No arguments if omitted.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
}

pub fn lower_tools(tools: Vec<OllamaTool>) -> Result<Vec<Tool>, ApiError> {
    let tools = tools.into_iter().enumerate();
    let tools = tools.map(|(index, OllamaTool { kind, function })| {
        check_type(Field::Tools.index(index).field(Field::Type), kind)?;
        let OllamaFunction {
            name,
            description,
            parameters,
        } = function;
        let none = || json!({ "type": "object", "properties": {} });
        Ok(Tool {
            name,
            description,
            parameters: parameters.map_or_else(none, Value::Object),
            strict: false,
        })
    });
    tools.collect()
}

pub fn lower(messages: Vec<OllamaMessage>) -> Result<Vec<Message>, ApiError> {
    let mut open = PendingCalls::default();
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, message)| message.lower(&Field::Messages.index(index), &mut open))
        .collect()
}

impl OllamaMessage {
    fn lower(self, path: &FieldPath, pending: &mut PendingCalls) -> Result<Message, ApiError> {
        let Self {
            role,
            content,
            thinking,
            images,
            videos,
            tool_calls,
            tool_name,
            tool_call_id,
        } = self;
        let field = |field| path.clone().field(field);
        if videos.is_some_and(|videos| !videos.is_empty()) {
            return Err(ApiError::unsupported(field(Field::Videos), NO_VIDEOS));
        }
        let content = with_images(field(Field::Images), images, content.unwrap_or_default())?;
        let tool_calls = tool_calls.unwrap_or_default();
        let thinking = thinking.filter(|thinking| !thinking.is_empty());
        let role_fields = [
            (
                Field::ToolCalls,
                !tool_calls.is_empty(),
                OllamaRole::Assistant,
            ),
            (Field::Thinking, thinking.is_some(), OllamaRole::Assistant),
            (Field::ToolName, tool_name.is_some(), OllamaRole::Tool),
            (Field::ToolCallId, tool_call_id.is_some(), OllamaRole::Tool),
        ];
        let wrong = role_fields
            .iter()
            .find(|(_, present, of)| *present && role != *of);
        if let Some((name, _, of)) = wrong {
            let problem = format!("is for messages of the role `{}` only", of.lower());
            return Err(ApiError::invalid(field(*name), problem));
        }
        let call_id = match role {
            OllamaRole::Tool => pending.answer(tool_call_id, tool_name.as_deref()),
            _ => None,
        };
        let calls = tool_calls.into_iter().enumerate();
        let calls =
            calls.map(|(index, call)| pending.add(field(Field::ToolCalls).index(index), call));
        Ok(Message {
            reasoning: thinking,
            tool_calls: calls.collect::<Result<_, _>>()?,
            tool_call_id: call_id,
            name: tool_name,
            ..Message::new(role.lower(), content)
        })
    }
}

impl OllamaRole {
    fn lower(self) -> Role {
        match self {
            Self::System => Role::System,
            Self::User => Role::User,
            Self::Assistant => Role::Assistant,
            Self::Tool => Role::Tool,
        }
    }
}

/// Calls without a result. Ollama's clients may omit their ids; templates need them.
#[derive(Default)]
struct PendingCalls {
    calls: VecDeque<(String, String)>,
    count: usize,
}

impl PendingCalls {
    fn add(&mut self, path: FieldPath, call: OllamaToolCall) -> Result<ToolCall, ApiError> {
        let OllamaToolCall { id, kind, function } = call;
        check_type(path.field(Field::Type), kind)?;
        let OllamaCalledFunction {
            index: _,
            name,
            arguments,
        } = function;
        self.count += 1;
        // Deterministic, with the nine characters that Mistral's templates require.
        let id = id.unwrap_or_else(|| format!("call{:05}", self.count));
        self.calls.push_back((id.clone(), name.clone()));
        Ok(ToolCall {
            id,
            name,
            arguments: Value::Object(arguments).to_string(),
        })
    }

    /// The call that a result answers.
    fn answer(&mut self, id: Option<String>, tool: Option<&str>) -> Option<String> {
        let index = match &id {
            Some(id) => self.calls.iter().position(|(known, _)| known == id),
            None => {
                let named = |(_, name): &(String, String)| tool == Some(name.as_str());
                let first = (!self.calls.is_empty()).then_some(0);
                self.calls.iter().position(named).or(first)
            }
        };
        let answered = index.and_then(|index| self.calls.remove(index));
        id.or(answered.map(|(id, _)| id))
    }
}

/// A message's content: its images, then its text.
pub fn with_images(
    field: FieldPath,
    images: Option<Vec<String>>,
    text: String,
) -> Result<MessageContent, ApiError> {
    let mut parts = Vec::new();
    for (index, data) in images.unwrap_or_default().iter().enumerate() {
        let image = media_data::image_from_base64(field.clone().index(index), data, None)?;
        parts.push(ContentPart::Image(image));
    }
    if !text.is_empty() {
        parts.push(text.into());
    }
    Ok(MessageContent::from_parts(parts))
}

fn check_type(field: FieldPath, kind: Option<String>) -> Result<(), ApiError> {
    match kind.as_deref() {
        None | Some("function") => Ok(()),
        Some(other) => {
            let problem = format!("is `{other}`; the only type of tool is `function`");
            Err(ApiError::invalid(field, problem))
        }
    }
}
