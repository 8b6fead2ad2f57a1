//! Messages.

use loquat_chat::{Message, MessageContent, Role, ToolCall};
use serde_json::{Map, Value, json};

use super::object::{Object, Place};
use crate::error::CliError;

const ROLES: [Role; 5] = [
    Role::System,
    Role::Developer,
    Role::User,
    Role::Assistant,
    Role::Tool,
];

/// A list of messages.
pub fn messages(flag: &'static str, value: Value) -> Result<Vec<Message>, CliError> {
    let place = Place::root(flag, "messages");
    let items = place.list(value)?.into_iter().enumerate();
    items
        .map(|(index, item)| message(&place.item(index), item))
        .collect()
}

/// The same list, as [`messages`] reads it.
pub fn to_json(messages: &[Message]) -> Value {
    messages.iter().map(message_to_json).collect()
}

fn message_to_json(message: &Message) -> Value {
    let Message {
        role,
        content,
        reasoning,
        tool_calls,
        tool_call_id,
        name,
    } = message;
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("role", role.to_string().into());
    if let Some(name) = name {
        put("name", name.as_str().into());
    }
    if let Some(id) = tool_call_id {
        put("tool_call_id", id.as_str().into());
    }
    if let Some(reasoning) = reasoning {
        put("reasoning_content", reasoning.as_str().into());
    }
    let part = |text: &String| json!({ "type": "text", "text": text });
    put(
        "content",
        match content {
            MessageContent::Text(text) => text.as_str().into(),
            MessageContent::Parts(parts) => parts.iter().map(part).collect(),
        },
    );
    if !tool_calls.is_empty() {
        put("tool_calls", tool_calls.iter().map(call_to_json).collect());
    }
    Value::Object(fields)
}

fn call_to_json(call: &ToolCall) -> Value {
    let ToolCall {
        id,
        name,
        arguments,
    } = call;
    let function = json!({ "name": name, "arguments": arguments });
    json!({ "id": id, "type": "function", "function": function })
}

fn message(place: &Place, value: Value) -> Result<Message, CliError> {
    let mut fields = place.object(value)?;
    let role = role(&mut fields)?;
    let mut message = Message::new(role, "");
    if role == Role::Assistant {
        message.reasoning = reasoning(&mut fields)?;
        message.tool_calls = calls(&mut fields)?;
    }
    if role == Role::Tool {
        message.tool_call_id = fields.text("tool_call_id")?;
    }
    message.name = fields.text("name")?;
    message.content = match fields.take("content") {
        Some(content) => self::content(&place.field("content"), content)?,
        // What it did instead of speaking.
        None if !message.tool_calls.is_empty() || message.reasoning.is_some() => "".into(),
        None => return Err(place.field("content").refused("is missing")),
    };
    fields.end()?;
    Ok(message)
}

fn role(fields: &mut Object) -> Result<Role, CliError> {
    let name = fields.required_text("role")?;
    let role = ROLES.into_iter().find(|role| role.to_string() == name);
    role.ok_or_else(|| {
        let known = ROLES.map(|role| role.to_string()).join(", ");
        let place = fields.place.field("role");
        place.wrong(&name.into(), &format!("one of {known}"))
    })
}

/// Servers call it either way.
fn reasoning(fields: &mut Object) -> Result<Option<String>, CliError> {
    let long = fields.text("reasoning_content")?;
    let short = fields.text("reasoning")?;
    match (long, short) {
        (Some(_), Some(_)) => {
            let place = fields.place.field("reasoning");
            Err(place.refused("says what `reasoning_content` says already; one is enough"))
        }
        (long, short) => Ok(long.or(short)),
    }
}

fn content(place: &Place, value: Value) -> Result<MessageContent, CliError> {
    match value {
        Value::String(text) => Ok(MessageContent::Text(text)),
        Value::Array(parts) => {
            let parts = parts.into_iter().enumerate();
            let texts = parts.map(|(index, value)| part(&place.item(index), value));
            texts.collect::<Result<_, _>>().map(MessageContent::Parts)
        }
        other => Err(place.wrong(&other, "a string or a list of parts")),
    }
}

fn part(place: &Place, value: Value) -> Result<String, CliError> {
    let mut fields = place.object(value)?;
    fields.constant("type", "text")?;
    let text = fields.required_text("text")?;
    fields.end()?;
    Ok(text)
}

fn calls(fields: &mut Object) -> Result<Vec<ToolCall>, CliError> {
    let place = fields.place.field("tool_calls");
    let Some(calls) = fields.take("tool_calls") else {
        return Ok(Vec::new());
    };
    let calls = place.list(calls)?.into_iter().enumerate();
    calls
        .map(|(index, value)| call(&place.item(index), index, value))
        .collect()
}

fn call(place: &Place, index: usize, value: Value) -> Result<ToolCall, CliError> {
    let mut fields = place.object(value)?;
    fields.constant("type", "function")?;
    let id = fields.text("id")?;
    let within = place.field("function");
    let function = fields.take("function");
    let mut function = within.object(function.ok_or_else(|| within.refused("is missing"))?)?;
    let call = ToolCall {
        // As long as Mistral's templates insist.
        id: id.unwrap_or_else(|| format!("call{index:05}")),
        name: function.required_text("name")?,
        arguments: match function.take("arguments") {
            Some(Value::String(text)) => text,
            Some(object @ Value::Object(_)) => object.to_string(),
            None => "{}".to_owned(),
            Some(other) => {
                let place = within.field("arguments");
                return Err(place.wrong(&other, "an object, or one as text"));
            }
        },
    };
    function.end()?;
    fields.end()?;
    Ok(call)
}
