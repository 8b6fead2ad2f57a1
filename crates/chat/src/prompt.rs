//! Messages as templates expect them.

use loquat_text::{ChatInput, ChatTemplate};
use serde_json::{Map, Value, json};

use crate::quote::Quoter;
use crate::{ChatError, Content, Message, Role, Tool, ToolCall};

/// How a template likes its messages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taste {
    pub parts: bool,
    pub arguments_as_text: bool,
    pub developer: bool,
    /// Whether a message may have thinking, words and calls at once: gpt-oss takes two of them.
    pub thinking_beside_words: bool,
}

impl Taste {
    pub fn of(template: &ChatTemplate) -> Self {
        Self {
            parts: template.takes_parts(),
            arguments_as_text: template.arguments_as_text(),
            developer: template.source(true).contains("developer"),
            thinking_beside_words: takes_thinking_beside_words(template),
        }
    }
}

/// By trying: without the thinking it renders, with it only perhaps.
fn takes_thinking_beside_words(template: &ChatTemplate) -> bool {
    let renders = |thinking: bool| {
        let mut reply = json!({
            "role": "assistant",
            "content": "so",
            "tool_calls": [{
                "id": "call00001",
                "type": "function",
                "function": { "name": "f", "arguments": {} },
            }],
        });
        if thinking {
            reply["reasoning_content"] = json!("hm");
            reply["thinking"] = json!("hm");
        }
        let user = json!({ "role": "user", "content": "?" });
        let result = json!({ "role": "tool", "tool_call_id": "call00001", "content": "0" });
        let input = ChatInput {
            messages: json!([user, reply, result]),
            ..ChatInput::default()
        };
        template.render(&input).is_ok()
    };
    renders(true) || !renders(false)
}

/// Who keeps special tokens out of whose words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quoters<'a> {
    pub others: &'a Quoter,
    pub replies: &'a Quoter,
}

/// The conversation as a template's `messages`, quoted where `quoters` are given.
pub(crate) fn messages(
    messages: &[Message],
    taste: Taste,
    quoters: Option<Quoters<'_>>,
) -> Result<Value, ChatError> {
    let written = messages.iter().enumerate().map(|(index, message)| {
        let quoter = quoters.map(|quoters| match message.role {
            Role::Assistant => quoters.replies,
            _ => quoters.others,
        });
        self::message(index, message, taste, quoter)
    });
    written.collect()
}

fn message(
    index: usize,
    message: &Message,
    taste: Taste,
    quoter: Option<&Quoter>,
) -> Result<Value, ChatError> {
    let Message {
        role,
        content,
        reasoning,
        tool_calls,
        tool_call_id,
        name,
    } = message;
    let role = match role {
        Role::Developer if !taste.developer => Role::System,
        role => *role,
    };
    let mut written = Map::new();
    written.insert("role".into(), role.to_string().into());
    written.insert("content".into(), self::content(content, taste, quoter));
    let crowded = !tool_calls.is_empty() && !content.is_empty() && !taste.thinking_beside_words;
    if let Some(reasoning) = reasoning.as_ref().filter(|_| !crowded) {
        // Templates know it by either name.
        written.insert("reasoning_content".into(), reasoning.as_str().into());
        written.insert("thinking".into(), reasoning.as_str().into());
    }
    if !tool_calls.is_empty() {
        let calls = tool_calls.iter().enumerate();
        let calls = calls
            .map(|(at, call)| Ok(self::call(call, arguments(index, at, call)?, taste)))
            .collect::<Result<_, ChatError>>()?;
        written.insert("tool_calls".into(), Value::Array(calls));
    }
    for (key, value) in [("tool_call_id", tool_call_id), ("name", name)] {
        if let Some(value) = value {
            let value = match quoter {
                Some(quoter) => quoter.quote(value).into_owned(),
                None => value.clone(),
            };
            written.insert(key.into(), value.into());
        }
    }
    Ok(Value::Object(written))
}

fn content(content: &Content, taste: Taste, quoter: Option<&Quoter>) -> Value {
    let quoted = |text: &str| match quoter {
        Some(quoter) => quoter.quote(text).into_owned(),
        None => text.to_owned(),
    };
    match content {
        Content::Parts(parts) if taste.parts => {
            let parts = match quoter {
                Some(quoter) => quoter.quote_parts(parts),
                None => parts.clone(),
            };
            let parts = parts.into_iter();
            parts
                .map(|text| json!({ "type": "text", "text": text }))
                .collect()
        }
        content => quoted(&content.joined()).into(),
    }
}

fn call(call: &ToolCall, object: Map<String, Value>, taste: Taste) -> Value {
    let arguments = if taste.arguments_as_text {
        Value::String(Value::Object(object).to_string())
    } else {
        Value::Object(object)
    };
    json!({
        "id": call.id,
        "type": "function",
        "function": { "name": call.name, "arguments": arguments },
    })
}

/// The arguments of a message's call; none at all are an empty object.
pub(crate) fn arguments(
    message: usize,
    at: usize,
    call: &ToolCall,
) -> Result<Map<String, Value>, ChatError> {
    match call.arguments.trim() {
        "" => Ok(Map::new()),
        text => serde_json::from_str(text).map_err(|source| ChatError::Arguments {
            message,
            call: at,
            source,
        }),
    }
}

/// A template's `tools`.
pub(crate) fn tools(tools: &[Tool], quoters: Option<Quoters<'_>>) -> Value {
    let definitions = tools.iter().map(Tool::definition);
    let quoted = definitions.map(|definition| match quoters {
        Some(quoters) => quoters.others.quote_json(definition),
        None => definition,
    });
    quoted.collect()
}
