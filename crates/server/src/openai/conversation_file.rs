//! Conversations and tools in JSON files, in the format of OpenAI's API.

use loquat_chat::{ContentPart, Message, MessageContent, Tool, ToolCall};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::messages::{self, ChatMessage};
use super::tools::ChatTool;
use crate::error::ApiError;
use crate::field::Field;
use crate::{media_data, wire};

/// A file that is not a conversation or a list of tools. The message names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConversationFileError(String);

impl From<ApiError> for ConversationFileError {
    fn from(error: ApiError) -> Self {
        Self(error.message)
    }
}

/// Reads a list of messages, as `/v1/chat/completions` accepts them.
pub fn read_messages(value: Value) -> Result<Vec<Message>, ConversationFileError> {
    #[derive(Deserialize)]
    struct MessageFile {
        messages: Vec<ChatMessage>,
    }
    let file: MessageFile = wire::parse(json!({ Field::Messages.name(): value }))?;
    if messages::continues_last(&file.messages)? {
        let reason = "the start of an answer has its own flag, `--prefill`";
        return Err(ApiError::unsupported(Field::Prefix, reason).into());
    }
    Ok(messages::lower_all(file.messages)?)
}

/// Reads a list of tools, or a single tool, as `/v1/chat/completions` accepts them. The `function`
/// object around a definition may be omitted.
pub fn read_tools(value: Value) -> Result<Vec<Tool>, ConversationFileError> {
    #[derive(Deserialize)]
    struct ToolFile {
        tools: Vec<ChatTool>,
    }
    let tools = match value {
        Value::Array(tools) => tools.into_iter().map(wrapped).collect(),
        Value::Object(_) => Value::Array(vec![wrapped(value)]),
        other => other,
    };
    let file: ToolFile = wire::parse(json!({ Field::Tools.name(): tools }))?;
    Ok(file.tools.into_iter().map(ChatTool::lower).collect())
}

/// Puts a bare definition into a `function` object.
fn wrapped(tool: Value) -> Value {
    match tool {
        Value::Object(mut fields) if !fields.contains_key(Field::Function.name()) => {
            let mut tool = Map::new();
            if let Some(kind) = fields.shift_remove(Field::Type.name()) {
                tool.insert(Field::Type.name().to_owned(), kind);
            }
            tool.insert(Field::Function.name().to_owned(), Value::Object(fields));
            Value::Object(tool)
        }
        other => other,
    }
}

/// Writes messages in the form that [`read_messages`] reads.
pub fn messages_to_json(messages: &[Message]) -> Value {
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
    let content: Value = match content {
        MessageContent::Text(text) => text.as_str().into(),
        MessageContent::Parts(parts) => parts.iter().map(part_to_json).collect(),
    };
    let text = |text: &Option<String>| text.as_deref().map(Value::from);
    let calls = (!tool_calls.is_empty()).then(|| tool_calls.iter().map(call_to_json).collect());
    let fields = [
        ("role", Some(role.to_string().into())),
        ("name", text(name)),
        ("tool_call_id", text(tool_call_id)),
        ("reasoning_content", text(reasoning)),
        ("content", Some(content)),
        ("tool_calls", calls),
    ];
    let fields = fields.into_iter();
    let fields = fields.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(fields.collect())
}

/// Media without a file are written as text.
fn part_to_json(part: &ContentPart) -> Value {
    let text = match part {
        ContentPart::Text(text) => text,
        ContentPart::Image(image) => match image.file_bytes().and_then(media_data::image_to_url) {
            Some(url) => return json!({ "type": "image_url", "image_url": { "url": url } }),
            None => "[image]",
        },
        ContentPart::Video(video) => match video.file_bytes().map(media_data::video_to_url) {
            Some(url) => return json!({ "type": "video_url", "video_url": { "url": url } }),
            None => "[video]",
        },
    };
    json!({ "type": "text", "text": text })
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

#[cfg(test)]
mod tests {
    use loquat_chat::Role;

    use super::*;

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        }
    }

    #[test]
    fn messages_are_read_and_written_back() {
        let file = json!([
            { "role": "system", "content": "Be kind." },
            { "role": "developer", "content": [{ "type": "text", "text": "a" }, { "text": "b" }] },
            { "role": "user", "content": "hi", "name": "ann", "refusal": null },
            {
                "role": "assistant", "content": null, "reasoning_content": "hm", "audio": null,
                "tool_calls": [
                    { "id": "x1", "type": "function",
                      "function": { "name": "add", "arguments": "{\"a\": 1}" } },
                    { "function": { "name": "sub", "arguments": { "b": [2, 3] } } },
                    { "function": { "name": "now" } },
                ],
            },
            { "role": "tool", "tool_call_id": "x1", "content": "2" },
            { "role": "assistant", "reasoning": "well" },
        ]);
        let expected = [
            Message::new(Role::System, "Be kind."),
            Message::new(
                Role::Developer,
                MessageContent::Parts(vec!["a".into(), "b".into()]),
            ),
            Message {
                name: Some("ann".into()),
                ..Message::new(Role::User, "hi")
            },
            Message {
                reasoning: Some("hm".into()),
                tool_calls: vec![
                    call("x1", "add", "{\"a\": 1}"),
                    call("call00001", "sub", "{\"b\":[2,3]}"),
                    call("call00002", "now", "{}"),
                ],
                ..Message::new(Role::Assistant, "")
            },
            Message {
                tool_call_id: Some("x1".into()),
                ..Message::new(Role::Tool, "2")
            },
            Message {
                reasoning: Some("well".into()),
                ..Message::new(Role::Assistant, "")
            },
        ];
        assert_eq!(read_messages(file).unwrap(), expected);
        let written = messages_to_json(&expected);
        assert_eq!(read_messages(written).unwrap(), expected);
        assert_eq!(read_messages(json!([])).unwrap(), []);
    }

    #[test]
    fn invalid_messages_name_their_field() {
        for (file, expected) in [
            (json!({}), "`messages`: invalid type: map"),
            (
                json!([{ "role": "user", "content": "a" }, { "role": "user" }]),
                "`messages[1].content` is missing",
            ),
            (
                json!([{ "role": "user", "content": "a", "x": 1 }]),
                "`messages[0].x`: unknown field `x`",
            ),
        ] {
            let error = read_messages(file).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn tools_are_read_in_every_form() {
        let bare =
            json!({ "name": "add", "description": "Adds", "parameters": { "type": "object" } });
        let mut typed = bare.clone();
        typed["type"] = "function".into();
        let wrapped = json!({ "type": "function", "function": bare });
        let add = Tool {
            name: "add".into(),
            description: Some("Adds".into()),
            parameters: json!({ "type": "object" }),
            strict: false,
        };
        for (file, count) in [
            (bare.clone(), 1),
            (typed, 1),
            (wrapped.clone(), 1),
            (json!([wrapped, bare]), 2),
        ] {
            assert_eq!(read_tools(file).unwrap(), vec![add.clone(); count]);
        }
        let terse = json!([{ "function": { "name": "now", "strict": true } }]);
        let expected = Tool {
            name: "now".into(),
            description: None,
            parameters: json!({ "type": "object", "properties": {} }),
            strict: true,
        };
        assert_eq!(read_tools(terse).unwrap(), [expected]);
    }

    #[test]
    fn invalid_tools_name_their_field() {
        for (file, expected) in [
            (json!(3), "`tools`: invalid type: integer `3`"),
            (json!([[]]), "`tools[0]`: invalid length 0"),
            (json!([{}]), "`tools[0].function.name` is missing"),
            (
                json!([{ "type": "web_search", "name": "f" }]),
                "`tools[0].type`: unknown variant `web_search`",
            ),
            (
                json!([{ "function": { "name": "f", "schema": {} } }]),
                "`tools[0].function.schema`: unknown field `schema`",
            ),
        ] {
            let error = read_tools(file).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
