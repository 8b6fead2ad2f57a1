//! Converts messages to the form templates expect.

use serde_json::{Map, Value, json};

use crate::media_prompt::MediaMarkers;
use crate::quote::Quoter;
use crate::template_traits::TemplateTraits;
use crate::{ChatError, ContentPart, Message, MessageContent, Role, Tool, ToolCall};

/// Escape special tokens in messages, by role.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quoters<'a> {
    pub others: &'a Quoter,
    /// For assistant messages.
    pub replies: &'a Quoter,
}

/// A template's `messages`, with special tokens escaped by `quoters`.
pub(crate) fn messages(
    messages: &[Message],
    (traits, markers): (TemplateTraits, Option<MediaMarkers<'_>>),
    quoters: Option<Quoters<'_>>,
) -> Result<Value, ChatError> {
    let written = messages.iter().enumerate().map(|(index, message)| {
        let quoter = quoters.map(|quoters| match message.role {
            Role::Assistant => quoters.replies,
            _ => quoters.others,
        });
        self::message(index, message, (traits, markers), quoter)
    });
    written.collect()
}

fn message(
    index: usize,
    message: &Message,
    (traits, markers): (TemplateTraits, Option<MediaMarkers<'_>>),
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
        Role::Developer if !traits.developer_role => Role::System,
        role => *role,
    };
    let mut written = Map::new();
    written.insert("role".into(), role.to_string().into());
    written.insert(
        "content".into(),
        self::content(content, (traits, markers), quoter),
    );
    let drops_reasoning =
        !tool_calls.is_empty() && !content.is_empty() && !traits.thinking_with_text_and_calls;
    if let Some(reasoning) = reasoning.as_ref().filter(|_| !drops_reasoning) {
        // Templates use either name.
        written.insert("reasoning_content".into(), reasoning.as_str().into());
        written.insert("thinking".into(), reasoning.as_str().into());
    }
    if !tool_calls.is_empty() {
        let calls = tool_calls.iter().enumerate();
        let calls = calls
            .map(|(at, call)| Ok(self::call(call, arguments(index, at, call)?, traits)))
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

fn content(
    content: &MessageContent,
    (traits, markers): (TemplateTraits, Option<MediaMarkers<'_>>),
    quoter: Option<&Quoter>,
) -> Value {
    let quoted = |text: &str| match quoter {
        Some(quoter) => quoter.quote(text).into_owned(),
        None => text.to_owned(),
    };
    let parts = match content {
        MessageContent::Parts(parts) if traits.content_parts || content.has_media() => parts,
        content => return quoted(&content.joined()).into(),
    };
    let mut written = Vec::with_capacity(parts.len());
    for run in parts.chunk_by(|one, other| one.as_text().is_some() && other.as_text().is_some()) {
        let texts: Vec<&str> = run.iter().filter_map(ContentPart::as_text).collect();
        let texts = match quoter {
            Some(quoter) => quoter.quote_parts(&texts),
            None => texts.iter().map(|text| (*text).to_owned()).collect(),
        };
        written.extend(texts.into_iter().map(WrittenPart::Text));
        // Media are runs of one part.
        written.extend(run.iter().find_map(|part| match part {
            ContentPart::Image(_) => Some(WrittenPart::Image),
            ContentPart::Video(_) => Some(WrittenPart::Video),
            ContentPart::Text(_) => None,
        }));
    }
    let marker = |part: &WrittenPart| match part {
        WrittenPart::Text(text) => text.clone(),
        WrittenPart::Image => markers.map_or("", |markers| markers.image).to_owned(),
        WrittenPart::Video => markers.map_or("", |markers| markers.video).to_owned(),
    };
    if !traits.content_parts && !traits.image_parts {
        let texts: Vec<String> = written.iter().map(marker).collect();
        return texts.join("\n").into();
    }
    let parts = written.iter().map(|part| match part {
        WrittenPart::Image if traits.image_parts => json!({ "type": "image" }),
        WrittenPart::Video if traits.image_parts => json!({ "type": "video" }),
        part => json!({ "type": "text", "text": marker(part) }),
    });
    parts.collect()
}

enum WrittenPart {
    Text(String),
    Image,
    Video,
}

fn call(call: &ToolCall, object: Map<String, Value>, traits: TemplateTraits) -> Value {
    let arguments = if traits.arguments_as_text {
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

/// A call's arguments. Empty text is an empty object.
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
