//! The size of what a request makes the tokenizer read, before it is rendered.

use loquat_chat::{ChatRequest, Message, Tool, ToolCall};
use serde_json::Value;

/// The bytes of a conversation that its template may render: messages, calls, tools and variables.
pub fn chat_bytes(request: &ChatRequest) -> usize {
    let messages = request.messages.iter().map(message_bytes);
    let tools = request.tools.iter().map(tool_bytes);
    let variables = request.template_variables.iter();
    let variables = variables.map(|(name, value)| name.len() + json_bytes(value));
    messages.chain(tools).chain(variables).sum()
}

/// Whether a conversation has images or videos, which are decoded before it is answered.
pub fn has_media(request: &ChatRequest) -> bool {
    let mut messages = request.messages.iter();
    messages.any(|message| message.content.has_media())
}

fn message_bytes(message: &Message) -> usize {
    let content: usize = message.content.texts().map(str::len).sum();
    let call = |call: &ToolCall| call.name.len() + call.arguments.len();
    let calls: usize = message.tool_calls.iter().map(call).sum();
    content + message.reasoning.as_ref().map_or(0, String::len) + calls
}

fn tool_bytes(tool: &Tool) -> usize {
    let description = tool.description.as_ref().map_or(0, String::len);
    tool.name.len() + description + json_bytes(&tool.parameters)
}

/// The length of the value as JSON, without white space and escapes.
fn json_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) => text.len() + 2,
        Value::Array(values) => {
            2 + values
                .iter()
                .map(|value| json_bytes(value) + 1)
                .sum::<usize>()
        }
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| name.len() + json_bytes(value) + 4;
            2 + fields.iter().map(field).sum::<usize>()
        }
    }
}
