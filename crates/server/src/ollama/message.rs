//! Messages and tools, as Ollama writes them.

use std::collections::VecDeque;

use loquat_chat::{Message, Role, Tool, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::ApiError;

/// One turn of a conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaMessage {
    /// Who speaks.
    pub role: OllamaRole,
    /// What was said.
    pub content: Option<String>,
    /// What the assistant thought before it answered.
    pub thinking: Option<String>,
    /// Refused unless empty: this server reads text only.
    pub images: Option<Vec<String>>,
    /// What the assistant asked tools for.
    pub tool_calls: Option<Vec<OllamaToolCall>>,
    /// Of a tool's result: which tool's it is. Results without `tool_call_id` answer the calls of
    /// that name, or else all calls, in their order.
    pub tool_name: Option<String>,
    /// Of a tool's result: which call it answers.
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

/// A tool that the assistant wants called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaToolCall {
    /// By which a result can be told to belong to the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, where it is given.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    pub function: OllamaCalledFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaCalledFunction {
    /// Its number in the reply.
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
    /// `function`, where it is given.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub function: OllamaFunction,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OllamaFunction {
    /// 1 to 64 letters, digits, `_`, `-` or `.`; each tool its own.
    pub name: String,
    /// When and how to use it, for the model to read.
    pub description: Option<String>,
    /// A JSON schema of an object: the arguments. None when left out.
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Map<String, Value>>,
}

pub fn lower_tools(tools: Vec<OllamaTool>) -> Result<Vec<Tool>, ApiError> {
    let tools = tools.into_iter().enumerate();
    let tools = tools.map(|(index, OllamaTool { kind, function })| {
        check_kind(&format!("tools[{index}].type"), kind)?;
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
    let mut open = OpenCalls::default();
    let messages = messages.into_iter().enumerate();
    messages
        .map(|(index, message)| one(&format!("messages[{index}]"), message, &mut open))
        .collect()
}

fn one(place: &str, message: OllamaMessage, open: &mut OpenCalls) -> Result<Message, ApiError> {
    let OllamaMessage {
        role,
        content,
        thinking,
        images,
        tool_calls,
        tool_name,
        tool_call_id,
    } = message;
    check_images(&format!("{place}.images"), images)?;
    let tool_calls = tool_calls.unwrap_or_default();
    let thinking = thinking.filter(|thinking| !thinking.is_empty());
    let wrong = [
        ("tool_calls", !tool_calls.is_empty(), OllamaRole::Assistant),
        ("thinking", thinking.is_some(), OllamaRole::Assistant),
        ("tool_name", tool_name.is_some(), OllamaRole::Tool),
        ("tool_call_id", tool_call_id.is_some(), OllamaRole::Tool),
    ];
    let wrong = wrong
        .iter()
        .find(|(_, given, whose)| *given && role != *whose);
    if let Some((field, _, whose)) = wrong {
        let field = format!("{place}.{field}");
        let what = format!(
            "`{field}` is for messages of the role `{}` only",
            whose.lower()
        );
        return Err(ApiError::invalid(field, what));
    }
    let call_id = match role {
        OllamaRole::Tool => open.answer(tool_call_id, tool_name.as_deref()),
        _ => None,
    };
    let calls = tool_calls.into_iter().enumerate();
    let calls = calls.map(|(at, call)| open.call(&format!("{place}.tool_calls[{at}]"), call));
    Ok(Message {
        reasoning: thinking,
        tool_calls: calls.collect::<Result<_, _>>()?,
        tool_call_id: call_id,
        name: tool_name,
        ..Message::new(role.lower(), content.unwrap_or_default())
    })
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

/// Calls that no result was given for yet. Ollama's clients need not name calls, templates do.
#[derive(Default)]
struct OpenCalls {
    calls: VecDeque<(String, String)>,
    count: usize,
}

impl OpenCalls {
    fn call(&mut self, place: &str, call: OllamaToolCall) -> Result<ToolCall, ApiError> {
        let OllamaToolCall { id, kind, function } = call;
        check_kind(&format!("{place}.type"), kind)?;
        let OllamaCalledFunction {
            index: _,
            name,
            arguments,
        } = function;
        self.count += 1;
        // The same for the same conversation, and of the one length that Mistral's templates take.
        let id = id.unwrap_or_else(|| format!("call{:05}", self.count));
        self.calls.push_back((id.clone(), name.clone()));
        Ok(ToolCall {
            id,
            name,
            arguments: Value::Object(arguments).to_string(),
        })
    }

    /// The call that a result is for.
    fn answer(&mut self, id: Option<String>, tool: Option<&str>) -> Option<String> {
        let place = match &id {
            Some(id) => self.calls.iter().position(|(known, _)| known == id),
            None => {
                let named = |(_, name): &(String, String)| tool == Some(name.as_str());
                let first = (!self.calls.is_empty()).then_some(0);
                self.calls.iter().position(named).or(first)
            }
        };
        let answered = place.and_then(|place| self.calls.remove(place));
        id.or(answered.map(|(id, _)| id))
    }
}

/// Refuses images.
pub fn check_images(field: &str, images: Option<Vec<String>>) -> Result<(), ApiError> {
    if images.is_none_or(|images| images.is_empty()) {
        Ok(())
    } else {
        Err(ApiError::unsupported(field, "this server reads text only"))
    }
}

fn check_kind(field: &str, kind: Option<String>) -> Result<(), ApiError> {
    match kind.as_deref() {
        None | Some("function") => Ok(()),
        Some(other) => Err(ApiError::invalid(
            field,
            format!("`{field}` is `{other}`; the only type of tool is `function`"),
        )),
    }
}
