//! Converts items to the messages that the model sees.

use std::collections::HashMap;

use loquat_chat::{Message, MessageContent, Role, ToolCall};

use super::item::{
    FunctionCallItem, FunctionCallOutputItem, Item, ItemReference, ItemRole, MessageItem, Part,
    ReasoningItem, ReasoningPart,
};
use crate::error::ApiError;
use crate::field::Field;
use crate::union::TextOr;

/// Converts a conversation, `instructions` first. Adds fields without effect to `ignored`.
pub fn messages(
    instructions: Option<String>,
    items: Vec<&Item>,
    ignored: &mut Vec<&'static str>,
) -> Result<Vec<Message>, ApiError> {
    let mut conversation = MessageBuilder::default();
    if let Some(instructions) = instructions {
        let system = Message::new(Role::System, instructions);
        conversation.messages.push(system);
    }
    for item in items {
        conversation.add(item, ignored)?;
    }
    Ok(conversation.messages)
}

/// Joins adjacent reasoning, text and calls of the assistant to one message.
#[derive(Default)]
struct MessageBuilder {
    messages: Vec<Message>,
    /// The function name of each call so far, by its id.
    calls: HashMap<String, String>,
}

impl MessageBuilder {
    fn add(&mut self, item: &Item, ignored: &mut Vec<&'static str>) -> Result<(), ApiError> {
        match item {
            Item::Message(item) => self.message(item, ignored)?,
            Item::Reasoning(item) => self.reasoning(item, ignored),
            Item::FunctionCall(item) => self.call(item),
            Item::FunctionCallOutput(item) => self.output(item)?,
            Item::ItemReference(ItemReference { id }) => {
                let message = format!("Item with id '{id}' not found.");
                return Err(ApiError::bad_request(message).param(Field::Input));
            }
        }
        Ok(())
    }

    fn message(
        &mut self,
        item: &MessageItem,
        ignored: &mut Vec<&'static str>,
    ) -> Result<(), ApiError> {
        let MessageItem {
            id: _,
            role,
            content,
            status: _,
            phase,
        } = item;
        if phase.is_some() && !ignored.contains(&"phase") {
            ignored.push("phase");
        }
        let content = self::content(content)?;
        let role = match role {
            ItemRole::User => Role::User,
            ItemRole::System => Role::System,
            ItemRole::Developer => Role::Developer,
            ItemRole::Assistant => {
                self.reply(|reply| reply.content.is_empty() && reply.tool_calls.is_empty())
                    .content = content;
                return Ok(());
            }
        };
        self.messages.push(Message::new(role, content));
        Ok(())
    }

    fn reasoning(&mut self, item: &ReasoningItem, ignored: &mut Vec<&'static str>) {
        let ReasoningItem {
            id: _,
            summary,
            content,
            encrypted_content,
            status: _,
        } = item;
        if encrypted_content.is_some() && !ignored.contains(&"encrypted_content") {
            ignored.push("encrypted_content");
        }
        let parts = if content.is_empty() { summary } else { content };
        if parts.is_empty() {
            return;
        }
        let texts: Vec<_> = parts.iter().map(ReasoningPart::text).collect();
        let reply = self.reply(|reply| reply.content.is_empty() && reply.tool_calls.is_empty());
        let reasoning = reply.reasoning.get_or_insert_default();
        reasoning.push_str(&texts.join("\n\n"));
    }

    fn call(&mut self, item: &FunctionCallItem) {
        let FunctionCallItem {
            id: _,
            call_id,
            name,
            arguments,
            status: _,
        } = item;
        self.calls.insert(call_id.clone(), name.clone());
        self.reply(|_| true).tool_calls.push(ToolCall {
            id: call_id.clone(),
            name: name.clone(),
            arguments: arguments.clone(),
        });
    }

    fn output(&mut self, item: &FunctionCallOutputItem) -> Result<(), ApiError> {
        let FunctionCallOutputItem {
            id: _,
            call_id,
            output,
            status: _,
        } = item;
        let Some(name) = self.calls.get(call_id) else {
            let message =
                format!("No tool call found for function call output with call_id {call_id}.");
            return Err(ApiError::bad_request(message).param(Field::Input));
        };
        self.messages.push(Message {
            tool_call_id: Some(call_id.clone()),
            name: Some(name.clone()),
            ..Message::new(Role::Tool, content(output)?)
        });
        Ok(())
    }

    /// The last message if it is the assistant's and `is_open`; a new one otherwise.
    fn reply(&mut self, is_open: impl Fn(&Message) -> bool) -> &mut Message {
        let is_reply = |message: &Message| message.role == Role::Assistant && is_open(message);
        if !self.messages.last().is_some_and(is_reply) {
            self.messages.push(Message::new(Role::Assistant, ""));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }
}

fn content(content: &TextOr<Part>) -> Result<MessageContent, ApiError> {
    match content {
        TextOr::Text(text) => Ok(MessageContent::Text(text.clone())),
        TextOr::Many(parts) => {
            let parts = parts.iter().map(Part::lower);
            parts
                .collect::<Result<_, _>>()
                .map(MessageContent::from_parts)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn reasoning_belongs_to_the_following_reply() {
        let reasoning = |fields: Value| {
            let mut item = json!({ "type": "reasoning", "id": "rs_1", "summary": [] });
            for (name, value) in fields.as_object().cloned().unwrap_or_default() {
                item[name] = value;
            }
            item
        };
        let clear = json!({ "content": [{ "type": "reasoning_text", "text": "hm" }] });
        let short = json!({ "summary": [{ "type": "summary_text", "text": "short" }] });
        let text = json!({ "role": "assistant", "content": "yo" });
        let call = json!({
            "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}",
        });
        // Reasoning, text and number of calls of each reply.
        type Case<'a> = (Vec<Value>, &'a [(Option<&'a str>, &'a str, usize)]);
        let cases: [Case<'_>; 6] = [
            (
                vec![reasoning(clear.clone()), text.clone()],
                &[(Some("hm"), "yo", 0)],
            ),
            (
                vec![reasoning(short), text.clone()],
                &[(Some("short"), "yo", 0)],
            ),
            (
                vec![reasoning(json!({ "encrypted_content": "x" })), text.clone()],
                &[(None, "yo", 0)],
            ),
            (
                vec![reasoning(clear.clone()), call.clone()],
                &[(Some("hm"), "", 1)],
            ),
            (
                vec![
                    text.clone(),
                    call.clone(),
                    reasoning(clear.clone()),
                    text.clone(),
                ],
                &[(None, "yo", 1), (Some("hm"), "yo", 0)],
            ),
            (vec![reasoning(clear)], &[(Some("hm"), "", 0)]),
        ];
        for (items, expected) in cases {
            let read = |item: &Value| serde_json::from_value(item.clone()).expect("an item");
            let read: Vec<Item> = items.iter().map(read).collect();
            let mut ignored = Vec::new();
            let messages = messages(None, read.iter().collect(), &mut ignored);
            let messages = messages.expect("messages");
            let replies = messages.iter().map(|message| {
                let MessageContent::Text(text) = &message.content else {
                    panic!("{message:?}");
                };
                (
                    message.reasoning.as_deref(),
                    text.as_str(),
                    message.tool_calls.len(),
                )
            });
            assert_eq!(replies.collect::<Vec<_>>(), expected, "{items:?}");
        }
    }
}
